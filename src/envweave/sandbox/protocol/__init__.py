"""How host and session talk: messages, framing, encoding, and the exchange without I/O."""

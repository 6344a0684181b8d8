"""What travels between a client and a server: messages, values, faults. No I/O."""

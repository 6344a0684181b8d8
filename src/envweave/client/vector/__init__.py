"""Many sessions of a server as one vector."""

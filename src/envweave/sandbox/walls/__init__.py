"""The walls around a session, one module each. Each opens with what it stops."""

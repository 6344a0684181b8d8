"""The walls around a session, one module each. Each module's docstring says what it stops."""

"""What runs an agent's code, and where."""

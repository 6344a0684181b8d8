"""The coding environment, served."""

"""The code that runs in the template and in sessions, not on the host."""

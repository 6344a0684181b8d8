"""Code that runs inside sandbox sessions, and the host side that injects it."""

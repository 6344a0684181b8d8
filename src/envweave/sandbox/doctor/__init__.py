"""What isolation this machine supports, and how to improve it."""

"""What this machine can enforce, and what to do where it cannot."""

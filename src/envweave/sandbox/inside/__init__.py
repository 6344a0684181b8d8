"""What runs in the template and in the sessions, apart from the host."""

"""The processes of the sandbox as the host sees them: template, sessions, and waiting for them."""

"""Where sessions run: on threads and loops of this process, or in worker processes."""

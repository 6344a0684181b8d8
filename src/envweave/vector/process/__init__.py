"""`backend="process"`: a few worker processes, many environments each."""

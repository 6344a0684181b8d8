"""Backends: where an environment runs. One module per backend."""

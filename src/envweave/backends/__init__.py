"""Where an environment runs; one module a backend, about twenty lines each."""

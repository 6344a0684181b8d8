"""`envweave new`: a new project with an environment, from templates."""

"""`envweave build`: an image with an environment and its server."""

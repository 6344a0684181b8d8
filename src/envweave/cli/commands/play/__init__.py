"""`envweave play`: play an environment by hand."""

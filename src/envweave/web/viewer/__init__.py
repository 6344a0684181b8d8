"""What `envweave view` serves: the runs below a folder."""

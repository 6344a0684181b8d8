"""Worker processes that envweave starts itself, and the channel to them."""

"""Environments behind a server, as callers see them: blocking, async, and many at once."""

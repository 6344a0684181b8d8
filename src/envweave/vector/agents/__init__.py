"""Batches of multi-agent environments."""

"""Environments that are ready to be served, each with its models, its app and its client."""

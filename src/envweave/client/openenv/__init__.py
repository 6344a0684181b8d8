"""A client for OpenEnv servers."""

"""Environments for tests, by theme. Worker processes and servers import them by name."""

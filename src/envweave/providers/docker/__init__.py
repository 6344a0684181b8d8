"""Servers in Docker containers: one each, or from a warm pool."""

"""Servers in Kubernetes pods."""

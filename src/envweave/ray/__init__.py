"""Environments on a Ray cluster: worker actors with many environments each."""

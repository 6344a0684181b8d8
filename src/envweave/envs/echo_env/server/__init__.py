"""The echo environment, served."""

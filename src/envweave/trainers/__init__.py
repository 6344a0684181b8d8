"""Shims for trainers of language models, on the chat view. Each needs its trainer installed."""

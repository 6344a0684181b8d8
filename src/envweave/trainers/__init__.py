"""Shims for trainers: environments in the forms that their rollouts expect.

Each is a module of its own, and imports its trainer's package, if at all, when it is imported.
"""

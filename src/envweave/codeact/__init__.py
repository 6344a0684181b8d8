"""Agents that act by writing code: the environment, its executors, transforms and graders."""

"""The commands: one module per command, named like it."""

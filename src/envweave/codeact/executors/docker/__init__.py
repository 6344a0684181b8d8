"""An executor whose sessions run in a container."""

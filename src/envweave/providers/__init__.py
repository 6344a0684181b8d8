"""Providers start, watch and stop the processes, containers and pods that servers run in."""

from envweave.providers.base import ContainerProvider as ContainerProvider
from envweave.providers.subprocess import SubprocessProvider as SubprocessProvider

"""Starting, watching and stopping the places where servers run."""

from envweave.providers.base import ContainerProvider as ContainerProvider
from envweave.providers.subprocess import SubprocessProvider as SubprocessProvider

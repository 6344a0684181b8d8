"""Where tools come from that a registry cannot know before it is opened, such as MCP servers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from envweave.tools.tool import Tool


class ToolSource(ABC):
    """Brings tools that have to be started first, and ended.

    A registry calls it from several threads and event loops, also at once.

    Attributes:
        name: What errors call it.
    """

    name: str

    @abstractmethod
    async def start(self) -> Sequence[Tool]:
        """Start what is not running yet, and return the tools that there are now.

        Called before every episode. After `close` it starts anew.

        Raises:
            StartupError: It cannot be started.
        """

    @abstractmethod
    async def close(self) -> None:
        """End what was started. Harmless twice, and before the first start."""

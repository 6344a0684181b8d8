"""`ToolRegistry`: what an agent's code may call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, final


@final
class ToolRegistry:
    """What an agent's code may call, by name."""

    def __init__(self, tools: Mapping[str, Callable[..., Any]] | Iterable[Any] | None = None) -> None:
        if isinstance(tools, Mapping):
            self._functions = dict(tools)
        else:
            self._functions = {one.__name__: one for one in tools or ()}

    async def open(self) -> dict[str, Callable[..., Any]]:
        """Return the functions of a new episode."""
        return dict(self._functions)

    async def close(self) -> None:
        """End what it started."""

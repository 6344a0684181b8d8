"""The sources of a registry: started and ended together, while several callers come and go."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Container, Sequence
from typing import Any, NamedTuple, final

from envweave.errors import OptionError
from envweave.tools.sources import ToolSource
from envweave.tools.tool import Tool

_A_MOMENT_S = 0.01


class Brought(NamedTuple):
    """A tool, and the name of the source that it is from."""

    tool: Tool
    owner: str


@final
class Gathering:
    """Starts sources when they are needed, and ends them when nobody needs them any more.

    Attributes:
        sources: All of them.
        brought: By name, the tools that they brought when they were last started; none while
            they are not.
        is_started: Whether all of them are, so that `brought` is complete.
    """

    def __init__(self) -> None:
        self.sources: tuple[ToolSource, ...] = ()
        self.brought: dict[str, Brought] = {}
        self.is_started = True
        self._lock = threading.Lock()  # protects all of it
        self._holders: weakref.WeakSet[Any] = weakref.WeakSet()
        self._closings = 0  # odd while they are being ended

    def add(self, source: ToolSource) -> None:
        """Add a source.

        Raises:
            OptionError: It is no source, or is there already.
        """
        if not isinstance(source, ToolSource):
            raise OptionError(f"add_source({source!r}): expected a ToolSource.")
        with self._lock:
            if any(one is source for one in self.sources):
                raise OptionError(f"add_source(…): {source.name} is there already.")
            self.sources = (*self.sources, source)
            self.is_started = False

    async def start(self, taken: Container[str], holder: object = None) -> None:
        """Start what is not running, and take in the tools.

        Args:
            taken: Names that no tool of a source may have.
            holder: Whoever needs them, until it ends them.

        Raises:
            OptionError: Two tools have the same name.
            StartupError: A source cannot be started.
        """
        with self._lock:
            if holder is not None:
                self._holders.add(holder)
        while True:
            with self._lock:
                before, sources = self._closings, self.sources
            if not sources:
                return
            found = await asyncio.gather(
                *(source.start() for source in sources), return_exceptions=True
            )
            with self._lock:
                # Whoever was ending them meanwhile may have ended what is now needed.
                if before == self._closings and before % 2 == 0:
                    self.brought = _joined(sources, found, taken)
                    self.is_started = sources is self.sources
                    return
            await asyncio.sleep(_A_MOMENT_S)

    async def end(self, holder: object = None) -> None:
        """End all of them, unless somebody else than `holder` needs them. Harmless twice."""
        with self._lock:
            if holder is not None:
                self._holders.discard(holder)
                if len(self._holders):
                    return
            if not self.sources:
                return
            self.brought = {}
            self.is_started = False
            self._closings += 1
        try:
            ended = await asyncio.gather(
                *(source.close() for source in self.sources), return_exceptions=True
            )
        finally:
            with self._lock:
                self._closings += 1
        for outcome in ended:
            if isinstance(outcome, BaseException):
                raise outcome


def _joined(
    sources: Sequence[ToolSource],
    found: Sequence[Sequence[Tool] | BaseException],
    taken: Container[str],
) -> dict[str, Brought]:
    brought: dict[str, Brought] = {}
    for source, tools in zip(sources, found, strict=True):
        if isinstance(tools, BaseException):
            raise tools
        for tool in tools:
            other = "this registry" if tool.name in taken else None
            if tool.name in brought:
                other = brought[tool.name].owner
            if other is not None:
                raise OptionError(
                    f"Two tools are called {tool.name!r}: one of {other}, one of {source.name}. "
                    "Rename one, or do without it."
                )
            brought[tool.name] = Brought(tool, source.name)
    return brought

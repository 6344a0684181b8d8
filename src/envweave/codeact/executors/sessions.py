"""Runs code in sessions of a sandbox, wherever that stands: a fresh one for every episode."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import final

from envweave.codeact.executors.base import Executor, Functions
from envweave.codeact.files import gates
from envweave.codeact.models import Variable
from envweave.codeact.prelude import prelude
from envweave.codeact.showing import look, show_code
from envweave.errors import SandboxError, SessionLostError
from envweave.sandbox.async_session import AsyncSession
from envweave.sandbox.results import ExecutionResult, ToolCall


class SessionSource(ABC):
    """Where the sessions of one executor come from."""

    @property
    @abstractmethod
    def isolation(self) -> str:
        """The walls around them; see `Executor`."""

    @abstractmethod
    async def session(self, *, seed: int | None, tools: Functions) -> AsyncSession:
        """Return a session that nobody used before.

        Raises:
            SessionLostError: There is no sandbox any more.
        """

    @abstractmethod
    async def close(self) -> None:
        """Free everything, when the sessions are closed. Called once."""

    @abstractmethod
    def keep_private(self, modules: tuple[str, ...]) -> None:
        """See `Executor`."""

    @abstractmethod
    def hold(self) -> Callable[[], None]:
        """Keep what sources of this kind share, until what is returned is called."""


@final
class EpisodeSession:
    """The session of the episode that runs: one at a time, of a source.

    Args:
        source: Closed with it.

    Attributes:
        current: The session; `None` before the first episode, and after the last.
    """

    def __init__(self, source: SessionSource) -> None:
        self._source = source
        self.current: AsyncSession | None = None

    async def begin(self, *, seed: int | None, tools: Functions) -> AsyncSession:
        """Leave the old session, and return a fresh one.

        Raises:
            SessionLostError: There is no sandbox any more.
        """
        await self._leave()
        self.current = await self._source.session(seed=seed, tools=tools)
        return self.current

    async def close(self) -> None:
        """End the session, and its sandbox if nobody else uses it."""
        try:
            await self._leave()
        finally:
            await self._source.close()

    async def _leave(self) -> None:
        session, self.current = self.current, None
        if session is not None:
            with contextlib.suppress(SandboxError):  # it is gone already
                await session.close()


class SessionExecutor(Executor):
    """Runs code in the sessions of a source.

    Args:
        source: Closed with the executor.
    """

    def __init__(self, source: SessionSource) -> None:
        self._source = source
        self._episode = EpisodeSession(source)
        self._called: tuple[ToolCall, ...] = ()  # since the last run, by values that were shown
        self.names: list[str] = []

    @property
    def isolation(self) -> str:
        """The walls that stand."""
        return self._source.isolation

    @property
    def session(self) -> AsyncSession | None:
        """The session of the episode that runs."""
        return self._episode.current

    async def begin(self, *, seed: int | None, tools: Functions, files: bool) -> None:
        """Leave the old session, and take a fresh one."""
        functions = {**tools, **gates()} if files else dict(tools)
        session = await self._episode.begin(seed=seed, tools=functions)
        self._called = ()
        self.names = list(functions)
        made = await session.run(prelude(files=files))
        if not made.success:
            raise SessionLostError(f"A session could not be prepared: {made.exception_message}")

    async def run(self, code: str) -> ExecutionResult:
        """Run code in the episode's session."""
        if self.session is None:
            raise SessionLostError("No episode has begun.")
        called, self._called = self._called, ()
        result = await self.session.run(code)
        result.tool_calls = called + result.tool_calls
        return result

    async def variables(self) -> dict[str, Variable]:
        """Ask the session. What does not come in a second does not come."""
        if self.session is None:
            return {}
        own = [*self.names, "ToolError"]
        seen = await look(self.session, partial(show_code, own), own)
        self._called += seen.tool_calls
        return seen.variables

    async def close(self) -> None:
        """End the session, and its sandbox if nobody else uses it."""
        await self._episode.close()

    def keep_private(self, modules: tuple[str, ...]) -> None:
        """Never show these."""
        self._source.keep_private(modules)

    def hold(self) -> Callable[[], None]:
        """Keep what the source shares."""
        return self._source.hold()

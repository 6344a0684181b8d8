"""Runs code in sessions of a sandbox, wherever that stands: a fresh one for every episode."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

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
    def hold(self) -> Callable[[], None]:
        """Keep what sources of this kind share, until what is returned is called."""


class SessionExecutor(Executor):
    """Runs code in the sessions of a source.

    Args:
        source: Closed with the executor.
    """

    def __init__(self, source: SessionSource) -> None:
        self._source = source
        self._session: AsyncSession | None = None
        self._called: tuple[ToolCall, ...] = ()  # since the last run, by values that were shown
        self.names: list[str] = []

    @property
    def isolation(self) -> str:
        """The walls that stand."""
        return self._source.isolation

    @property
    def session(self) -> AsyncSession | None:
        """The session of the episode that runs."""
        return self._session

    async def begin(self, *, seed: int | None, tools: Functions, files: bool) -> None:
        """Leave the old session, and take a fresh one."""
        await self._leave()
        functions = {**tools, **gates()} if files else dict(tools)
        session = await self._source.session(seed=seed, tools=functions)
        self._session, self._called = session, ()
        self.names = list(functions)
        made = await session.run(prelude(files=files))
        if not made.success:
            raise SessionLostError(f"A session could not be prepared: {made.exception_message}")

    async def run(self, code: str) -> ExecutionResult:
        """Run code in the episode's session."""
        if self._session is None:
            raise SessionLostError("No episode has begun.")
        called, self._called = self._called, ()
        result = await self._session.run(code)
        result.tool_calls = called + result.tool_calls
        return result

    async def variables(self) -> dict[str, Variable]:
        """Ask the session. What does not come in a second does not come."""
        if self._session is None:
            return {}
        own = [*self.names, "ToolError"]
        seen = await look(self._session, partial(show_code, own), own)
        self._called += seen.tool_calls
        return seen.variables

    async def close(self) -> None:
        """End the session, and its sandbox if nobody else uses it."""
        try:
            await self._leave()
        finally:
            await self._source.close()

    def hold(self) -> Callable[[], None]:
        """Keep what the source shares."""
        return self._source.hold()

    async def _leave(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(SandboxError):
                await session.close()

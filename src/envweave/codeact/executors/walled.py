"""Runs code in a sandbox: a fresh session for every episode."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import final

from envweave.codeact.executors.base import Executor, Functions
from envweave.codeact.executors.shared import Lease, SandboxOptions, take_lease
from envweave.codeact.files import gates
from envweave.codeact.models import Variable
from envweave.codeact.prelude import MODULES, prelude
from envweave.codeact.showing import look, show_code
from envweave.errors import ClosedError, SandboxError, SessionLostError
from envweave.sandbox.async_session import AsyncSession
from envweave.sandbox.results import ExecutionResult, ToolCall


@final
class SandboxExecutor(Executor):
    """Runs code behind the walls of `envweave.sandbox`.

    Executors with equal options share one sandbox in a process; each episode has a session of
    its own in it, which nobody used before.

    Args:
        options: What the sandbox is asked for.

    Raises:
        IsolationError: This machine cannot put up the walls; the message says what to do.
    """

    name = "sandbox"

    def __init__(self, options: SandboxOptions | None = None) -> None:
        options = options or SandboxOptions()
        preload = tuple(dict.fromkeys((*options.preload, *MODULES)))
        self._options = dataclasses.replace(options, preload=preload)
        self._lease = take_lease(self._options)
        self._session: AsyncSession | None = None
        self._called: tuple[ToolCall, ...] = ()  # since the last run, by values that were shown
        self.names: list[str] = []

    @property
    def isolation(self) -> str:
        """The walls that this machine can put up."""
        return self._lease.sandbox.tier.name

    @property
    def session(self) -> AsyncSession | None:
        """The session of the episode that runs."""
        return self._session

    async def begin(self, *, seed: int | None, tools: Functions, files: bool) -> None:
        """Leave the old session, and take a fresh one."""
        await self._leave()
        functions = {**tools, **gates()} if files else dict(tools)
        try:
            session = await self._lease.sandbox.session(seed=seed, tools=functions)
        except ClosedError:
            raise SessionLostError("The sandbox was closed.") from None
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
        """End the session, and the sandbox if nobody else uses it."""
        try:
            await self._leave()
        finally:
            await asyncio.to_thread(self._lease.release)

    def hold(self) -> Callable[[], None]:
        """Keep the sandbox."""
        lease: Lease = take_lease(self._options)
        return lease.release

    async def _leave(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(SandboxError):
                await session.close()

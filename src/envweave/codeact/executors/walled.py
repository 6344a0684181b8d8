"""Runs code in a sandbox of this process."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import final

from envweave.codeact.executors.base import Functions
from envweave.codeact.executors.sessions import SessionExecutor, SessionSource
from envweave.codeact.executors.shared import SandboxOptions, take_lease
from envweave.codeact.prelude import MODULES
from envweave.errors import ClosedError, SessionLostError
from envweave.sandbox.async_session import AsyncSession
from envweave.sandbox.packages import calling_module


@final
class SandboxSessions(SessionSource):
    """Sessions of the sandbox that this process has for such options.

    Raises:
        IsolationError: This machine cannot put up the walls; the message says what to do.
    """

    def __init__(self, options: SandboxOptions) -> None:
        self._options = options
        self._lease = take_lease(options)

    def keep_private(self, modules: tuple[str, ...]) -> None:
        """Have sessions from a sandbox that shows none of these."""
        options = self._options
        private = tuple(sorted({*options.private, *modules}))
        self._options = dataclasses.replace(options, private=private)
        before, self._lease = self._lease, take_lease(self._options)
        before.release()

    @property
    def isolation(self) -> str:
        """The walls that this machine can put up."""
        return self._lease.sandbox.tier.name

    async def session(self, *, seed: int | None, tools: Functions) -> AsyncSession:
        """Return a session that nobody used before."""
        try:
            return await self._lease.sandbox.session(seed=seed, tools=tools)
        except ClosedError:
            raise SessionLostError("The sandbox was closed.") from None

    async def close(self) -> None:
        """End the sandbox if nobody else uses it."""
        await asyncio.to_thread(self._lease.release)

    def hold(self) -> Callable[[], None]:
        """Keep the sandbox."""
        return take_lease(self._options).release


@final
class SandboxExecutor(SessionExecutor):
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
        options = with_modules(options or SandboxOptions())
        private = (*options.private, *calling_module())
        super().__init__(SandboxSessions(dataclasses.replace(options, private=private)))


def with_modules(options: SandboxOptions) -> SandboxOptions:
    """Return the same, with the modules preloaded that code finds without an import."""
    preload = tuple(dict.fromkeys((*options.preload, *MODULES)))
    return dataclasses.replace(options, preload=preload)

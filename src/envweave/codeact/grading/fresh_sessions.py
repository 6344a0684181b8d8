"""Sessions to judge in: each is made for one piece of work, and nobody used it before."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import final

from envweave.codeact.attempts import GradingError
from envweave.codeact.executors.base import Functions
from envweave.codeact.executors.shared import Lease, SandboxOptions, take_lease
from envweave.errors import ClosedError, SandboxError
from envweave.sandbox.async_session import AsyncSession
from envweave.sandbox.sandboxes import AsyncSandbox


@final
class FreshSessions:
    """Makes sessions in the sandbox that this process has for such options.

    The sandbox is started when the first one is wanted, and kept until `close`.
    """

    def __init__(self, options: SandboxOptions) -> None:
        self._options = options
        self._kept: Lease | None = None

    @contextlib.asynccontextmanager
    async def sandbox(self) -> AsyncIterator[AsyncSandbox]:
        """Have the sandbox, whoever closes this meanwhile.

        Raises:
            GradingError: It cannot be had.
        """
        try:
            lease = await asyncio.to_thread(take_lease, self._options)
        except SandboxError as error:
            raise GradingError(f"There is no sandbox to judge in: {error}") from error
        try:
            yield lease.sandbox
        finally:
            # The newest is kept, and the one before given back: there is no moment without.
            before, self._kept = self._kept, lease
            if before is not None:
                before.release()

    async def close(self) -> None:
        """Give the sandbox back. The next who wants it starts it again."""
        kept, self._kept = self._kept, None
        if kept is not None:
            await asyncio.to_thread(kept.release)


@contextlib.asynccontextmanager
async def fresh_session(
    sandbox: AsyncSandbox, seed: int, tools: Functions
) -> AsyncIterator[AsyncSession]:
    """Have a session of one's own.

    Raises:
        GradingError: It cannot be made.
    """
    try:
        session = await sandbox.session(seed=seed, tools=tools)
    except (SandboxError, ClosedError) as error:
        raise GradingError(f"There is no session to judge in: {error}") from error
    try:
        yield session
    finally:
        with contextlib.suppress(SandboxError):
            await session.close()

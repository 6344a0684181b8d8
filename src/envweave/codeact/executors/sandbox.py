"""`SandboxExecutor`: runs code in sessions of a sandbox, which is shared within the process."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import dataclasses
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, final

from envweave.codeact.executors.base import Executor, Functions
from envweave.codeact.injected.prelude import MODULES, permission_stubs, prelude
from envweave.codeact.injected.variables import read_snapshot, show_code
from envweave.codeact.models import Variable
from envweave.errors import (
    BusyError,
    CallOrderError,
    ClosedError,
    ForkError,
    OptionError,
    SandboxError,
    SessionLostError,
)
from envweave.sandbox.async_session import AsyncSession
from envweave.sandbox.config import Profile, UseCgroups, WantedIsolation
from envweave.sandbox.execution import ExecutionResult, Limits, ToolCall
from envweave.sandbox.host.packages import Packages, calling_module, relevant_private
from envweave.sandbox.sandbox import AsyncSandbox


class SessionSource(ABC):
    """Creates the sessions of one executor."""

    @property
    @abstractmethod
    def isolation(self) -> str:
        """Their isolation; see `Executor`."""

    @abstractmethod
    async def session(self, *, seed: int | None, tools: Functions) -> AsyncSession:
        """Return a fresh session.

        Raises:
            SessionLostError: The sandbox is gone.
        """

    @abstractmethod
    async def close(self) -> None:
        """Free everything, after the sessions are closed. Called once."""

    @abstractmethod
    def keep_private(self, modules: tuple[str, ...]) -> None:
        """See `Executor`."""

    @abstractmethod
    def hold(self) -> Callable[[], None]:
        """Keep what sources of this kind share; return a function that releases it."""


@final
class EpisodeSession:
    """The session of the current episode, created by a source.

    Args:
        source: Closed with it.

    Attributes:
        current: The session; `None` before the first episode and after the last.
    """

    def __init__(self, source: SessionSource) -> None:
        self._source = source
        self.current: AsyncSession | None = None

    async def begin(self, *, seed: int | None, tools: Functions) -> AsyncSession:
        """Close the old session, and return a fresh one.

        Raises:
            SessionLostError: The sandbox is gone.
        """
        await self._close_session()
        self.current = await self._source.session(seed=seed, tools=tools)
        return self.current

    async def replace(self, session: AsyncSession) -> None:
        """Close the old session, and continue with this one."""
        old, self.current = self.current, session
        await _close_quietly(old)

    async def close(self) -> None:
        """End the session, and its sandbox if nothing else uses it."""
        try:
            await self._close_session()
        finally:
            await self._source.close()

    async def _close_session(self) -> None:
        session, self.current = self.current, None
        await _close_quietly(session)


async def _close_quietly(session: AsyncSession | None) -> None:
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
        self._called: tuple[ToolCall, ...] = ()  # since the last run, by a `__repr__`
        self.names: list[str] = []

    @property
    def isolation(self) -> str:
        """The isolation of the sessions."""
        return self._source.isolation

    @property
    def session(self) -> AsyncSession | None:
        """The session of the current episode."""
        return self._episode.current

    async def begin(self, *, seed: int | None, tools: Functions, files: bool) -> None:
        """Close the old session, and start a fresh one."""
        functions = _with_stubs(tools, files=files)
        session = await self._episode.begin(seed=seed, tools=functions)
        self._called = ()
        self.names = list(functions)
        result = await session.run(prelude(files=files), counted=False)
        if not result.success:
            raise SessionLostError(f"A session could not be prepared: {result.exception_message}")

    async def run(self, code: str) -> ExecutionResult:
        """Run code in the episode's session."""
        if self.session is None:
            raise SessionLostError("No episode has begun.")
        called, self._called = self._called, ()
        result = await self.session.run(code)
        result.tool_calls = called + result.tool_calls
        return result

    async def variables(self) -> dict[str, Variable]:
        """Return the variables; after a second, names and types only."""
        if self.session is None:
            return {}
        own = [*self.names, "ToolError"]
        snapshot = await read_snapshot(self.session, partial(show_code, own), own)
        self._called += snapshot.tool_calls
        return snapshot.variables

    async def close(self) -> None:
        """End the session, and its sandbox if nothing else uses it."""
        await self._episode.close()

    def keep_private(self, modules: tuple[str, ...]) -> None:
        """Hide these modules from code."""
        self._source.keep_private(modules)

    def hold(self) -> Callable[[], None]:
        """Keep what the source shares; see `Executor`."""
        return self._source.hold()


def _with_stubs(tools: Functions, *, files: bool) -> dict[str, Callable[..., object]]:
    return {**tools, **permission_stubs()} if files else dict(tools)


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """The options of a `Sandbox`, except the tools."""

    limits: Limits = field(default_factory=Limits)
    preload: tuple[str, ...] = ()
    packages: Packages = None
    private: tuple[str, ...] = ()
    profile: Profile = "python"
    isolation: WantedIsolation = "auto"
    visible: tuple[str, ...] = ()
    cgroups: UseCgroups = "auto"


class _Shared:
    """A sandbox and the number of its leases."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # held while it is started, and while it is ended
        self.sandbox: AsyncSandbox | None = None
        self.leases = 0


# Protects the table and the counts. Reentrant: a lease that was never released is released by the
# garbage collector, which may run while this very thread holds the lock.
_lock = threading.RLock()
_table: dict[tuple[int, SandboxOptions], _Shared] = {}


@final
class Lease:
    """The right to make sessions in a shared sandbox, until `release`."""

    def __init__(self, sandbox: AsyncSandbox, release: Callable[[], None]) -> None:
        self.sandbox = sandbox
        self._release = weakref.finalize(self, release)
        self._release.atexit = False

    def release(self) -> None:
        """Release it. Harmless twice. The last release blocks until the sandbox has ended."""
        self._release()


def take_lease(options: SandboxOptions) -> Lease:
    """Return a lease on the sandbox with these options, starting it if there is none.

    Blocks while it starts, for a fraction of a second.

    Raises:
        IsolationError: This machine cannot provide the isolation; the message says what to do.
        SandboxError: It could not be started.
    """
    options = dataclasses.replace(
        options,
        private=relevant_private(
            options.preload, options.packages, options.private, shell=options.profile == "shell"
        ),
    )
    key = (os.getpid(), options)  # a forked process starts its own
    with _lock:
        shared = _table.setdefault(key, _Shared())
        shared.leases += 1
    try:
        with shared.lock:
            if shared.sandbox is None:
                shared.sandbox = AsyncSandbox(
                    limits=options.limits,
                    preload=options.preload,
                    packages=options.packages,
                    private=options.private,
                    profile=options.profile,
                    isolation=options.isolation,
                    visible=options.visible,
                    cgroups=options.cgroups,
                )
            sandbox = shared.sandbox
    except BaseException:
        _release(key, shared)
        raise
    return Lease(sandbox, lambda: _release(key, shared))


def _release(key: tuple[int, SandboxOptions], shared: _Shared) -> None:
    if key[0] != os.getpid():
        return
    with _lock:
        shared.leases -= 1
        if shared.leases:
            return
        if _table.get(key) is shared:
            del _table[key]
    with shared.lock:
        sandbox, shared.sandbox = shared.sandbox, None
    if sandbox is not None:
        sandbox.end()


@atexit.register
def _end_all() -> None:
    with _lock:
        left = [one for key, one in _table.items() if key[0] == os.getpid()]
        _table.clear()
    for shared in left:
        if shared.sandbox is not None:
            shared.sandbox.end()


@final
class SandboxSessions(SessionSource):
    """Sessions of the sandbox that this process shares between equal options.

    Raises:
        IsolationError: This machine cannot provide the isolation; the message says what to do.
    """

    def __init__(self, options: SandboxOptions) -> None:
        self._options = options
        self._lease = take_lease(options)

    def keep_private(self, modules: tuple[str, ...]) -> None:
        """Switch to a sandbox that hides these modules."""
        options = self._options
        private = tuple(sorted({*options.private, *modules}))
        self._options = dataclasses.replace(options, private=private)
        before, self._lease = self._lease, take_lease(self._options)
        before.release()

    @property
    def isolation(self) -> str:
        """The isolation that this machine provides."""
        return self._lease.sandbox.tier.name

    async def session(self, *, seed: int | None, tools: Functions) -> AsyncSession:
        """Return a fresh session."""
        try:
            return await self._lease.sandbox.session(seed=seed, tools=tools)
        except ClosedError:
            raise SessionLostError("The sandbox was closed.") from None

    async def close(self) -> None:
        """End the sandbox if nothing else uses it."""
        await asyncio.to_thread(self._lease.release)

    def hold(self) -> Callable[[], None]:
        """Keep the sandbox."""
        return take_lease(self._options).release

    @property
    def sandbox(self) -> AsyncSandbox:
        """The sandbox, which others may use too."""
        return self._lease.sandbox


_RETRY_S = 0.001


@final
class LiveSnapshot:
    """A live copy of a session. It runs nothing; `branch` copies it again.

    It keeps the sandbox. When nothing refers to it any more, the copy is killed.

    Args:
        session: The copy.
        sandbox: The sandbox that it is in.
        release: Releases the sandbox.
        called: The tools that were called in the original since its last run.
    """

    def __init__(
        self,
        session: AsyncSession,
        sandbox: AsyncSandbox,
        release: Callable[[], None],
        called: tuple[ToolCall, ...],
    ) -> None:
        self.sandbox = sandbox
        self.called = called
        self._session = session
        # Not at exit: the sandbox ends then, with everything in it.
        weakref.finalize(self, _end_snapshot, session, release).atexit = False

    def __reduce__(self) -> NoReturn:
        raise ForkError("A snapshot of a sandbox session is live, and cannot leave its process.")

    def __deepcopy__(self, _memo: dict[int, Any]) -> LiveSnapshot:
        return self  # nothing changes it

    async def branch(self, tools: Functions) -> AsyncSession:
        """Return a session that continues from here. Several callers may do so at once.

        Raises:
            ForkError: It is gone, or the tools have other names.
        """
        while True:
            try:
                return await _copy_exactly(self._session, tools)
            except BusyError:
                await asyncio.sleep(_RETRY_S)  # another caller is copying it, in milliseconds


def _end_snapshot(session: AsyncSession, release: Callable[[], None]) -> None:
    session.end()
    release()


async def _copy_exactly(session: AsyncSession, tools: Functions | None = None) -> AsyncSession:
    """Return a live copy that continues from the very state.

    Raises:
        ForkError: There is none.
        BusyError: A call is under way.
    """
    try:
        return await session.branch(reseed=False, strict=True, tools=tools)
    except BusyError:
        raise
    except (SandboxError, ClosedError, CallOrderError, OptionError) as error:
        raise ForkError(f"The session of the code cannot be copied. {error}") from error


@final
class SandboxExecutor(SessionExecutor):
    """Runs code in `envweave.sandbox`.

    Executors with equal options share one sandbox in a process; each episode has a fresh session
    in it.

    Args:
        options: The options of the sandbox.

    Raises:
        IsolationError: This machine cannot provide the isolation; the message says what to do.
    """

    name = "sandbox"

    def __init__(self, options: SandboxOptions | None = None) -> None:
        options = with_modules(options or SandboxOptions())
        private = (*options.private, *calling_module())
        self._sessions = SandboxSessions(dataclasses.replace(options, private=private))
        super().__init__(self._sessions)
        self._continued: AsyncSession | None = None  # the copy that the episode moved to

    async def snapshot(self) -> LiveSnapshot:
        """Return a live copy of the session: its variables, files and random state.

        The first time, the session itself becomes the snapshot, and the episode continues in the
        copy. All copies end with the process of the first session, so no code may run there that
        could end it; and a chain of snapshots and restores nests half as deep.

        Raises:
            ForkError: There is no session, it has ended, or its code uses what a copy would lose
                or share: threads, asyncio tasks, pipes. Copies need the isolation `namespace` and
                the profile `python`.
        """
        session = self.session
        if session is None:
            raise ForkError("No episode has begun, so there is none to copy.")
        release = self._sessions.hold()
        try:
            copy = await _copy_exactly(session)
        except BaseException as error:
            release()
            if isinstance(error, BusyError):
                raise ForkError("Code is running. Wait until it has ended.") from None
            raise
        if session is not self._continued:
            self._episode.current = self._continued = copy
            copy = session
        return LiveSnapshot(copy, self._sessions.sandbox, release, self._called)

    async def restore(self, snapshot: Any, *, tools: Functions, files: bool) -> None:
        """Continue from a snapshot; see `Executor`.

        Raises:
            ForkError: It was made in another sandbox or process, by executors with other options,
                or is gone.
        """
        if not isinstance(snapshot, LiveSnapshot):
            raise ForkError(
                f"The executor 'sandbox' made no such snapshot: it is a {type(snapshot).__name__}."
            )
        if snapshot.sandbox is not self._sessions.sandbox:
            raise ForkError(
                "The snapshot is in another sandbox. It can be restored by executors with equal "
                "options, in the process that made it."
            )
        functions = _with_stubs(tools, files=files)
        session = await snapshot.branch(functions)
        self.names, self._called = list(functions), snapshot.called
        await self._episode.replace(session)


def with_modules(options: SandboxOptions) -> SandboxOptions:
    """Return the options with `MODULES` preloaded."""
    preload = tuple(dict.fromkeys((*options.preload, *MODULES)))
    return dataclasses.replace(options, preload=preload)

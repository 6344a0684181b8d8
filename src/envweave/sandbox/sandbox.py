"""`Sandbox` and `AsyncSandbox`: the entry points of the sandbox."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from envweave.errors import ClosedError, OptionError, SandboxError
from envweave.lifetime import AtExit, CloseGuard
from envweave.sandbox.async_session import AsyncSession
from envweave.sandbox.config import Profile, UseCgroups, WantedIsolation, packages_of, read_options
from envweave.sandbox.doctor import Tier
from envweave.sandbox.execution import Limits
from envweave.sandbox.host.packages import AnyPackages, calling_module
from envweave.sandbox.processes.async_bridge import make_in_thread
from envweave.sandbox.processes.factory import SessionFactory
from envweave.sandbox.processes.process import SessionHandle, SessionProcess
from envweave.sandbox.processes.template import WallSetupError, require_linux
from envweave.sandbox.protocol.session_protocol import seed_of
from envweave.sandbox.session import Session
from envweave.sandbox.tools import SandboxTools
from envweave.sandbox.walls.mounts import WORK

ToolFunctions = Mapping[str, Callable[..., Any]]
SessionT = TypeVar("SessionT")


class SandboxBase:
    """The base of both sandboxes: a session factory, tools, and closing."""

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        preload: Iterable[str] = (),
        packages: AnyPackages = None,
        private: Iterable[str] | None = None,
        tools: ToolFunctions | None = None,
        profile: Profile = "python",
        isolation: WantedIsolation = "auto",
        visible: Iterable[str | os.PathLike[str]] = (),
        shards: int = 1,
        warm: int = 0,
        cgroups: UseCgroups = "auto",
        native: bool = True,
    ) -> None:
        require_linux()
        options = read_options(
            limits=limits,
            preload=preload,
            packages=packages,
            private=calling_module() if private is None else private,
            visible=visible,
            profile=profile,
            isolation=isolation,
            shards=shards,
            warm=warm,
            cgroups=cgroups,
            native=native,
        )
        self._tools = SandboxTools(tools)
        self._used_tools: weakref.WeakSet[SandboxTools] = weakref.WeakSet()
        self._limits = options.limits
        self._sessions: weakref.WeakSet[Any] = weakref.WeakSet()
        try:
            self._factory = SessionFactory(options)
        except OSError as error:
            raise _os_failure("sandbox", error) from error
        self._lock = threading.Lock()  # protects `_sessions`, `_used_tools` and `_is_closed`
        self._is_closed = False
        self._drop_guard = CloseGuard(
            self,
            partial(_close_factory, self._factory),
            "A Sandbox was dropped without close(). Use it in a `with` block, or close it.",
            at_exit=AtExit.WARN,
        )

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else str(self.tier)
        return f"<{type(self).__name__}: {state}>"

    @property
    def tier(self) -> Tier:
        """The isolation tier in use, and what it lacks."""
        return self._factory.tier

    @property
    def limits(self) -> Limits:
        """What each session may use."""
        return self._limits

    def template_pids(self) -> list[int]:
        """Return the process ids of the templates, for process monitors."""
        return self._factory.template_pids()

    def _tools_for(self, tools: ToolFunctions | None) -> SandboxTools:
        return self._tools if tools is None else SandboxTools(tools)

    def _processes(
        self, seeds: Sequence[int | None], tools: SandboxTools, *, alone: bool
    ) -> list[SessionProcess]:
        try:
            if alone:
                return [self._factory.make(seeds[0], tools.signatures())]
            return self._factory.make_many(seeds, tools.signatures())
        except WallSetupError as error:
            raise SandboxError(f"A session could not be made: {error.text}.") from None
        except OSError as error:
            if self._is_closed:
                raise _closed() from None
            raise _os_failure("session", error) from error

    def _explain(self, module: str) -> str | None:
        """Return why a session could not import a module; `None` if there is nothing to explain."""
        if self.tier.name == "none":
            return None
        return packages_of(self._factory.options).explain(module)

    def _work(self, handle: SessionHandle) -> str:
        return handle.work or WORK

    def _register(
        self, handle: SessionHandle, tools: SandboxTools, make: Callable[[], SessionT]
    ) -> SessionT:
        """Return the session of a process. Closing the sandbox closes it and its tools.

        Raises:
            ClosedError: The sandbox was closed meanwhile; the process is released.
        """
        with self._lock:
            if not self._is_closed:
                session = make()
                self._sessions.add(session)
                self._used_tools.add(tools)
                return session
        handle.release()
        raise _closed()

    def _stop_accepting(self) -> list[Any]:
        """Refuse new sessions, and return those that must be closed."""
        with self._lock:
            self._is_closed = True
            return list(self._sessions)

    def end(self) -> None:
        """Kill the sandbox and everything in it, from any thread and without an event loop.

        `close` is gentler to sessions that are in use. Harmless twice.
        """
        self._stop_accepting()
        self._end()

    def _end(self) -> None:
        """Release everything, after the sessions are closed."""
        self._factory.close()
        for tools in list(self._used_tools):
            tools.close()
        self._drop_guard.disarm()


def _close_factory(factory: SessionFactory) -> bool:
    if not factory.is_own:
        return False
    factory.close()
    return True


def _closed() -> ClosedError:
    return ClosedError("This sandbox is closed. Make another one.")


def _os_failure(what: str, error: OSError) -> Exception:
    """Return the error for a refusal by the kernel, with advice where there is any."""
    if isinstance(error, SandboxError) or error.errno is None:  # raised by a signal handler
        return error
    advice = ""
    if error.errno == errno.EMFILE:
        advice = (
            " A session uses two descriptors of this process: close some, or raise `ulimit -n`."
        )
    if error.errno == errno.ENOSPC:
        advice = " Free some space there, or set TMPDIR to another folder."
    return SandboxError(f"A {what} could not be made: {error}.{advice}")


def _seeds(count: Any, seeds: Sequence[int | None] | None) -> list[int | None]:
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise OptionError(f"sessions({count!r}): expected an integer of at least 0.")
    checked: list[int | None] = (
        [None] * count if seeds is None else [seed_of(one, "sessions") for one in seeds]
    )
    if len(checked) != count:
        raise OptionError(f"sessions({count}): got {len(checked)} seeds.")
    return checked


class Sandbox(SandboxBase):
    """Runs untrusted Python behind kernel-enforced walls. Blocking; see also `AsyncSandbox`.

    Making one starts an interpreter and sets up the walls, in a fraction of a second; a session
    then takes milliseconds. Thread-safe; each session can be used by one thread at a time.

    Args:
        limits: What each session may use.
        preload: Modules that every session finds imported, which makes their first use free.
        packages: The installed packages that sessions can import and read, besides the standard
            library, numpy and what `preload` names: import names or distribution names. Their
            requirements are visible too, and nothing else. `"all"`: everything installed.
        private: Packages that sessions never see, even with `"all"`, by the same names. By default
            the distribution or module that makes the sandbox. envweave is always private.
        tools: Functions of the host that code may call by these names. They run in this process,
            with its rights; only their return values cross the walls.
        profile: `"python"` runs Python only; `"shell"` also programs, inside the same walls.
        isolation: The tier. `"auto"` uses the strongest that this machine supports, and raises if
            it supports none. `"none"` must be requested explicitly.
        visible: Files and folders of the host that code may read, and import from.
        shards: How many templates to spread sessions over, each pinned to one core with its
            sessions. With one, the kernel spreads them over the cores of this process.
        warm: How many sessions to keep ready.
        cgroups: Whether to limit what a session uses as a whole by a control group: `"auto"` does
            so where this process may make one, `"always"` raises where it may not.
        native: Whether to use the compiled extension, where it was built.

    Raises:
        IsolationError: This machine does not support the isolation; the message says why, and what
            to do.
        OptionError: An option is not valid.
        SandboxError: A module could not be preloaded.
    """

    def session(self, *, seed: int | None = None, tools: ToolFunctions | None = None) -> Session:
        """Return a fresh session.

        Args:
            seed: Seeds `random` and numpy in the session; `None` seeds from the system.
            tools: Replaces the sandbox's tools.
        """
        chosen = self._tools_for(tools)
        handle = self._processes([seed_of(seed, "session")], chosen, alone=True)[0]
        return self._session(chosen, handle)

    def sessions(
        self,
        count: int,
        *,
        seeds: Sequence[int | None] | None = None,
        tools: ToolFunctions | None = None,
    ) -> list[Session]:
        """Return many fresh sessions, faster than one after the other."""
        chosen = self._tools_for(tools)
        handles = self._processes(_seeds(count, seeds), chosen, alone=False)
        return [self._session(chosen, one) for one in handles]

    def close(self) -> None:
        """Close all sessions, and leave nothing behind. Harmless twice."""
        for session in self._stop_accepting():
            session.close()
        self._end()

    def _session(self, tools: SandboxTools, handle: SessionHandle) -> Session:
        work = self._work(handle)
        return self._register(
            handle,
            tools,
            # Its `adopt` keeps the sandbox alive, which would close the session when collected.
            lambda: Session(
                handle,
                self._limits,
                tools,
                work=work,
                explain=self._explain,
                adopt=self._session,
            ),
        )

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncSandbox(SandboxBase):
    """The async twin of `Sandbox`: the same options and the same sessions, awaited.

    Its constructor blocks while a template starts, a fraction of a second; where an event loop
    must not wait that long, use `async with await AsyncSandbox.start(…)`.
    """

    @classmethod
    async def start(cls, **options: Any) -> AsyncSandbox:
        """Make one without blocking the event loop."""
        options.setdefault("private", calling_module())
        return await make_in_thread(lambda: cls(**options), cls._end)

    def session(
        self, *, seed: int | None = None, tools: ToolFunctions | None = None
    ) -> PendingSession:
        """Return a fresh session: `await` it, or use it in `async with`."""
        chosen = self._tools_for(tools)
        make = partial(self._processes, [seed_of(seed, "session")], chosen, alone=True)
        return PendingSession(make, partial(self._session, chosen))

    async def sessions(
        self,
        count: int,
        *,
        seeds: Sequence[int | None] | None = None,
        tools: ToolFunctions | None = None,
    ) -> list[AsyncSession]:
        """Return many fresh sessions, faster than one after the other."""
        chosen = self._tools_for(tools)
        make = partial(self._processes, _seeds(count, seeds), chosen, alone=False)
        handles = await make_in_thread(make, _release)
        return [self._session(chosen, one) for one in handles]

    async def close(self) -> None:
        """Close all sessions, and leave nothing behind. Harmless twice."""
        for session in self._stop_accepting():
            await session.close()
        await asyncio.to_thread(self._end)

    def _session(self, tools: SandboxTools, handle: SessionHandle) -> AsyncSession:
        work = self._work(handle)
        return self._register(
            handle,
            tools,
            lambda: AsyncSession(
                handle,
                self._limits,
                tools,
                work=work,
                explain=self._explain,
                adopt=self._session,
            ),
        )

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class PendingSession:
    """A session that is being made. Await it, or use it in `async with`."""

    def __init__(
        self,
        make: Callable[[], list[SessionProcess]],
        as_session: Callable[[SessionHandle], AsyncSession],
    ) -> None:
        self._make = make
        self._as_session = as_session
        self._session: AsyncSession | None = None

    def __await__(self) -> Generator[Any, None, AsyncSession]:
        return self._made().__await__()

    async def __aenter__(self) -> AsyncSession:
        self._session = await self._made()
        return self._session

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def _made(self) -> AsyncSession:
        handle = (await make_in_thread(self._make, _release))[0]
        return self._as_session(handle)


def _release(processes: list[SessionProcess]) -> None:
    for process in processes:
        process.release()

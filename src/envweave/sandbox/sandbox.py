"""`Sandbox` and `AsyncSandbox`: where a caller begins."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from envweave.errors import ClosedError, OptionError, SandboxError
from envweave.sandbox.async_session import AsyncSession
from envweave.sandbox.config import Profile, UseCgroups, WantedIsolation, packages_of, read_options
from envweave.sandbox.doctor.probe import Tier
from envweave.sandbox.host.packages import AnyPackages, calling_module
from envweave.sandbox.limits import Limits
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


class AnySandbox:
    """What both sandboxes are: a factory, tools, and an end."""

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
        self._own_tools: weakref.WeakSet[SandboxTools] = weakref.WeakSet()
        self._limits = options.limits
        self._sessions: weakref.WeakSet[Any] = weakref.WeakSet()
        try:
            self._factory = SessionFactory(options)
        except OSError as error:
            raise _refused("sandbox", error) from error
        self._lock = threading.Lock()  # protects `_sessions` and `_is_closed`
        self._is_closed = False
        self._unclosed = weakref.finalize(self, _dropped, self._factory)

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else str(self.tier)
        return f"<{type(self).__name__}: {state}>"

    @property
    def tier(self) -> Tier:
        """The walls that stand here, and what they lack."""
        return self._factory.tier

    @property
    def limits(self) -> Limits:
        """What each session may use."""
        return self._limits

    def template_pids(self) -> list[int]:
        """Return the process ids of the templates, for whoever watches over processes."""
        return self._factory.template_pids()

    def _tools_for(self, tools: ToolFunctions | None) -> SandboxTools:
        if tools is None:
            return self._tools
        own = SandboxTools(tools)
        self._own_tools.add(own)
        return own

    def _bodies(
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
            raise _refused("session", error) from error

    def _explain(self, module: str) -> str | None:
        """Say why a session could not import a module; `None` if that is nobody's wish."""
        if self.tier.name == "none":
            return None
        return packages_of(self._factory.options).explain(module)

    def _work(self, body: SessionHandle) -> str:
        return body.work or WORK

    def _keep(self, body: SessionHandle, as_session: Callable[[], SessionT]) -> SessionT:
        """Return the session of a body, counted in so that closing ends it.

        Raises:
            ClosedError: The sandbox was closed meanwhile; the body is released.
        """
        with self._lock:
            if not self._is_closed:
                session = as_session()
                self._sessions.add(session)
                return session
        body.release()
        raise _closed()

    def _shut(self) -> list[Any]:
        """Let no session come any more, and return those that are to be closed."""
        with self._lock:
            self._is_closed = True
            return list(self._sessions)

    def end(self) -> None:
        """End the sandbox and what runs in it at once, from any thread and without a loop.

        `close` is kinder to sessions that are in use. Harmless twice.
        """
        self._shut()
        self._end()

    def _end(self) -> None:
        """End what is left, when the sessions are closed."""
        self._factory.close()
        for tools in (self._tools, *self._own_tools):
            tools.close()
        self._unclosed.detach()


def _dropped(factory: SessionFactory) -> None:
    if not factory.is_own:
        return
    factory.close()
    warnings.warn(
        "A Sandbox was dropped without close(). Use it in a `with` block, or close it.",
        ResourceWarning,
        stacklevel=1,
    )


def _closed() -> ClosedError:
    return ClosedError("This sandbox is closed. Make another one.")


def _refused(what: str, error: OSError) -> Exception:
    """Return what to tell of an error by which the kernel refused something."""
    if isinstance(error, SandboxError) or error.errno is None:  # a signal handler's has none
        return error
    way_out = ""
    if error.errno == errno.EMFILE:
        way_out = (
            " A session takes two descriptors of this process: close some, or raise `ulimit -n`."
        )
    if error.errno == errno.ENOSPC:
        way_out = " Free some space there, or name another folder by TMPDIR."
    return SandboxError(f"A {what} could not be made: {error}.{way_out}")


def _seeds(count: Any, seeds: Sequence[int | None] | None) -> list[int | None]:
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise OptionError(f"sessions({count!r}): expected how many.")
    given: list[int | None] = (
        [None] * count if seeds is None else [seed_of(one, "sessions") for one in seeds]
    )
    if len(given) != count:
        raise OptionError(f"sessions({count}): {len(given)} seeds were given.")
    return given


class Sandbox(AnySandbox):
    """Runs arbitrary Python behind kernel walls. Blocking; `AsyncSandbox` is its twin.

    Making one starts an interpreter and puts up the walls, in a fraction of a second; a session
    then takes milliseconds. May be used by several threads; each session by one at a time.

    Args:
        limits: What each session may use.
        preload: Modules that every session finds imported, which makes their first use free.
        packages: The installed packages that sessions can import and read, besides the standard
            library, numpy and what `preload` names: import names or names of distributions. What
            they require is visible too, and nothing else. `"all"`: all that is installed.
        private: What sessions never see, also with `"all"`, by the same names. By default the
            distribution, or the module, whose code makes the sandbox. envweave is always among it.
        tools: Functions of the host that code may call by these names. They run here, with this
            process's rights: what they return is all that crosses.
        profile: `"python"` runs Python alone; `"shell"` also programs, inside the same walls.
        isolation: The walls. `"auto"` takes the strongest that this machine can put up, and
            raises if it can put up none. `"none"` must be asked for by name.
        visible: Files and folders of the host that code may read, and import from.
        shards: How many templates to spread sessions over, each with its sessions on one core.
            With one, the kernel spreads them over the cores that this process may use.
        warm: How many sessions to keep ready.
        cgroups: Whether to bound what a session uses as a whole by a control group: `"auto"` does
            it wherever this process may make one, `"always"` raises where it may not.
        native: Whether to use the compiled extension, where it was built.

    Raises:
        IsolationError: This machine cannot put up the walls; the message says why, and what to do.
        OptionError: An option is not sound.
        SandboxError: A module could not be preloaded.
    """

    def session(self, *, seed: int | None = None, tools: ToolFunctions | None = None) -> Session:
        """Return a fresh session, which nobody used before.

        Args:
            seed: Of `random` and numpy inside; without one they are seeded from the system.
            tools: Instead of the sandbox's.
        """
        chosen = self._tools_for(tools)
        body = self._bodies([seed_of(seed, "session")], chosen, alone=True)[0]
        return self._session(chosen, body)

    def sessions(
        self,
        count: int,
        *,
        seeds: Sequence[int | None] | None = None,
        tools: ToolFunctions | None = None,
    ) -> list[Session]:
        """Return many fresh sessions, quicker than one after the other."""
        chosen = self._tools_for(tools)
        bodies = self._bodies(_seeds(count, seeds), chosen, alone=False)
        return [self._session(chosen, one) for one in bodies]

    def close(self) -> None:
        """End all sessions, and leave nothing behind. Harmless twice."""
        for session in self._shut():
            session.close()
        self._end()

    def _session(self, tools: SandboxTools, body: SessionHandle) -> Session:
        # A session holds on to its sandbox, which would end it when dropped.
        adopt = partial(self._session, tools)
        work = self._work(body)
        return self._keep(
            body,
            lambda: Session(
                body, self._limits, tools, work=work, explain=self._explain, adopt=adopt
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


class AsyncSandbox(AnySandbox):
    """The async twin of `Sandbox`: the same options, the same sessions, awaited.

    Its constructor blocks for as long as a template takes to start, a fraction of a second; where
    an event loop must not wait so long, use `async with await AsyncSandbox.start(…)`.
    """

    @classmethod
    async def start(cls, **options: Any) -> AsyncSandbox:
        """Make one without blocking the event loop."""
        options.setdefault("private", calling_module())
        return await make_in_thread(lambda: cls(**options), cls._end)

    def session(self, *, seed: int | None = None, tools: ToolFunctions | None = None) -> Pending:
        """Return a fresh session: `await` it, or use it in `async with`."""
        chosen = self._tools_for(tools)
        make = partial(self._bodies, [seed_of(seed, "session")], chosen, alone=True)
        return Pending(make, partial(self._session, chosen))

    async def sessions(
        self,
        count: int,
        *,
        seeds: Sequence[int | None] | None = None,
        tools: ToolFunctions | None = None,
    ) -> list[AsyncSession]:
        """Return many fresh sessions, quicker than one after the other."""
        chosen = self._tools_for(tools)
        given = _seeds(count, seeds)
        make = partial(self._bodies, given, chosen, alone=False)
        bodies = await make_in_thread(make, _release)
        return [self._session(chosen, one) for one in bodies]

    async def close(self) -> None:
        """End all sessions, and leave nothing behind. Harmless twice."""
        for session in self._shut():
            await session.close()
        await asyncio.to_thread(self._end)

    def _session(self, tools: SandboxTools, body: SessionHandle) -> AsyncSession:
        adopt = partial(self._session, tools)
        work = self._work(body)
        return self._keep(
            body,
            lambda: AsyncSession(
                body, self._limits, tools, work=work, explain=self._explain, adopt=adopt
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


class Pending:
    """A session that is being made. Await it for the session, or enter it."""

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
        body = (await make_in_thread(self._make, _release))[0]
        return self._as_session(body)


def _release(bodies: list[SessionProcess]) -> None:
    for body in bodies:
        body.release()

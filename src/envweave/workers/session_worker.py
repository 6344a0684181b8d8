"""The worker's side of process sessions: the drivers of many sessions on one event loop.

`rpc.py` describes the messages; here their parameters and results are pickles.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Mapping
from typing import Any, NamedTuple, final

from envweave.errors import ResetFailedError, StateFailedError, format_error
from envweave.registry import EnvSpec, MakeOptions
from envweave.registry.plugins import load_path
from envweave.session import AsyncDriver, Position
from envweave.session.episodes import with_autoreset
from envweave.session.kept_snapshots import KeptSnapshots
from envweave.types import ResetResult, StepResult
from envweave.workers.channel import Channel
from envweave.workers.deadlines import ClockedEnvironment, CodeClock
from envweave.workers.launch import WorkerLostError
from envweave.workers.main import WorkerInfo, make_host
from envweave.workers.pickling import (
    bind_main_classes,
    check_actions,
    fail_start,
    fail_step,
    load_definition,
    pack,
    pack_by_value,
    pack_failure,
    pack_reply,
    pickle_error,
)
from envweave.workers.rpc import SessionHost
from envweave.workers.shared_memory import SharedMemory

MAKE = "envweave.backends.inproc:connect_pool"
"""What makes the environments here; it is in a layer above, so it is named, not imported."""


class CallParams(NamedTuple):
    """The parameters of a call.

    Attributes:
        args: The positional arguments of the method.
        keywords: Its keyword arguments.
        position: The position that the stream of episodes continues from, if an earlier worker
            had reached it.
    """

    args: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = {}
    position: Any = None


class SessionStatus(NamedTuple):
    """What goes with every reply of a session.

    Attributes:
        agents: Who takes part now.
        position: The position of the stream of episodes.
    """

    agents: list[str]
    position: Position

    @classmethod
    def read(cls, packed: bytes) -> SessionStatus:
        """Return the status that was received."""
        return cls(*pickle.loads(packed))  # noqa: S301 - from our own worker


@final
class PickledCalls:
    """Parameters and results as pickles. A `CallEncoding`.

    Args:
        received: What this end receives, for messages of errors.

    Attributes:
        by_value: Whether the worker cannot import some class of our parameters.
    """

    def __init__(self, received: str) -> None:
        self._received = received
        self.by_value = False

    def encode_call(self, params: CallParams) -> bytes:
        """Pickle the parameters of a call, for the worker.

        Raises:
            ActionError: The action of a step cannot be pickled.
        """
        try:
            return (pack_by_value if self.by_value else pack)(tuple(params))
        except Exception:
            check_actions(params.args)
            raise

    def encode_reply(self, value: Any) -> bytes:
        """Pickle a result, in the worker: without the private parts of tasks."""
        return pack_reply(value)

    def encode_error(self, error: Exception) -> bytes:
        """Pickle what a call raised, in the worker."""
        return pack_failure(error)

    def decode(self, packed: bytes | bytearray) -> Any:
        """Return what was pickled.

        Raises:
            WorkerLostError: It cannot be read, so the outcome of the call is unknown.
        """
        try:
            return pickle.loads(packed)  # noqa: S301 - from our own worker, or parent
        except Exception as error:
            raise WorkerLostError(
                f"{self._received} cannot be read: {format_error(error)}"
            ) from error

    def decode_error(self, packed: bytes) -> Exception:
        """Return what a call raised."""
        error: Exception = self.decode(packed)[1]
        return error


def run(channel: Channel, definition: bytearray, clock_fd: int) -> None:
    """Run sessions until the parent closes the connection."""
    os.set_inheritable(clock_fd, False)  # noqa: FBT003 - by position only
    clock = CodeClock(SharedMemory(clock_fd).words())
    sessions = make_host(channel, lambda: DriverSessions(clock, *load_definition(definition)))
    if sessions is not None:
        asyncio.run(_serve(channel, sessions))


async def _serve(channel: Channel, sessions: DriverSessions) -> None:
    """Answer until the parent closes the connection, then close every environment."""
    host = SessionHost(sessions, PickledCalls("a call"))
    host.open(channel.connection)
    await host.wait()
    await host.cancel_all()
    await sessions.close()


@final
class DriverSessions:
    """The sessions of one worker: calls are calls of their drivers. See `Sessions`.

    The calls of one session run one after the other.
    """

    def __init__(
        self,
        clock: CodeClock,
        spec: EnvSpec,
        kwargs: Mapping[str, Any],
        options: MakeOptions,
        rows: range,
        size: int,
    ) -> None:
        self._clock = clock
        self._definition = spec, kwargs, options
        self._share = rows.start, size
        made = self._make(range(len(rows)))
        self._drivers: dict[int, AsyncDriver] = dict(enumerate(made))
        self._count = len(rows)
        self._kept = KeptSnapshots()
        self._last: dict[int, asyncio.Task[Any] | None] = {}  # the last call of each session
        bind_main_classes(self._drivers[0].interface)

    def _make(self, sessions: range) -> list[AsyncDriver]:
        """Make the environments of these sessions."""
        spec, kwargs, options = self._definition
        wrap = None
        if options.timeout_s is not None:
            first, clock = sessions.start, self._clock
            wrap = lambda i, env: ClockedEnvironment(env, clock, first + i)  # noqa: E731
        drivers: list[AsyncDriver] = load_path(MAKE)(
            spec, kwargs, options, len(sessions), wrap=wrap, share=self._share
        )
        return drivers

    @property
    def info(self) -> WorkerInfo:
        """What the parent needs to know first."""
        return WorkerInfo(self._drivers[0].interface, self._drivers[0].tasks)

    async def call(self, method: str, session: int, params: Any, _: float | None = None) -> Any:
        """Call a method of a session's driver, after the calls before it."""
        args, keywords, position = params
        previous = self._last.get(session)
        self._last[session] = asyncio.current_task()
        if previous is not None and not previous.done():
            await asyncio.wait([previous])
        driver = self._drivers.get(session)
        if driver is None:  # a sibling, which is made when it is first called
            driver = self._drivers[session] = self._make(range(session, session + 1))[0]
        if position is not None:
            driver.session.resume_from(position)
        if method == "snapshot":
            self._kept.drop(*args)
            return self._kept.keep(await driver.snapshot())
        if method == "restore":
            args = tuple(map(self._kept.get, args))
        elif method == "close" and session >= self._count:
            del self._drivers[session], self._last[session]
        return await getattr(driver, method)(*args, **keywords)

    async def replace(self, session: int, value: Any, _: Exception) -> Any:
        """Return a result with failures in place of what cannot be pickled."""
        return await _sendable(self._drivers[session], value)

    def status(self, session: int) -> bytes:
        """Return the `SessionStatus`, pickled: a seed may be any whole number."""
        driver = self._drivers.get(session) or self._drivers[0]  # one that was closed, or not made
        status = driver.agents, driver.session.position
        return pickle.dumps(status, pickle.HIGHEST_PROTOCOL)

    def notify(self, method: str, session: int) -> None:
        """Do nothing: every call of a driver has a reply."""

    def abandon(self, session: int) -> None:
        """The call that could not be cancelled counts as never answered."""
        self._drivers[session].session.abandon()

    async def close(self) -> None:
        """Close every environment."""
        closing = [driver.close() for driver in self._drivers.values()]
        await asyncio.gather(*closing, return_exceptions=True)


async def _sendable(driver: AsyncDriver, value: Any) -> Any:
    """Return what a call returned, with failures in place of what cannot be pickled."""
    session = driver.session
    if isinstance(value, ResetResult):
        failure = fail_start(session, value)
        if isinstance(failure, Exception):
            raise failure
    if isinstance(value, StepResult):
        result = fail_step(session, value)
        if result.ready is not None or not session.autoreset:
            return result
        try:
            return with_autoreset(result, fail_start(session, await driver.reset()))
        except ResetFailedError as error:
            return with_autoreset(result, error)
    raise StateFailedError(f"The state cannot be sent to another process: {pickle_error(value)}")

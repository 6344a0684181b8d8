"""One worker process, as its server sees it: started, asked, found dead, ended."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, final

from envweave.errors import EnvWeaveError, StartupError
from envweave.server.env_factory import CLOSE_S
from envweave.server.runtime.framing import FrameConnection
from envweave.wire.description import Description, read_description
from envweave.wire.encoding import MSGPACK
from envweave.wire.faults import error_of
from envweave.wire.messages import WireFault
from envweave.workers.channel import LENGTH, pack
from envweave.workers.launch import boot, ending
from envweave.workers.worker_process import interpreter_flags

logger = logging.getLogger("envweave.server")

START_S = 120.0
"""How long a worker process may take to make its first environment."""

END_S = 15.0
"""How long a worker process may take to close its environments."""

OVERDUE_S = 1.0
"""How long after a call should have been answered its worker process is asked for it."""

SILENT_S = 5.0
"""How long a worker process may say nothing when a call is overdue and it is asked for it."""

_PING = -1  # the number of every ping, and of its answer

_BOOT = boot("a worker process of an envweave server", "envweave.server.runtime.worker_main")


class WorkerGoneError(Exception):
    """A worker process is gone. The message says how. Never leaves the server's own modules."""


class ServerWorkerReply(NamedTuple):
    """What a worker says to a call.

    Attributes:
        result: What came of it, packed.
        fault: Why nothing did.
        is_live: Whether an episode is running.
        position: Where the stream of episodes stands.
    """

    result: bytes
    fault: Any = None
    is_live: bool = False
    position: Any = None

    def value(self) -> Any:
        """Return the result.

        Raises:
            EnvWeaveError: There is a fault instead, or it cannot be read.
        """
        if self.fault is not None:
            raise error_of(WireFault(code=self.fault[0], message=self.fault[1]))
        return MSGPACK.decode(self.result)


class _Awaited(NamedTuple):
    """A call that is under way.

    Attributes:
        future: Who waits for it.
        note: Told of the answer, whether somebody waits or not.
        due_s: When it should have been answered; `None` if it may take any time.
    """

    future: asyncio.Future[ServerWorkerReply]
    note: Callable[[ServerWorkerReply], None] | None
    due_s: float | None


@final
class ServerWorkerProcess:
    """A process that runs sessions.

    Attributes:
        sessions: How many it has.
        stuck: How many calls past their deadline could not be stopped there, and still run.
        is_leaving: Whether it is to have no more sessions.
        gone: How it ended; `None` while it is there.

    Args:
        changed: Called when it is gone, and when `stuck` has changed.
    """

    def __init__(self, changed: Callable[[ServerWorkerProcess], None]) -> None:
        self._changed = changed
        self._awaited: dict[int, _Awaited] = {}
        self._numbers = itertools.count(1)
        self._hello: asyncio.Future[Description] = asyncio.get_running_loop().create_future()
        self._pinged_s: float | None = None
        self._is_dying = False
        self.sessions = 0
        self.stuck = 0
        self.is_leaving = False
        self.gone: str | None = None
        self.is_gone = asyncio.Event()
        self._ours, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this very interpreter
                [sys.executable, *interpreter_flags(), "-c", _BOOT, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=2,  # the server's own output is its own
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # a Ctrl-C is for the server, which tells its workers
            )
            self._pidfd = self._open_pidfd()
        except BaseException:
            self._ours.close()
            raise
        finally:
            theirs.close()
        self._watching: asyncio.Task[None] | None = None
        self._dying: asyncio.Task[None] | None = None

    def _open_pidfd(self) -> int | None:
        if not hasattr(os, "pidfd_open"):
            return None
        try:
            return os.pidfd_open(self._process.pid)
        except OSError:
            self._kill()
            self._process.wait()
            raise

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    async def start(self, definition: bytes) -> Description:
        """Tell it what to run; return what that is.

        Raises:
            EnvWeaveError: It could not make an environment, or ended, or took too long.
        """
        loop = asyncio.get_running_loop()
        told = {
            "parent": os.getpid(),
            "logs": (
                logging.root.manager.disable,
                logging.getLogger("envweave").getEffectiveLevel(),
            ),
        }
        paths = json.dumps([path for path in sys.path if isinstance(path, str)]).encode()
        first = b"".join(LENGTH.pack(len(one)) + one for one in (paths, pack(told), definition))
        self._ours.setblocking(False)  # noqa: FBT003 - by position only
        transport, self._connection = await loop.create_connection(
            lambda: FrameConnection(self._heard, self._lost), sock=self._ours
        )
        transport.write(first)
        if self._pidfd is not None:
            # A copy of the worker, forked, may hold the connection longer than the worker lives.
            loop.add_reader(self._pidfd, self._lost)
        self._watching = asyncio.ensure_future(self._watch())
        try:
            async with asyncio.timeout(START_S):
                return await self._hello
        except TimeoutError:
            raise StartupError(
                f"A worker process made no environment within {START_S:g} s."
            ) from None
        except WorkerGoneError as loss:
            raise StartupError(f"A worker process could not start: {loss}.") from None

    async def call(
        self,
        method: str,
        session: int,
        params: Any,
        timeout_s: float | None = None,
        note: Callable[[ServerWorkerReply], None] | None = None,
    ) -> ServerWorkerReply:
        """Have something done, and return what it says to it.

        Raises:
            WorkerGoneError: It is gone.
        """
        if self.gone is not None:
            raise WorkerGoneError(self.gone)
        number = next(self._numbers)
        future: asyncio.Future[ServerWorkerReply] = asyncio.get_running_loop().create_future()
        due_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._awaited[number] = _Awaited(future, note, due_s)
        self._connection.send([number, method, session, MSGPACK.encode(params), timeout_s])
        return await future

    async def close_session(self, session: int) -> None:
        """Have a session closed; if nothing comes of it, end the process.

        Raises:
            WorkerGoneError: It is gone, and with it the session.
        """
        # The worker itself sees to it that no environment's close() takes longer.
        limit_s = 3 * CLOSE_S
        try:
            async with asyncio.timeout(limit_s):
                await self.call("close", session, {}, CLOSE_S)
        except TimeoutError:
            self.end(
                f"its worker process {self.pid} closed no session within {limit_s:g} s, and was "
                "ended"
            )
            await self.is_gone.wait()

    def tell(self, method: str, *about: Any, number: int = 0) -> None:
        """Say something that has no answer; to nobody, if it is gone."""
        if self.gone is None:
            self._connection.send([number, method, *about])

    def _heard(self, message: Any) -> None:
        try:
            self._take(message)
        except Exception:
            # Somebody may wait for what this was, and must not wait for ever.
            logger.exception("worker process %d said what cannot be read", self.pid)
            self.end(f"its worker process {self.pid} said what cannot be read, and was ended")

    def _take(self, message: Any) -> None:
        number, *rest = message
        self._pinged_s = None
        if number == _PING:
            return
        if number:
            awaited = self._awaited.pop(number)
            answer = ServerWorkerReply(*rest)
            if awaited.note is not None:
                awaited.note(answer)
            if not awaited.future.done():
                awaited.future.set_result(answer)
        elif not self._hello.done():
            try:
                self._hello.set_result(read_description(ServerWorkerReply(*rest).value()))
            except EnvWeaveError as error:
                self._hello.set_exception(error)
        else:
            self.stuck = ServerWorkerReply(*rest).value()
            self._changed(self)

    async def _watch(self) -> None:
        """End a process that says nothing though calls are overdue: code may hold its loop."""
        while True:
            await asyncio.sleep(SILENT_S / 5)
            now = time.monotonic()
            due = [one.due_s for one in self._awaited.values() if one.due_s is not None]
            if not due or min(due) + OVERDUE_S > now:
                continue
            if self._pinged_s is None:
                self._pinged_s = now
                self.tell("ping", number=_PING)
            elif now - self._pinged_s > SILENT_S:
                self.end(f"its worker process {self.pid} did not answer any more, and was ended")
                return

    # The end

    def _lost(self) -> None:
        """The process has hung up, or is no more."""
        if not self._is_dying:
            self._die(None)

    def end(self, why: str) -> None:
        """End the process and all that it started, at once. May be called twice."""
        if not self._is_dying:
            self._kill()
            self._die(why)

    def _die(self, why: str | None) -> None:
        self._is_dying = True
        self._dying = asyncio.ensure_future(self._bury(why))

    async def _bury(self, why: str | None) -> None:
        """Find out how it ended, leave nothing of it behind, and tell who waits."""
        if self._pidfd is not None:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
        if self._watching is not None:
            self._watching.cancel()
        ends_s = time.monotonic() + 1.0  # it has hung up, so it is about to end by itself
        while self._process.poll() is None and time.monotonic() < ends_s:
            await asyncio.sleep(0.002)
        self._kill()
        while self._process.poll() is None:
            await asyncio.sleep(0.002)
        self.gone = ending(self._process.returncode, self.pid) if why is None else why
        with contextlib.suppress(AttributeError):  # it had not come so far
            self._connection.close()
        self._ours.close()
        loss = WorkerGoneError(self.gone)
        awaited, self._awaited = self._awaited, {}
        for one in awaited.values():
            if not one.future.done():
                one.future.set_exception(loss)
        if not self._hello.done():
            self._hello.set_exception(loss)
        self.is_gone.set()
        self._changed(self)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def close(self) -> None:
        """Let it close its environments and end; end it if that takes too long."""
        self.is_leaving = True
        if not self._hello.done() or self._hello.cancelled() or self._hello.exception():
            self.end("the server is stopping")
        else:
            self.tell("end")
        try:
            async with asyncio.timeout(END_S):
                await self.is_gone.wait()
        except TimeoutError:
            logger.warning("worker process %d did not end within %g s", self.pid, END_S)
            self.end("the server is stopping")
            await self.is_gone.wait()

"""A session for a blocking caller: no thread of its own, and no event loop."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, final

from envweave.errors import BranchError, BusyError, SandboxError
from envweave.lifetime import OwnerProcess
from envweave.sandbox.limits import Limits
from envweave.sandbox.processes.polling import WATCH_S, SocketPoller
from envweave.sandbox.processes.process import SessionHandle
from envweave.sandbox.protocol import termination
from envweave.sandbox.protocol.broker import LATE, ToolInvocation
from envweave.sandbox.protocol.session_protocol import SessionProtocol, SessionReply
from envweave.sandbox.protocol.termination import TerminationError
from envweave.sandbox.results import ExecutionResult
from envweave.sandbox.session_base import (
    SessionFinalizer,
    closed,
    forked,
    has_hung_up,
    standing,
    wake,
    wake_to_branch,
)
from envweave.sandbox.tools import SandboxTools, described

_CLOSE_S = 5.0
_SEND_FLAGS = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)  # macOS has none


@final
class Session:
    """Runs code, one piece after the other, in a process of its own behind the sandbox's walls.

    Variables, imports and files last from one `run` to the next. Made by `Sandbox.session`.

    One call at a time: a second one from another thread is refused; `interrupt` and `close` may
    come from any thread. A caller that is itself interrupted in the middle of a call, by Ctrl-C
    say, leaves a session of which nobody knows how far it came: it is killed, and later calls
    raise `SessionLostError`.

    Args:
        body: Its process, whose `Ready` has been read.
        limits: What it may use.
        tools: What its code may call. A function runs in the thread that called `run`, and its
            time counts; an `async` one on a thread of the tools, and is cancelled at the deadline.
        work: The work folder, as the code sees it.
        explain: See `SessionProtocol`.
        on_close: Called once, after the process is gone.
        adopt: Makes the session of a branch; without it, branches are like this one.
    """

    def __init__(
        self,
        body: SessionHandle,
        limits: Limits,
        tools: SandboxTools,
        *,
        work: str | None = None,
        explain: Callable[[str], str | None] | None = None,
        on_close: Callable[[], None] | None = None,
        adopt: Callable[[SessionHandle], Session] | None = None,
    ) -> None:
        self._body = body
        self._tools = tools
        self._work = work
        self._adopt = adopt
        self._talk = SessionProtocol(limits, tools, work=work, explain=explain)
        self._socket = body.socket
        self._patience = SocketPoller(body.socket)
        self._look_s = 0.0
        self._owner = OwnerProcess()
        self._lock = threading.Lock()  # held by the call under way, and while letting go
        self._thread = 0
        self._is_closed = False
        self._letting_go = SessionFinalizer(body, on_close)
        body.watch(self._talk, self._lock)
        self._unclosed = self._letting_go.guard(self)

    def run(self, code: str, *, timeout_s: float | None = None) -> ExecutionResult:
        """Run code, and return what it came to. Whatever the code does, this does not raise.

        Args:
            code: Python. If its last statement is an expression, that is the return value.
            timeout_s: How long it may take; `None` for the sandbox's limit. It is interrupted
                then, and keeps its variables; if it goes on, the session is killed.

        Raises:
            SessionEndedError: An earlier run ended the session.
            SessionLostError: The session is gone, and its code did not do it.
            BusyError: Another call is under way.
            ClosedError: The session is closed.
        """
        self._enter("run")
        try:
            frame = self._talk.start_run(code, timeout_s)
            if type(frame) is ExecutionResult:
                return frame
            return self._converse(frame)  # type: ignore[no-any-return, arg-type]
        finally:
            self._leave()

    def get(self, name: str) -> Any:
        """Return the value of a variable, as plain data.

        Raises:
            NameNotFoundError: There is none of this name.
            PlainDataError: Its value is not plain data; the message says which part.
            SandboxError: The session is gone, as for `run`.
        """
        return self._ask("get", self._talk.start_get, name)

    def put(self, name: str, value: Any) -> None:
        """Set a variable to plain data.

        Raises:
            PlainDataError: The value is not plain data; nothing was set.
            OptionError: It is too large, or no variable can have this name; nothing was set.
            SandboxError: The session is gone, as for `run`.
        """
        self._ask("put", self._talk.start_put, name, value)

    def read_file(self, path: str) -> bytes:
        """Return what a file of the work folder holds.

        Raises:
            WorkFileError: There is no such file, or it cannot be read.
            OptionError: The path leads out of the work folder.
            SandboxError: The session is gone, as for `run`.
        """
        return self._ask("read_file", self._talk.start_read, path)  # type: ignore[no-any-return]

    def write_file(self, path: str, data: bytes) -> None:
        """Write a file of the work folder, and the folders above it.

        Raises:
            WorkFileError: It cannot be written, for want of space say.
            OptionError: The path leads out of the work folder, or the data is too large.
            SandboxError: The session is gone, as for `run`.
        """
        self._ask("write_file", self._talk.start_write, path, data)

    def list_files(self, path: str = ".") -> list[str]:
        """Return the paths of the files below a folder, relative to the work folder, sorted.

        Raises:
            WorkFileError: There is no such folder.
            OptionError: The path leads out of the work folder.
            SandboxError: The session is gone, as for `run`.
        """
        return self._ask("list_files", self._talk.start_list, path)  # type: ignore[no-any-return]

    def branch(self, seed: int | None = None) -> Session:
        """Return a live copy: the same variables and files, and from here on a life of its own.

        Args:
            seed: Of the copy's `random` and numpy; `None` draws from the system.

        Raises:
            BranchError: This session cannot be copied.
            SandboxError: The session is gone, as for `run`.
        """
        self._enter("branch")
        try:
            deadline_s = self._talk.prepare_branch(seed)
            wake_to_branch(self._body, self._talk)
            self._patience.lend()
            try:
                body = self._body.branch(seed, deadline_s)
            except SandboxError as error:
                if not isinstance(error, BranchError) or has_hung_up(self._socket):
                    self._talk.ending = termination.of_branch(error)
                    self._body.kill()
                raise
            except BaseException:
                self._abandon()
                raise
            finally:
                self._socket.setblocking(True)  # noqa: FBT003 - the standard library's
        finally:
            self._leave()
        if self._adopt is not None:
            return self._adopt(body)
        return Session(body, self._talk.limits, self._tools, work=self._work)

    def interrupt(self) -> None:
        """Interrupt the code that runs, from another thread or a signal handler.

        It ends with an exception that the result calls `Interrupted`, and keeps its variables. If
        it goes on regardless, the session is killed when the grace period is over. Harmless when
        nothing runs.
        """
        if self._talk.is_open and self._owner.is_current:
            self._talk.hurry()
            self._body.interrupt()

    @property
    def alive(self) -> bool:
        """Whether code can be run here: the session is not closed, ended or lost."""
        if self._is_closed or self._talk.ending is not None:
            return False
        return not has_hung_up(self._socket)

    def close(self) -> None:
        """End the session and everything in it. May be called twice, and from any thread."""
        self._is_closed = True
        if not self._owner.is_current:
            self._unclosed.disarm()
            return
        if self._letting_go.is_done:
            return
        self._body.kill()
        # A call under way in another thread reads from the descriptor; it sees the end now.
        wait_s = 0.0 if self._thread == threading.get_ident() else _CLOSE_S
        if self._lock.acquire(timeout=wait_s):
            try:
                self._let_go()
            finally:
                self._lock.release()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Session: {standing(self._talk, is_closed=self._is_closed)}>"

    def _enter(self, call: str) -> None:
        if not self._owner.is_current:
            raise forked(call)
        if not self._lock.acquire(blocking=False):
            raise BusyError(
                f"{call}() while another call on the same session is under way. Take one session "
                "for each thread; a tool cannot call the session that calls it."
            )
        if self._is_closed:
            self._leave()
            raise closed(call)
        self._thread = threading.get_ident()

    def _leave(self) -> None:
        self._thread = 0
        try:
            if self._is_closed:
                self._let_go()
        finally:
            self._lock.release()

    def _let_go(self) -> None:
        self._unclosed.disarm()
        self._letting_go()

    def _ask(self, call: str, start: Callable[..., bytes], *args: Any) -> Any:
        self._enter(call)
        try:
            reply: SessionReply = self._converse(start(*args))
        finally:
            self._leave()
        if reply.error is not None:
            raise reply.error
        return reply.value

    def _converse(self, frame: bytes) -> Any:
        """Send a call, do what the session asks for, and return what the call came to."""
        talk = self._talk
        self._look_s = talk.start_s + WATCH_S
        try:
            if self._body.is_stopped:
                wake(self._body, self._talk)
            self._send(frame)
            move = talk.next()  # what came between the calls
            while True:
                while move is not None:
                    kind = type(move)
                    if kind is ExecutionResult or kind is SessionReply:
                        return move
                    if kind is ToolInvocation:
                        move = self._answer(move)  # type: ignore[arg-type]
                    self._send(move)  # type: ignore[arg-type]
                    self._look(time.monotonic())
                    move = talk.next()
                move = talk.receive(self._receive())
        except TerminationError as over:
            ending = over.ending
        except BaseException:
            self._abandon()
            raise
        self._body.kill()
        return talk.end(termination.CLOSED if self._is_closed else ending)

    def _abandon(self) -> None:
        """Give up a session of which nobody knows how far it came."""
        self._talk.abandon()
        self._body.kill()

    def _answer(self, wanted: ToolInvocation) -> bytes:
        """Run a tool, and return what to send."""
        talk = self._talk
        error: Exception | None = None
        value = None
        try:
            if wanted.tool.is_async:
                left_s = talk.deadline_s - time.monotonic()
                value = self._tools.await_result(wanted.tool, wanted, left_s)
            else:
                value = wanted()
        except Exception as raised:  # noqa: BLE001 - a tool may raise anything; the code is told
            error = raised
        now_s = time.monotonic()
        if now_s >= talk.deadline_s:
            self._look(now_s)  # the code is interrupted before it can go on
            return talk.fail(wanted, LATE)
        return talk.answer(wanted, value) if error is None else talk.fail(wanted, described(error))

    def _look(self, now_s: float) -> None:
        """Interrupt code whose time is over, and look at the limits that only the host watches.

        Raises:
            EndingError: It was interrupted before, or is beyond another limit.
        """
        if self._is_closed:
            raise TerminationError(termination.CLOSED)
        if now_s >= self._talk.deadline_s:
            self._talk.due()
            self._body.interrupt()
        if now_s >= self._look_s:
            self._look_s = now_s + WATCH_S
            if self._talk.is_interrupted:
                self._body.interrupt()  # the first may have come before the code began
            excess = self._body.excess()
            if excess is not None:
                raise TerminationError(termination.of_excess(excess, self._talk.limits))

    def _receive(self) -> bytes:
        """Return what the session sends next.

        Raises:
            EndingError: It is gone, or must go.
        """
        talk = self._talk
        while True:
            now_s = time.monotonic()
            if now_s >= talk.deadline_s or now_s >= self._look_s:
                self._look(now_s)
            data = self._patience.read(talk.room(), talk.deadline_s - now_s)
            if data:
                return data
            if data is not None:
                raise TerminationError(termination.of_death(self._body.death()))

    def _send(self, frame: bytes) -> None:
        """Send a frame.

        Raises:
            EndingError: The session is gone, or does not read and must go.
        """
        rest = memoryview(frame)
        while rest:
            try:
                rest = rest[self._socket.send(rest, _SEND_FLAGS) :]
            except BlockingIOError:
                now_s = time.monotonic()
                self._look(now_s)
                self._patience.wait_for_room(self._talk.deadline_s - now_s)
            except OSError:
                raise TerminationError(termination.of_death(self._body.death())) from None

"""A session for a blocking caller. It uses no thread and no event loop of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, final

from envweave.errors import SandboxError
from envweave.sandbox.execution import ExecutionResult, Limits
from envweave.sandbox.processes.polling import WATCH_S, SocketPoller
from envweave.sandbox.processes.process import SessionHandle
from envweave.sandbox.protocol import termination
from envweave.sandbox.protocol.broker import LATE, ToolInvocation
from envweave.sandbox.protocol.session_protocol import SessionReply
from envweave.sandbox.protocol.termination import TerminationError
from envweave.sandbox.session_base import CLOSE_S, SEND_FLAGS, SessionBase
from envweave.sandbox.tools import SandboxTools, describe_error


@final
class Session(SessionBase["Session"]):
    """Runs pieces of code, one after the other, in its own process behind the sandbox's walls.

    Variables, imports and files persist from one `run` to the next. Made by `Sandbox.session`.

    One call at a time: a second one from another thread is refused; `interrupt` and `close` may
    be called from any thread. If the caller itself is interrupted in the middle of a call, by
    Ctrl-C for example, the state of the session is unknown: it is killed, and later calls raise
    `SessionLostError`.

    Args:
        handle: Its process, whose `Ready` has been read.
        limits: What it may use.
        tools: The host functions that its code may call. A function runs in the thread that called
            `run`, and its time counts; an `async` one runs on a thread of the tools, and is
            cancelled at the deadline.
        work: The work folder, as the code sees it.
        explain: See `SessionProtocol`.
        on_close: Called once, after the process is gone.
        adopt: Makes the session of a branch, given its tools; without it, branches are like this
            one.
    """

    _BUSY_HINT = "Use one session per thread; a tool cannot call the session that calls it."

    def __init__(
        self,
        handle: SessionHandle,
        limits: Limits,
        tools: SandboxTools,
        *,
        work: str | None = None,
        explain: Callable[[str], str | None] | None = None,
        on_close: Callable[[], None] | None = None,
        adopt: Callable[[SandboxTools, SessionHandle], Session] | None = None,
    ) -> None:
        super().__init__(
            handle, limits, tools, work=work, explain=explain, on_close=on_close, adopt=adopt
        )
        self._poller = SocketPoller(handle.socket)
        self._thread = 0  # the thread whose call is under way

    def run(
        self, code: str, *, timeout_s: float | None = None, counted: bool = True
    ) -> ExecutionResult:
        """Run code and return its result. Errors in the code are reported there, not raised.

        Args:
            code: Python. If its last statement is an expression, that is the return value.
            timeout_s: How long it may take; `None` for the sandbox's limit. Then it is
                interrupted and keeps its variables; if it continues, the session is killed.
            counted: Whether it is the next cell: tracebacks name its lines `<cell 3>`, and
                otherwise `<setup>`.

        Raises:
            SessionEndedError: An earlier run ended the session.
            SessionLostError: The session is gone, and not because of its code.
            BusyError: Another call is under way.
            ClosedError: The session is closed.
        """
        self._enter("run")
        self._thread = threading.get_ident()
        try:
            frame = self._protocol.start_run(code, timeout_s, counted=counted)
            if type(frame) is ExecutionResult:
                return frame
            return self._exchange(frame)  # type: ignore[no-any-return, arg-type]
        finally:
            self._leave()

    def get(self, name: str) -> Any:
        """Return the value of a variable, as plain data.

        Raises:
            NameNotFoundError: There is no variable of this name.
            PlainDataError: Its value is not plain data; the message says which part.
            SandboxError: The session is gone, as for `run`.
        """
        return self._request("get", self._protocol.start_get, name)

    def put(self, name: str, value: Any) -> None:
        """Set a variable to plain data.

        Raises:
            PlainDataError: The value is not plain data; nothing was set.
            OptionError: It is too large, or the name is not a valid identifier; nothing was set.
            SandboxError: The session is gone, as for `run`.
        """
        self._request("put", self._protocol.start_put, name, value)

    def read_file(self, path: str) -> bytes:
        """Return the content of a file in the work folder.

        Raises:
            WorkFileError: There is no such file, or it cannot be read.
            OptionError: The path leads out of the work folder.
            SandboxError: The session is gone, as for `run`.
        """
        return self._request("read_file", self._protocol.start_read, path)  # type: ignore[no-any-return]

    def write_file(self, path: str, data: bytes) -> None:
        """Write a file in the work folder, creating parent folders as needed.

        Raises:
            WorkFileError: It cannot be written, for lack of space for example.
            OptionError: The path leads out of the work folder, or the data is too large.
            SandboxError: The session is gone, as for `run`.
        """
        self._request("write_file", self._protocol.start_write, path, data)

    def list_files(self, path: str = ".") -> list[str]:
        """Return the paths of the files below a folder, relative to the work folder, sorted.

        Raises:
            WorkFileError: There is no such folder.
            OptionError: The path leads out of the work folder.
            SandboxError: The session is gone, as for `run`.
        """
        return self._request("list_files", self._protocol.start_list, path)  # type: ignore[no-any-return]

    def branch(
        self,
        seed: int | None = None,
        *,
        reseed: bool = True,
        strict: bool = False,
        tools: Mapping[str, Callable[..., Any]] | None = None,
    ) -> Session:
        """Return a live copy: the same variables and files, independent from now on.

        Threads, asyncio tasks and timers of the code stay in this session. What it has mapped
        (`mmap`), and pipes, sockets and files outside the work folder that it has open, are shared
        with the copy.

        Args:
            seed: Seeds `random` and numpy in the copy; `None` seeds from the system.
            reseed: With `False`, `random` and numpy continue in the copy as they would here.
            strict: Whether to refuse a session that has any of these.
            tools: Replaces the functions of the host that the copy calls, by the same names.

        Raises:
            BranchError: This session cannot be copied.
            OptionError: An option is not valid.
            SandboxError: The session is gone, as for `run`.
        """
        self._enter("branch")
        self._thread = threading.get_ident()
        try:
            table = self._tools_for_branch(tools)
            deadline_s = self._start_branch(seed, reseed=reseed)
            self._poller.make_blocking()
            try:
                handle = self._handle.branch(seed, deadline_s, reseed=reseed, strict=strict)
            except SandboxError as error:
                self._branch_failed(error)
                raise
            except BaseException:
                self._abandon()
                raise
            finally:
                self._socket.setblocking(True)  # noqa: FBT003 - the standard library's
        finally:
            self._leave()
        if self._adopt is not None:
            return self._adopt(table, handle)
        return Session(handle, self._protocol.limits, table, work=self._work)

    def close(self) -> None:
        """End the session and everything in it. May be called twice, and from any thread."""
        if not self._start_close():
            return
        # A call under way in another thread reads from the socket, and sees its end now.
        wait_s = 0.0 if self._thread == threading.get_ident() else CLOSE_S
        if self._lock.acquire(timeout=wait_s):
            try:
                self._release_process()
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

    def _leave(self) -> None:
        self._thread = 0
        try:
            if self._is_closed:
                self._release_process()
        finally:
            self._lock.release()

    def _request(self, call: str, start: Callable[..., bytes], *args: Any) -> Any:
        self._enter(call)
        self._thread = threading.get_ident()
        try:
            reply: SessionReply = self._exchange(start(*args))
        finally:
            self._leave()
        if reply.error is not None:
            raise reply.error
        return reply.value

    def _exchange(self, frame: bytes) -> Any:
        """Send a call, serve the session's tool calls, and return the result or reply."""
        protocol = self._protocol
        self._next_check_s = protocol.start_s + WATCH_S
        try:
            if self._handle.is_stopped:
                self._wake()
            self._send(frame)
            move = protocol.next()  # messages that arrived between calls
            while True:
                while move is not None:
                    kind = type(move)
                    if kind is ExecutionResult or kind is SessionReply:
                        return move
                    if kind is ToolInvocation:
                        move = self._run_tool(move)  # type: ignore[arg-type]
                    self._send(move)  # type: ignore[arg-type]
                    self._check_limits(time.monotonic())
                    move = protocol.next()
                move = protocol.receive(self._receive())
        except TerminationError as error:
            reason = error.termination
        except BaseException:
            self._abandon()
            raise
        self._handle.kill()
        return protocol.end(termination.CLOSED if self._is_closed else reason)

    def _run_tool(self, invocation: ToolInvocation) -> bytes:
        """Run a tool, and return the frame to send."""
        protocol = self._protocol
        error: Exception | None = None
        value = None
        try:
            if invocation.tool.is_async:
                left_s = protocol.deadline_s - time.monotonic()
                value = self._tools.await_result(invocation.tool, invocation, left_s)
            else:
                value = invocation()
        except Exception as raised:  # noqa: BLE001 - a tool may raise anything; the code gets it
            error = raised
        now_s = time.monotonic()
        if now_s >= protocol.deadline_s:
            self._check_limits(now_s)  # interrupts the code before it can continue
            return protocol.fail(invocation, LATE)
        if error is None:
            return protocol.answer(invocation, value)
        return protocol.fail(invocation, describe_error(error))

    def _receive(self) -> bytes:
        """Return what the session sends next.

        Raises:
            TerminationError: It is gone, or must be killed.
        """
        protocol = self._protocol
        while True:
            now_s = time.monotonic()
            if now_s >= protocol.deadline_s or now_s >= self._next_check_s:
                self._check_limits(now_s)
            data = self._poller.read(protocol.read_size(), protocol.deadline_s - now_s)
            if data:
                return data
            if data is not None:
                raise TerminationError(termination.of_exit(self._handle.exit_reason()))

    def _send(self, frame: bytes) -> None:
        """Send a frame.

        Raises:
            TerminationError: The session is gone, or does not read and must be killed.
        """
        rest = memoryview(frame)
        while rest:
            try:
                rest = rest[self._socket.send(rest, SEND_FLAGS) :]
            except BlockingIOError:
                now_s = time.monotonic()
                self._check_limits(now_s)
                self._poller.wait_writable(self._protocol.deadline_s - now_s)
            except OSError:
                raise TerminationError(termination.of_exit(self._handle.exit_reason())) from None

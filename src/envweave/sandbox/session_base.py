"""The base of `Session` and `AsyncSession`: state, checks and decisions that involve no waiting."""

from __future__ import annotations

import select
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar, final

from envweave.errors import (
    BranchError,
    BusyError,
    CallOrderError,
    ClosedError,
    OptionError,
    SandboxError,
)
from envweave.lifetime import AtExit, CloseGuard, OwnerProcess
from envweave.sandbox.execution import Limits
from envweave.sandbox.processes.polling import WATCH_S
from envweave.sandbox.processes.process import SessionHandle
from envweave.sandbox.protocol import termination
from envweave.sandbox.protocol.session_protocol import SessionProtocol
from envweave.sandbox.protocol.termination import TerminationError
from envweave.sandbox.tools import SandboxTools

CLOSE_S = 5.0
"""How long `close` waits for a call under way to notice."""

SEND_FLAGS = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)  # macOS has no MSG_NOSIGNAL

SessionT = TypeVar("SessionT")


class SessionBase(ABC, Generic[SessionT]):
    """What a session is to both kinds of callers. Subclasses do the waiting.

    Args:
        handle: Its process, whose `Ready` has been read.
        limits: What it may use.
        tools: The host functions that its code may call.
        work: The work folder, as the code sees it.
        explain: See `SessionProtocol`.
        on_close: Called once, after the process is gone.
        adopt: Makes the session of a branch, given its tools; without it, branches are like this
            one.
    """

    _BUSY_HINT: ClassVar[str]

    def __init__(
        self,
        handle: SessionHandle,
        limits: Limits,
        tools: SandboxTools,
        *,
        work: str | None = None,
        explain: Callable[[str], str | None] | None = None,
        on_close: Callable[[], None] | None = None,
        adopt: Callable[[SandboxTools, SessionHandle], SessionT] | None = None,
    ) -> None:
        self._handle = handle
        self._tools = tools
        self._work = work
        self._adopt = adopt
        self._protocol = SessionProtocol(limits, tools, work=work, explain=explain)
        self._socket = handle.socket
        self._next_check_s = 0.0
        self._owner = OwnerProcess()
        self._lock = threading.Lock()  # held by the call under way, and while releasing the process
        self._is_closed = False
        self._finalizer = SessionFinalizer(handle, on_close)
        handle.watch(self._protocol, self._lock)
        self._drop_guard = CloseGuard(
            self,
            self._finalizer,
            "A sandbox session was dropped without close(). Use it in a `with` block, or close it.",
            at_exit=AtExit.NOTHING,
        )

    def __repr__(self) -> str:
        if self._is_closed:
            state = "closed"
        elif self._protocol.termination is not None:
            state = f"gone, {self._protocol.termination.type}"
        else:
            state = "busy" if self._protocol.is_open else "idle"
        return f"<{type(self).__name__}: {state}>"

    def interrupt(self) -> None:
        """Interrupt the running code, from another thread or a signal handler.

        The code ends with an exception that the result calls `Interrupted`, and keeps its
        variables. If it continues regardless, the session is killed after the grace period. Does
        nothing when no code is running.
        """
        if self._protocol.is_open and self._owner.is_current:
            self._protocol.request_interrupt()
            self._handle.interrupt()

    def end(self) -> None:
        """Kill the session and everything in it, from any thread and without an event loop.

        `close` also waits for a call under way to notice. Harmless twice.
        """
        # A call under way holds the lock, and releases the process when it leaves.
        if self._start_close() and self._lock.acquire(blocking=False):
            try:
                self._release_process()
            finally:
                self._lock.release()

    @property
    def alive(self) -> bool:
        """Whether code can be run here: the session is not closed, ended or lost."""
        if self._is_closed or self._protocol.termination is not None:
            return False
        return not has_hung_up(self._socket)

    def _enter(self, call: str) -> None:
        """Begin a call: take the lock, or raise."""
        if not self._owner.is_current:
            raise CallOrderError(
                f"{call}() on a session that was made before this process was forked, and belongs "
                "to its parent. Make a sandbox in this process."
            )
        if not self._lock.acquire(blocking=False):
            raise BusyError(
                f"{call}() while another call on the same session is under way. {self._BUSY_HINT}"
            )
        if self._is_closed:
            self._leave()
            raise ClosedError(f"{call}() on a closed session. Open a new session.")

    @abstractmethod
    def _leave(self) -> None:
        """End a call: give back the lock, and release the process if `close` came meanwhile."""

    def _start_close(self) -> bool:
        """Mark as closed and kill the process; return whether it is still to be released."""
        self._is_closed = True
        if not self._owner.is_current:
            self._drop_guard.disarm()
            return False
        if self._finalizer.is_done:
            return False
        self._handle.kill()
        return True

    def _release_process(self) -> None:
        self._drop_guard.disarm()
        self._finalizer()

    def _wake(self) -> None:
        """Wake a session that was stopped while no call was under way.

        Raises:
            TerminationError: It was killed then, for a limit that it exceeded.
        """
        excess = self._handle.wake()
        if excess is not None:
            raise TerminationError(termination.of_excess(excess, self._protocol.limits))

    def _tools_for_branch(self, tools: Mapping[str, Callable[..., Any]] | None) -> SandboxTools:
        """Return the tools of a branch: these, or others of the same names."""
        if tools is None:
            return self._tools
        table = SandboxTools(tools)
        if set(table.names()) != set(self._tools.names()):
            raise OptionError(
                f"branch(tools=…) has the tools {', '.join(table.names()) or 'none'}, but the code "
                f"knows {', '.join(self._tools.names()) or 'none'}. Pass functions with the same "
                "names."
            )
        return table

    def _start_branch(self, seed: Any, *, reseed: bool) -> float:
        """Make sure that the session can be copied now; return the deadline for that.

        Raises:
            SandboxError: It cannot, or was killed while no call was under way.
        """
        deadline_s = self._protocol.prepare_branch(seed, reseed=reseed)
        try:
            self._wake()
        except TerminationError as error:
            self._protocol.termination = error.termination
            self._handle.kill()
            raise error.termination.error("branch()") from None
        return deadline_s

    def _branch_failed(self, error: SandboxError) -> None:
        """Kill the session, unless it survived an attempt to copy it."""
        if not isinstance(error, BranchError) or has_hung_up(self._socket):
            self._protocol.termination = termination.of_branch(error)
            self._handle.kill()

    def _abandon(self) -> None:
        """Kill a session in the middle of a call: its state is unknown."""
        self._protocol.abandon()
        self._handle.kill()

    def _check_limits(self, now_s: float) -> None:
        """Interrupt code that is out of time, and check the limits that only the host can see.

        Raises:
            TerminationError: It was interrupted before, or exceeds another limit.
        """
        if self._is_closed:
            raise TerminationError(termination.CLOSED)
        protocol = self._protocol
        if now_s >= protocol.deadline_s:
            protocol.on_deadline()
            self._handle.interrupt()
        if now_s >= self._next_check_s:
            self._next_check_s = now_s + WATCH_S
            if protocol.is_interrupted:
                self._handle.interrupt()  # the first signal may have come before the code began
            excess = self._handle.excess()
            if excess is not None:
                raise TerminationError(termination.of_excess(excess, protocol.limits))


@final
class SessionFinalizer:
    """Releases a session's process and calls `on_close`, once. Does nothing in a forked child.

    Attributes:
        owner: The process that made the session.
        is_done: Whether it was called.
    """

    def __init__(self, handle: SessionHandle, on_close: Callable[[], None] | None) -> None:
        self.owner = OwnerProcess()
        self.is_done = False
        self._handle = handle
        self._on_close = on_close
        self._lock = threading.Lock()  # protects `is_done`

    def __call__(self) -> bool:
        """Release the process; return whether that was left to do. Harmless twice."""
        with self._lock:
            if self.is_done or not self.owner.is_current:
                return False
            self.is_done = True
        try:
            self._handle.release()
        finally:
            if self._on_close is not None:
                self._on_close()
        return True


def has_hung_up(connection: socket.socket) -> bool:
    """Whether the other end of a socket is gone."""
    poll = select.poll()
    poll.register(connection, 0)  # POLLHUP is always reported
    return bool(poll.poll(0))

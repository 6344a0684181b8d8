"""How a session's process is let go of, and what a caller is told who comes too late."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from typing import final

from envweave.errors import CallOrderError, ClosedError
from envweave.lifetime import AtExit, CloseGuard, OwnerProcess
from envweave.sandbox.processes.process import SessionHandle
from envweave.sandbox.protocol import termination
from envweave.sandbox.protocol.session_protocol import SessionProtocol
from envweave.sandbox.protocol.termination import TerminationError


@final
class SessionFinalizer:
    """Releases a body and tells whoever wants to know, once. A forked copy of the host does not.

    Attributes:
        owner: The process whose session it is.
        is_done: Whether it was called.
    """

    def __init__(self, body: SessionHandle, on_close: Callable[[], None] | None) -> None:
        self.owner = OwnerProcess()
        self.is_done = False
        self._body = body
        self._on_close = on_close
        self._lock = threading.Lock()  # protects `is_done`

    def __call__(self) -> bool:
        """Release the session; return whether that was left to do. Harmless twice."""
        with self._lock:
            if self.is_done or not self.owner.is_current:
                return False
            self.is_done = True
        try:
            self._body.release()
        finally:
            if self._on_close is not None:
                self._on_close()
        return True

    def guard(self, session: object) -> CloseGuard:
        """Return a guard that releases a session which is dropped without `close()`."""
        return CloseGuard(
            session,
            self,
            "A sandbox session was dropped without close(). Use it in a `with` block, or close it.",
            at_exit=AtExit.NOTHING,
        )


def has_hung_up(line: socket.socket) -> bool:
    """Whether the other end of a socket is gone."""
    waiting = select.poll()
    waiting.register(line, 0)  # the end is told unasked
    return bool(waiting.poll(0))


def wake(body: SessionHandle, talk: SessionProtocol) -> None:
    """Wake a session that was stopped while no call was under way.

    Raises:
        EndingError: It was ended then, for a limit that it passed.
    """
    excess = body.wake()
    if excess is not None:
        raise TerminationError(termination.of_excess(excess, talk.limits))


def wake_to_branch(body: SessionHandle, talk: SessionProtocol) -> None:
    """Wake a session, if it was stopped, so that it can be copied.

    Raises:
        SandboxError: It was ended while no call was under way.
    """
    try:
        wake(body, talk)
    except TerminationError as over:
        talk.ending = over.ending
        body.kill()
        raise over.ending.error("branch()") from None


def forked(call: str) -> CallOrderError:
    """Return the error for a call in a forked copy of the host."""
    return CallOrderError(
        f"{call}() on a session that was made before this process was forked, and belongs to its "
        "parent. Make a sandbox in this process."
    )


def closed(call: str) -> ClosedError:
    """Return the error for a call on a closed session."""
    return ClosedError(f"{call}() on a session that is closed. Take a new session.")


def standing(talk: SessionProtocol, *, is_closed: bool) -> str:
    """Return in a word or two how a session stands."""
    if is_closed:
        return "closed"
    if talk.ending is not None:
        return f"gone, {talk.ending.type}"
    return "busy" if talk.is_open else "idle"

"""A session's process as the host holds it: how it is spoken to, interrupted and ended."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass
from typing import Literal, Protocol

from envweave.sandbox.watcher import Calls


@dataclass(frozen=True, slots=True)
class Death:
    """Why a session's process is gone.

    Attributes:
        kind: `exit`, `signal`, `closed` (it lives, but closed its end) and `unknown` are the
            code's own doing; `memory` is the kernel's or the host's, and `disk` the host's, for
            the session's limit; `lost` is not the code's: the template, or the session it was
            branched from.
        code: The exit status, or the number of the signal.
        why: More than the kind says, where more is known.
    """

    kind: Literal["exit", "signal", "closed", "unknown", "memory", "disk", "lost"]
    code: int = 0
    why: str = ""

    def __str__(self) -> str:
        if self.why:
            return self.why
        if self.kind == "exit":
            return f"its process exited with status {self.code}"
        if self.kind == "signal":
            return f"its process died of {_signal_name(self.code)}"
        if self.kind == "closed":
            return "its code closed the line to the host"
        if self.kind == "unknown":
            return "its process ended"
        if self.kind == "memory":
            return "it used more memory than it may"
        if self.kind == "disk":
            return "it wrote more to its work folder than it may"
        return "its process is gone, and not by its own doing"


def _signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Body(Protocol):
    """The process of one session, and everything that lives inside its walls."""

    socket: socket.socket
    """The host's end. Blocking; whoever drives it may set it otherwise."""

    work: str | None
    """The work folder as the session sees it, where it is not the one that all have."""

    is_stopped: bool
    """Whether the host stopped it while no call was under way: `wake` comes before the next."""

    def watch(self, calls: Calls, in_use: threading.Lock) -> None:
        """Watch over it while it lives; `in_use` is held by the call under way."""

    def wake(self) -> Literal["disk", "memory"] | None:
        """Let it go on; or return the limit for which it was ended while no call was under way."""

    def interrupt(self) -> None:
        """Interrupt the code that runs, softly. Harmless when nothing runs or lives."""

    def kill(self) -> None:
        """End the process and all its children at once. Harmless twice."""

    def death(self) -> Death:
        """Say why the process is gone, after its socket closed. Ends it if it lives."""

    def excess(self) -> Literal["disk", "memory"] | None:
        """Say which limit that nobody but the host watches is passed; `None` if none is."""

    def branch(self, seed: int | None, deadline: float) -> Body:
        """Return the body of a live copy, whose `Ready` has been read.

        Called when no run is under way; speaks on the socket itself.

        Raises:
            BranchError: This session cannot be copied, or died of it.
        """

    def release(self) -> None:
        """Kill, and give back every descriptor and folder. Harmless twice."""

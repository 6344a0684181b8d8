"""The reasons why a session ends, and the messages that callers get for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from envweave.errors import SandboxError, SessionEndedError, SessionLostError
from envweave.sandbox.execution import Limit, Limits
from envweave.sandbox.processes.process import ExitReason


@dataclass(frozen=True, slots=True)
class Termination:
    """Why a session is gone.

    Attributes:
        type: The `exception_type` of the result.
        message: One sentence.
        limits_hit: The limits that ended it.
        is_lost: Whether something other than its own code ended it.
    """

    type: str
    message: str
    limits_hit: tuple[Limit, ...] = ()
    is_lost: bool = False

    def error(self, call: str) -> SandboxError:
        """Return the error for a call that has no result to report this in."""
        kind = SessionLostError if self.is_lost else SessionEndedError
        return kind(f"{call}: the session is gone. {self.message} Open a new session.")


class TerminationError(Exception):
    """Carries a termination from where it is detected to the driver. Callers never see it."""

    def __init__(self, termination: Termination) -> None:
        super().__init__(termination.message)
        self.termination = termination


def of_exit(reason: ExitReason) -> Termination:
    """The process is gone."""
    if reason.kind == "lost":
        return Termination("SessionLost", f"It was lost: {reason}.", is_lost=True)
    if reason.kind == "memory":
        return Termination("MemoryLimit", f"It was killed: {reason}.", ("memory",))
    if reason.kind == "disk":
        return Termination("DiskLimit", f"It was killed: {reason}.", ("disk",))
    if reason.kind != "signal":
        return Termination("SessionEnded", f"Its code ended it: {reason}.")
    import signal

    try:
        cause, limits_hit = _SIGNALS[signal.Signals(reason.code).name]
    except (KeyError, ValueError):
        cause, limits_hit = "", ()
    return Termination("SessionEnded", f"It ended: {reason}{cause}.", limits_hit)


_SIGNALS: dict[str, tuple[str, tuple[Limit, ...]]] = {
    "SIGKILL": (", sent by its own code, or by the kernel when memory ran out", ()),
    "SIGSYS": (": its code made a system call that the walls forbid", ()),
    "SIGSEGV": (": compiled code that it called crashed, or the stack overflowed", ()),
    "SIGBUS": (": compiled code that it called crashed, or a file it had mapped shrank", ()),
    "SIGFPE": (": compiled code that it called crashed", ()),
    "SIGILL": (": compiled code that it called crashed", ()),
    "SIGABRT": (": compiled code that it called, or the interpreter, aborted", ()),
    "SIGXCPU": (": it exceeded its limit of processor time", ("time",)),
    "SIGXFSZ": (": it wrote a file that exceeds its size limit", ("disk",)),
}


def of_branch(error: SandboxError) -> Termination:
    """The session was lost while it was copied."""
    return Termination("SessionLost", f"It was lost while it was copied: {error}", is_lost=True)


def of_time(limits: Limits, timeout_s: float) -> Termination:
    """The code continued after it was interrupted at the time limit."""
    return Termination(
        "TimeLimit",
        f"Its code ran longer than {timeout_s:g} s, was interrupted, did not stop within another "
        f"{limits.grace_s:g} s, and was killed.",
        ("time",),
    )


def of_silence(limits: Limits, timeout_s: float) -> Termination:
    """The session did not answer a call that runs no code."""
    return Termination(
        "TimeLimit",
        f"It did not answer within {timeout_s + limits.grace_s:g} s, and was killed.",
        ("time",),
    )


def of_interrupt(limits: Limits) -> Termination:
    """The code continued after its caller interrupted it."""
    return Termination(
        "Interrupted",
        f"It was interrupted by its caller, did not stop within {limits.grace_s:g} s, and was "
        "killed.",
    )


def of_excess(limit: Literal["disk", "memory"], limits: Limits) -> Termination:
    """The host found the session beyond a limit."""
    allowed = limits.disk_bytes if limit == "disk" else limits.memory_bytes
    kind = "DiskLimit" if limit == "disk" else "MemoryLimit"
    return Termination(
        kind, f"It used more {limit} than its limit of {allowed:,} bytes, and was killed.", (limit,)
    )


def of_violation(what: str) -> Termination:
    """The session sent something that our code never sends."""
    return Termination("ProtocolViolation", f"It sent the host {what}, and was killed.")


ABANDONED = Termination(
    "SessionLost",
    "A call on it was interrupted on the host's side, so its state is unknown; it was killed.",
    is_lost=True,
)
CLOSED = Termination("SessionLost", "It was closed while a call was under way.", is_lost=True)

"""How a session comes to its end, and what its caller is told of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from envweave.errors import SandboxError, SessionEndedError, SessionLostError
from envweave.sandbox.limits import Limits
from envweave.sandbox.processes.process import ExitReason
from envweave.sandbox.results import Limit


@dataclass(frozen=True, slots=True)
class Termination:
    """Why a session is gone.

    Attributes:
        type: What a result names it, where exceptions are named.
        message: One sentence.
        limits_hit: The limits that ended it.
        is_lost: Whether it was nothing that its code did.
    """

    type: str
    message: str
    limits_hit: tuple[Limit, ...] = ()
    is_lost: bool = False

    def error(self, call: str) -> SandboxError:
        """Return the error for a call on the session that is no `run` under way."""
        kind = SessionLostError if self.is_lost else SessionEndedError
        return kind(f"{call}: the session is gone. {self.message} Take a new session.")


class TerminationError(Exception):
    """Carries an ending from where it was found out to where it is told. Callers never see it."""

    def __init__(self, ending: Termination) -> None:
        super().__init__(ending.message)
        self.ending = ending


def of_death(death: ExitReason) -> Termination:
    """Return the ending of a session whose process is gone."""
    if death.kind == "lost":
        return Termination("SessionLost", f"It was lost: {death}.", is_lost=True)
    if death.kind == "memory":
        return Termination("MemoryLimit", f"It was killed: {death}.", ("memory",))
    if death.kind == "disk":
        return Termination("DiskLimit", f"It was killed: {death}.", ("disk",))
    if death.kind != "signal":
        return Termination("SessionEnded", f"Its code ended it: {death}.")
    import signal

    try:
        reason, limits_hit = _SIGNALS[signal.Signals(death.code).name]
    except (KeyError, ValueError):
        reason, limits_hit = "", ()
    return Termination("SessionEnded", f"It ended: {death}{reason}.", limits_hit)


_SIGNALS: dict[str, tuple[str, tuple[Limit, ...]]] = {
    "SIGKILL": (", sent by its own code, or by the kernel for want of memory", ()),
    "SIGSYS": (": its code made a system call that the walls forbid", ()),
    "SIGSEGV": (": compiled code that it called, or a stack without end, crashed", ()),
    "SIGBUS": (": compiled code that it called crashed, or a file it had mapped shrank", ()),
    "SIGFPE": (": compiled code that it called crashed", ()),
    "SIGILL": (": compiled code that it called crashed", ()),
    "SIGABRT": (": compiled code that it called, or the interpreter, gave up", ()),
    "SIGXCPU": (": it used up the processor time that it may use", ("time",)),
    "SIGXFSZ": (": it wrote a file larger than it may", ("disk",)),
}


def of_branch(error: SandboxError) -> Termination:
    """Return the ending of a session that was lost while it was copied."""
    return Termination("SessionLost", f"It was lost while it was copied: {error}", is_lost=True)


def of_time(limits: Limits, timeout_s: float) -> Termination:
    """Return the ending of a session whose code went on after it was interrupted."""
    return Termination(
        "TimeLimit",
        f"Its code ran longer than {timeout_s:g} s, was interrupted, did not end within "
        f"{limits.grace_s:g} s of that, and was killed.",
        ("time",),
    )


def of_silence(limits: Limits, timeout_s: float) -> Termination:
    """Return the ending of a session that did not answer while no code was to run."""
    return Termination(
        "TimeLimit",
        f"It did not answer within {timeout_s + limits.grace_s:g} s, and was killed.",
        ("time",),
    )


def of_interrupt(limits: Limits) -> Termination:
    """Return the ending of a session whose caller interrupted it in vain."""
    return Termination(
        "Interrupted",
        f"It was interrupted by its caller, did not end within {limits.grace_s:g} s of that, and "
        "was killed.",
    )


def of_excess(limit: Literal["disk", "memory"], limits: Limits) -> Termination:
    """Return the ending of a session that the host found beyond a limit."""
    allowed = limits.disk_bytes if limit == "disk" else limits.memory_bytes
    kind = "DiskLimit" if limit == "disk" else "MemoryLimit"
    return Termination(
        kind, f"It used more {limit} than the {allowed:,} bytes it may, and was killed.", (limit,)
    )


def of_violation(what: str) -> Termination:
    """Return the ending of a session that sent what no session of ours sends."""
    return Termination("ProtocolViolation", f"It sent the host {what}, and was killed.")


ABANDONED = Termination(
    "SessionLost",
    "A call on it was interrupted on the host's side, so nobody knows how far it came; it was "
    "killed.",
    is_lost=True,
)
CLOSED = Termination("SessionLost", "It was closed while a call was under way.", is_lost=True)

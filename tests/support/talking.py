"""A session protocol driven by a test, with a clock that the test sets."""

from __future__ import annotations

from typing import Any

from envweave.sandbox.limits import Limits
from envweave.sandbox.protocol.messages import RunFinished, ToSession
from envweave.sandbox.protocol.plain_values import read_from_host
from envweave.sandbox.protocol.session_protocol import SessionProtocol
from envweave.sandbox.tools import SandboxTools

LIMITS = Limits(timeout_s=1, grace_s=0.5, tool_calls=3, output_bytes=256, message_bytes=1 << 16)


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def double(value: int) -> int:
    return 2 * value


TOOLS = SandboxTools({"double": double, "odd": object})


def make_protocol(clock: Clock, limits: Limits = LIMITS, **options: Any) -> SessionProtocol:
    return SessionProtocol(limits, TOOLS, clock=clock, **options)


def decoded(frame: bytes) -> ToSession:
    """Return the message in a frame of the host."""
    assert int.from_bytes(frame[:4], "little") == len(frame) - 4
    return read_from_host(frame[4:])


def finished(number: int, **changes: Any) -> RunFinished:
    fields = {"stdout": "", "stderr": "", "value": None, "plain": True, "shown": None}
    fields |= {"failure": None, "cut": False, "interrupted": False}
    return RunFinished(number, **(fields | changes))


def start(protocol: SessionProtocol, code: str = "1", timeout_s: float | None = None) -> int:
    """Start a run; return its number."""
    return decoded(protocol.start_run(code, timeout_s)).id

"""The messages between host and session: MessagePack arrays in length-prefixed frames.

Both ends import this module. The session's end runs beside hostile code, so the host assumes that
each message comes from that code, and decodes it into these classes and nothing else.
"""

from __future__ import annotations

import msgspec

from envweave.sandbox.protocol.encoding import Packed

HEADER_BYTES = 4
"""A frame is its length, little-endian, then the message."""

DESCRIPTOR = 3
"""The session's end of its socket."""

INTERRUPT = 64
"""The signal that interrupts a run: the last real-time signal. Those that programs commonly handle,
such as SIGINT, keep their usual meaning in a session."""


class ToolSignature(msgspec.Struct, array_like=True, frozen=True):
    """A tool as the code sees it.

    Attributes:
        name: The function's name.
        signature: As `help` shows it: `(query: str, limit: int = 10) -> list[str]`.
        doc: Its docstring.
    """

    name: str
    signature: str
    doc: str


class Run(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """Run this code.

    Attributes:
        counted: Whether it takes the next number of a cell.
    """

    id: int
    code: str
    counted: bool = True


class ToolAnswer(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """What a tool returned, or why it failed."""

    call: int
    ok: bool
    value: Packed


class Branch(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """Make a copy of yourself. A byte follows that carries the copy's socket.

    Attributes:
        seed: Seeds `random` and numpy in the copy; `None` seeds from the system.
        reseed: Whether they are seeded at all. Otherwise the copy continues their sequences.
        strict: Whether to refuse if the copy would lose or share something that the code uses.
    """

    id: int
    seed: int | None
    reseed: bool = True
    strict: bool = False


class Get(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """Send the value of this name."""

    id: int
    name: str


class Put(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """Bind this name."""

    id: int
    name: str
    value: Packed


class ReadFile(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """Send the content of this file, whose path is relative to the work folder."""

    id: int
    path: str


class WriteFile(msgspec.Struct, array_like=True, tag=6, frozen=True):
    """Write this file, creating parent folders as needed."""

    id: int
    path: str
    content: bytes


class ListFiles(msgspec.Struct, array_like=True, tag=7, frozen=True):
    """Send the relative paths of the files below this folder, sorted."""

    id: int
    path: str


class Begin(msgspec.Struct, array_like=True, tag=8, frozen=True):
    """Start with this seed and these tools: a caller takes a session that was kept warm.

    It has no reply; it takes effect before the next message.
    """

    seed: int | None
    tools: list[ToolSignature]


ToSession = Run | ToolAnswer | Branch | Get | Put | ReadFile | WriteFile | ListFiles | Begin


class Failure(msgspec.Struct, array_like=True, frozen=True):
    """An exception as text."""

    type: str
    message: str
    traceback: str


class RunFinished(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """The code has finished.

    Attributes:
        value: The value of the last expression if it is `plain`; else `None`.
        shown: Its `repr`; `None` where there is no value.
        cut: Whether stdout or stderr was truncated.
        interrupted: Whether the time limit interrupted it.
    """

    id: int
    stdout: str
    stderr: str
    value: Packed
    plain: bool
    shown: str | None
    failure: Failure | None
    cut: bool
    interrupted: bool


class Called(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """The code calls a tool and waits for its `ToolAnswer`."""

    call: int
    name: str
    args: list[Packed]
    kwargs: dict[str, Packed]


class Replied(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """The reply to everything but `Run`: a value, or why there is none."""

    id: int
    failure: Failure | None
    value: Packed


class SetupFailed(msgspec.Struct, array_like=True, tag=8, frozen=True):
    """The session could not set up a wall, and is gone: which one, and the kernel's error."""

    wall: str
    errno: int
    text: str


class Ready(msgspec.Struct, array_like=True, tag=9, frozen=True):
    """The walls are up. This is the first message of a session."""


FromSession = RunFinished | Called | Replied | SetupFailed | Ready


class SpawnRequest(msgspec.Struct, array_like=True, frozen=True):
    """The parameters of a new session. They contain no secret.

    Attributes:
        seed: Seeds `random` and numpy; `None` seeds from the system.
        output_bytes: How much of stdout and of stderr is kept.
        message_bytes: The largest frame.
        work: Its work folder, as it sees it.
        user: The user id it takes, in the template's own namespace; `None` keeps the template's.
    """

    seed: int | None
    output_bytes: int
    message_bytes: int
    work: str
    user: int | None

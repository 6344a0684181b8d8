"""The messages between a host and `relay`, the program in its container.

Frames and plain data are those of `envweave.sandbox`; the bytes of a session are carried in `Data`
unread. The host treats each message as hostile, and decodes it into these classes only.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from envweave.sandbox.config import Profile, WantedIsolation
from envweave.sandbox.protocol.messages import ToolSignature
from envweave.sandbox.protocol.orders import Isolation

MODULE = "envweave.codeact.executors.docker.relay"
"""The program in the container."""

PROTOCOL = 2
"""The version of these messages, and of those of `envweave.sandbox.protocol.messages`."""

DATA_BYTES = 64 << 10
"""The most bytes of a session in one frame."""

TEXT_CHARACTERS = 8 << 10
"""The longest text of a message."""

FRAME_BYTES = DATA_BYTES + 4 * TEXT_CHARACTERS + 1024
"""The longest frame that a host reads."""


class Open(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """Start the sandbox: the first message of the host. Answered by `Opened` or `Failed`.

    Attributes:
        limits: The fields of `Limits`.
        packages: Packages of the image; `None` for the default.
        private: Modules that are hidden, if the image has them.
    """

    limits: dict[str, int | float]
    preload: list[str]
    packages: list[str] | Literal["all"] | None
    private: list[str]
    profile: Profile
    isolation: WantedIsolation


class Make(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """End the current session, if any, and make another. Answered by `SessionMade` or `Failed`."""

    number: int
    seed: int | None
    tools: list[ToolSignature]


class Data(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """Bytes to a session, or from it."""

    number: int
    data: bytes


class Interrupt(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """Interrupt what a session runs."""

    number: int


class Kill(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """End a session, if it exists. Answered by `SessionEnded`."""

    number: int


class InspectRequest(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """Check whether a session exceeds a limit. Answered by `LimitExceeded` if so."""

    number: int


ToContainer = Open | Make | Data | Interrupt | Kill | InspectRequest


class RelayInfo(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """The program runs: its version of envweave, and of these messages."""

    version: str
    protocol: int


class Opened(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """The sandbox is started: its isolation, and why it is not a stronger one."""

    tier: Isolation
    reasons: list[str]


class Failed(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """The request failed: the class and the message of the error."""

    kind: Literal["OptionError", "IsolationError", "SandboxError"]
    text: str


class SessionMade(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """The session is started, in this work folder."""

    number: int
    work: str


class LimitExceeded(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """A session exceeds this limit."""

    number: int
    limit: Literal["disk", "memory"]


class SessionEnded(msgspec.Struct, array_like=True, tag=6, frozen=True):
    """A session ended, and sends nothing more: the fields of `ExitReason`.

    The kind is never `"lost"`: as long as the container lives, only its code can end a session.
    """

    number: int
    kind: Literal["exit", "signal", "closed", "unknown", "memory", "disk"]
    code: int


FromContainer = RelayInfo | Opened | Data | Failed | SessionMade | LimitExceeded | SessionEnded

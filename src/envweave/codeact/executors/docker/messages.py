"""What a host and the program in its container say to each other: see `docker_inside`.

The frames and the plain data are those of `envweave.sandbox`; the bytes of a session travel in
`Data` as they are, and are read by nobody on their way. The host takes each message for the word
of code that broke out of its walls, decodes it into these classes, and into nothing else.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from envweave.sandbox.config import Profile, WantedIsolation
from envweave.sandbox.protocol.messages import ToolSignature
from envweave.sandbox.protocol.orders import Isolation

MODULE = "envweave.codeact.executors.docker.relay"
"""The program."""

PROTOCOL = 2
"""Which edition of these words this is, and of those of `envweave.sandbox.protocol.messages`."""

DATA_BYTES = 64 << 10
"""The most bytes of a session in one frame."""

TEXT_CHARACTERS = 8 << 10
"""The longest sentence."""

FRAME_BYTES = DATA_BYTES + 4 * TEXT_CHARACTERS + 1024
"""The longest frame that a host reads."""


class Open(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """Make a sandbox. The first word of the host's; `Opened` or `Failed` answers.

    Attributes:
        limits: The fields of `Limits`.
        packages: Of the image; `None` for the default.
        private: What of the image is not shown. It may not be there.
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
    """End a session, if it is there; `SessionEnded` answers."""

    number: int


class InspectRequest(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """See whether a session is beyond a limit; `Beyond` answers if it is."""

    number: int


ToBox = Open | Make | Data | Interrupt | Kill | InspectRequest


class RelayInfo(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """The program runs: which envweave, which edition of these words."""

    version: str
    protocol: int


class Opened(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """The sandbox stands: its tier, and why it is no better one."""

    tier: Isolation
    reasons: list[str]


class Failed(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """It could not be done: the class of the error, and what it says."""

    kind: Literal["OptionError", "IsolationError", "SandboxError"]
    text: str


class SessionMade(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """The session stands, in this work folder."""

    number: int
    work: str


class Beyond(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """A session is beyond this limit."""

    number: int
    limit: Literal["disk", "memory"]


class SessionEnded(msgspec.Struct, array_like=True, tag=6, frozen=True):
    """A session is gone, and nothing more will come from it: the fields of `Death`.

    None is lost in here: whatever ends one, but for the end of the container, its code did.
    """

    number: int
    kind: Literal["exit", "signal", "closed", "unknown", "memory", "disk"]
    code: int


FromBox = RelayInfo | Opened | Data | Failed | SessionMade | Beyond | SessionEnded

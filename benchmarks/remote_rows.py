"""What remote.py compares, and by how much envweave means to be ahead."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024


@dataclass(frozen=True, slots=True)
class RateRow:
    """Steps a second over connections.

    Attributes:
        key: Its short name.
        title: What is compared.
        sessions: How many sessions take part.
        ours: How our client is used: `blocking`, `looping` or `vector`.
        theirs: How OpenEnv's client may be used; the quickest counts.
        size: How many bytes of text an observation has.
        at_least: How many times as fast ours is to be; `None` where nothing was promised.
    """

    key: str
    title: str
    sessions: int
    ours: str
    theirs: tuple[str, ...]
    size: int = 200
    at_least: float | None = None


@dataclass(frozen=True, slots=True)
class TimeRow:
    """Seconds until something is ready; the fewer, the better."""

    key: str
    title: str
    at_least: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """What the server takes for a session."""

    key: str
    title: str
    sessions: int
    at_least: float | None = None


Row = RateRow | TimeRow | MemoryRow

_ONE = ("blocking", "looping")
_MANY = ("looping",)

START, IMPORT, FIRST = "start", "import", "first-step"

ROWS: tuple[Row, ...] = (
    RateRow("one", "one session, step by step", 1, "blocking", _ONE, at_least=4.0),
    RateRow("one-64k", "one session, 64 KiB shown", 1, "blocking", _ONE, size=64 * KIB),
    RateRow("one-1m", "one session, 1 MiB shown", 1, "blocking", _ONE, size=1024 * KIB),
    RateRow("sessions-1", "sessions at once", 1, "looping", _MANY),
    RateRow("sessions-64", "sessions at once", 64, "looping", _MANY, at_least=5.0),
    RateRow("sessions-512", "sessions at once", 512, "looping", _MANY),
    RateRow("sessions-2048", "sessions at once", 2048, "looping", _MANY),
    RateRow("vector-64", "vector, against sessions", 64, "vector", _MANY, at_least=25.0),
    TimeRow(START, "server, from its start to healthy", at_least=5.0),
    TimeRow(IMPORT, "import of the client", at_least=20.0),
    TimeRow(FIRST, "client, from its first line to the first step"),
    MemoryRow("memory-512", "memory of the server a session", 512),
    MemoryRow("memory-2048", "memory of the server a session", 2048),
)

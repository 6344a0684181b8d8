"""What sandbox.py compares with what, and by how much envweave means to be ahead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

OURS = "envweave"
OURS_CTYPES, OURS_LANDLOCK = "envweave, without its C extension", "envweave, landlock"
OURS_WARM, OURS_ANY = "envweave, with sessions kept ready", "envweave, on any core"
SMOLAGENTS, UNTIMED = "smolagents", "smolagents, without its time-out"
EXEC, MONTY, JUPYTER = "exec in the same process", "pydantic-monty", "Jupyter kernel"
SUBPROCESS, BUBBLEWRAP, DOCKER = "subprocess python", "bubblewrap + python", "docker run python"


@dataclass(frozen=True, slots=True)
class Entrant:
    """Somebody who takes part.

    Attributes:
        target: What opens it, as `module:function`.
        package: The package it comes with, in the peers' environment; `None` if it needs none.
        most: How many of its sessions this machine is asked to hold at once; `None` for as many
            as everyone else's.
    """

    target: str
    package: str | None = None
    most: int | None = None


ENTRANTS: Mapping[str, Entrant] = {
    OURS: Entrant("sandbox_ours:open_namespace"),
    OURS_CTYPES: Entrant("sandbox_ours:open_without_extension"),
    OURS_LANDLOCK: Entrant("sandbox_ours:open_landlock"),
    OURS_WARM: Entrant("sandbox_ours:open_warm"),
    OURS_ANY: Entrant("sandbox_ours:open_on_any_core"),
    EXEC: Entrant("sandbox_exec:open_exec"),
    SMOLAGENTS: Entrant("sandbox_smolagents:open_smolagents", "smolagents"),
    UNTIMED: Entrant("sandbox_smolagents:open_without_timeout", "smolagents"),
    MONTY: Entrant("sandbox_monty:open_monty", "pydantic-monty"),
    JUPYTER: Entrant("sandbox_jupyter:open_jupyter", "ipykernel", most=20),
    SUBPROCESS: Entrant("sandbox_pipes:open_subprocess", most=100),
    BUBBLEWRAP: Entrant("sandbox_pipes:open_bubblewrap", most=100),
    DOCKER: Entrant("sandbox_docker:open_docker", most=20),
}
OWN = (OURS, OURS_CTYPES, OURS_LANDLOCK, OURS_WARM, OURS_ANY)
MOST = tuple(name for name in ENTRANTS if name != OURS_WARM)
"""Everyone but who differs only in how a session begins."""


@dataclass(frozen=True, slots=True)
class TimeRow:
    """Seconds that one takes; the fewer, the better.

    Attributes:
        key: Its short name, which is also what the worker is told.
        title: What is compared.
        targets: How many times as fast ours is to be, by whose name.
        only: Who takes part, where it is not everyone.
    """

    key: str
    title: str
    targets: Mapping[str, float | None] = field(default_factory=dict)
    only: tuple[str, ...] = MOST


@dataclass(frozen=True, slots=True)
class LiveRow:
    """A figure of many live sessions, a session."""

    key: str
    title: str
    unit: str


TIMES: tuple[TimeRow, ...] = (
    TimeRow(
        "create",
        "a fresh session, to its first result",
        {BUBBLEWRAP: 6.0, DOCKER: 150.0},
        tuple(ENTRANTS),
    ),
    TimeRow("life", "the same, and its end", only=tuple(ENTRANTS)),
    TimeRow(
        "start",
        "the first of all, from nothing",
        only=(OURS, OURS_CTYPES, OURS_LANDLOCK, MONTY, JUPYTER),
    ),
    TimeRow("hot", "a step, `x + 1`", {SMOLAGENTS: 4.0}),
    TimeRow("other", "a step that was not run before, `x + 2`"),
    TimeRow("cell", "a cell of 8 lines that was not run before"),
    TimeRow("loop", "a loop of 100,000 iterations", {SMOLAGENTS: 40.0}),
    TimeRow("tool", "a call of a tool, of 100 in a step"),
    TimeRow("branch", "a copy of a live session, to its first result"),
)
CREATE, STEP, MEMORY, PRIVATE = "live-create", "live-step", "memory", "private"
LIVE: tuple[LiveRow, ...] = (
    LiveRow(CREATE, "one of many live sessions, to its first result", "s"),
    LiveRow(STEP, "a step of each of them", "s"),
    LiveRow(MEMORY, "memory of each of them", "bytes"),
    LiveRow(PRIVATE, "memory that no other process shares", "bytes"),
)
KEYS = tuple(row.key for row in (*TIMES, *LIVE))

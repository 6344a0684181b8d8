"""Which walls this machine can put up, and what to do for better ones."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from envweave.errors import IsolationError, SandboxError
from envweave.sandbox.config import SandboxConfig
from envweave.sandbox.doctor.advice import advise
from envweave.sandbox.doctor.machine import machine_facts
from envweave.sandbox.protocol.orders import Isolation


@dataclass(frozen=True, slots=True)
class TierReport:
    """What came of trying one tier.

    Attributes:
        name: Of the tier.
        available: Whether its walls stood around a session.
        reason: Why not; empty if they did.
        missing: What it lacks here, a sentence each.
        advice: How to get it, a sentence each.
    """

    name: Isolation
    available: bool
    reason: str = ""
    missing: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()


def examine() -> list[TierReport]:
    """Try every tier with walls, strongest first, by making a session in it."""
    return [_try("namespace"), _try("landlock")]


def _try(name: Isolation) -> TierReport:
    facts = machine_facts()
    if sys.platform != "linux":
        reason = f"The walls are the Linux kernel's, and this is {sys.platform}."
        return TierReport(
            name, available=False, reason=reason, advice=tuple(advise("platform", 0, facts))
        )
    from envweave.sandbox.processes.factory import SessionFactory
    from envweave.sandbox.processes.template import WallSetupError

    try:
        factory = SessionFactory(SandboxConfig(isolation=name))
    except IsolationError as error:
        down = error.__cause__
        assert isinstance(down, WallSetupError)
        advice = tuple(advise(down.wall, down.errno, facts))
        return TierReport(name, available=False, reason=down.text, advice=advice)
    except SandboxError as error:
        return TierReport(name, available=False, reason=str(error))
    try:
        return TierReport(name, available=True, missing=factory.tier.missing)
    finally:
        factory.close()


_WITHOUT_NAMESPACES = (
    "No namespaces: Landlock keeps files outside, seccomp other processes and the network.",
    "The work folder is on the host's disk: its size is watched, not enforced, and files that are "
    "deleted but open are not seen.",
    "`stat` tells names, sizes and times of files outside: Landlock has no right for it.",
    "Code can load libraries that it wrote to the work folder, since nothing is mounted there.",
    "Sessions cannot be branched.",
)
NAMES_LISTED = (
    "Programs can list the names of files in packages that are not visible, and not read them."
)
"""What a shell without namespaces has not got: programs list folders with hidden packages."""

_WITHOUT_WALLS = (
    "No walls: code can do whatever this user can. Only the limits of a process hold.",
    "Sessions cannot be branched.",
)


@dataclass(frozen=True, slots=True)
class Tier:
    """The walls that stand.

    Attributes:
        name: `namespace`, `landlock` or `none`.
        missing: What a stronger machine would have, a sentence each.
        reasons: Why a stronger tier does not stand; empty for the strongest.
        native: Whether the compiled extension puts them up, which is quicker. They are the same.
    """

    name: Isolation
    missing: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    native: bool = False

    def __str__(self) -> str:
        return self.name


def missing_of(isolation: Isolation, kernel: Sequence[str]) -> list[str]:
    """Return what a tier has not got, with what this kernel has not."""
    if isolation == "none":
        return list(_WITHOUT_WALLS)
    if isolation == "landlock":
        return [*_WITHOUT_NAMESPACES, *kernel]
    return list(kernel)

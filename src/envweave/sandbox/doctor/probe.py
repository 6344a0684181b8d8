"""Isolation tiers: trying which ones work on this machine, and what each lacks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from envweave.errors import IsolationError, SandboxError
from envweave.sandbox.config import SandboxConfig
from envweave.sandbox.doctor.advice import advise, machine_facts
from envweave.sandbox.protocol.orders import Isolation


@dataclass(frozen=True, slots=True)
class TierReport:
    """The result of trying one tier.

    Attributes:
        name: The name of the tier.
        available: Whether a session could be made with it.
        reason: Why not; empty if it could.
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
        reason = f"The sandbox needs Linux, and this is {sys.platform}."
        return TierReport(
            name, available=False, reason=reason, advice=tuple(advise("platform", 0, facts))
        )
    from envweave.sandbox.processes.factory import SessionFactory
    from envweave.sandbox.processes.template import WallSetupError

    try:
        factory = SessionFactory(SandboxConfig(isolation=name))
    except IsolationError as error:
        cause = error.__cause__
        assert isinstance(cause, WallSetupError)
        advice = tuple(advise(cause.wall, cause.errno, facts))
        return TierReport(name, available=False, reason=cause.text, advice=advice)
    except SandboxError as error:
        return TierReport(name, available=False, reason=str(error))
    try:
        return TierReport(name, available=True, missing=factory.tier.missing)
    finally:
        factory.close()


_WITHOUT_NAMESPACES = (
    "No namespaces: Landlock protects files, seccomp other processes and the network.",
    "The work folder is on the host's disk: its size is polled, not enforced, and deleted files "
    "that are still open are not counted.",
    "`stat` reveals names, sizes and times of files outside: Landlock does not cover it.",
    "Code can load libraries that it wrote to the work folder, which is not mounted noexec.",
    "Sessions cannot be branched.",
)
NAMES_LISTED = "Programs can list, but not read, files in packages that are not visible."
"""What `profile="shell"` lacks without namespaces."""

_WITHOUT_WALLS = (
    "No isolation: code can do whatever this user can. Only the process limits apply.",
    "Sessions cannot be branched.",
)


@dataclass(frozen=True, slots=True)
class Tier:
    """The isolation tier in use.

    Attributes:
        name: `namespace`, `landlock` or `none`.
        missing: What it lacks on this machine, a sentence each.
        reasons: Why a stronger tier does not work; empty for the strongest.
        native: Whether the compiled extension sets up the walls, which is faster. The walls are
            the same.
    """

    name: Isolation
    missing: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    native: bool = False

    def __str__(self) -> str:
        return self.name


def missing_of(isolation: Isolation, kernel: Sequence[str]) -> list[str]:
    """Return what a tier lacks, including what this kernel lacks."""
    if isolation == "none":
        return list(_WITHOUT_WALLS)
    if isolation == "landlock":
        return [*_WITHOUT_NAMESPACES, *kernel]
    return list(kernel)

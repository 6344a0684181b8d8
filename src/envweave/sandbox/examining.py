"""Which walls this machine can put up, and what to do for better ones."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from envweave.errors import IsolationError, SandboxError
from envweave.sandbox.advice import advise
from envweave.sandbox.machine import machine_facts
from envweave.sandbox.options import Options
from envweave.sandbox.orders import Isolation


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
    from envweave.sandbox.nursery import Nursery
    from envweave.sandbox.templates import WallDown

    try:
        nursery = Nursery(Options(isolation=name))
    except IsolationError as error:
        down = error.__cause__
        assert isinstance(down, WallDown)
        advice = tuple(advise(down.wall, down.errno, facts))
        return TierReport(name, available=False, reason=down.text, advice=advice)
    except SandboxError as error:
        return TierReport(name, available=False, reason=str(error))
    try:
        return TierReport(name, available=True, missing=nursery.tier.missing)
    finally:
        nursery.close()

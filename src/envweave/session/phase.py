"""Where a session stands, and why it refuses to step there."""

from __future__ import annotations

import enum

from envweave.errors import ClosedError, EnvWeaveError, ResetNeededError


class Phase(enum.Enum):
    """Where a session stands."""

    FRESH = "fresh"
    LIVE = "live"
    TOOL = "tool"
    ENDED = "ended"
    CLOSED = "closed"


def refusal(phase: Phase, name: str, broken: str | None, *, autoreset: bool) -> EnvWeaveError:
    """Return the error for a step where no episode is running.

    Args:
        phase: Where the session stands.
        name: What to call the environment.
        broken: Why the last episode is gone, or the next one could not begin.
        autoreset: Whether the session resets by itself.
    """
    if phase is Phase.CLOSED:
        return ClosedError(f"step() on {name}, which is closed. Make a new environment.")
    if phase is Phase.FRESH:
        return ResetNeededError(f"step() on {name} before its first episode. Call reset() first.")
    if broken is not None:
        return ResetNeededError(
            f"step() on {name} with no episode running: {broken}. Call reset() again."
        )
    ways = "" if autoreset else ", or make the environment with autoreset=True"
    return ResetNeededError(
        f"step() on {name} after the end of its episode. Call reset() first{ways}."
    )

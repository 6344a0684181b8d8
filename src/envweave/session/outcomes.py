"""Making the results of what was not an ordinary step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias

import msgspec

from envweave.types import (
    REFUSED,
    AutoResetReady,
    EpisodeEnd,
    Event,
    NeedAction,
    ResetResult,
    StepResult,
)

Parts: TypeAlias = tuple[Any, Any, Any, Any, dict[str, Any]]
"""Observation, reward, terminated, truncated, info."""

Asked: TypeAlias = tuple[NeedAction[Any], ...] | None

Start: TypeAlias = tuple[AutoResetReady[Any], Asked, tuple[Event, ...]]
"""What an episode begins with: its first observation, who is asked to act, what was said."""


class Episode(Protocol):
    """Which step of which episode a result is about."""

    episode_id: str | None
    task_id: str | None
    step_index: int


def make_result(
    parts: Parts, end: EpisodeEnd | None, events: tuple[Event, ...], asked: Asked, about: Episode
) -> StepResult[Any]:
    """Make the result of a step."""
    result: StepResult[Any] = StepResult(*parts, end=end, step_index=about.step_index)
    result.episode_id, result.task_id = about.episode_id, about.task_id
    result._asked, result._events = asked, events  # noqa: SLF001 - the session makes results
    return result


def refused_row(
    error: Exception,
    last: Any,
    asked: tuple[NeedAction[Any], ...],
    waiting: tuple[Event, ...],
    about: Episode,
    *,
    several_agents: bool,
) -> StepResult[Any]:
    """Make the row of a batch whose action was refused: it stands where it stood.

    Args:
        error: Why.
        last: What it showed last.
        asked: Who was asked to act.
        waiting: The tool calls that wait for an answer; while there are some nobody may act.
        about: Which step of which episode came before.
        several_agents: Whether results are keyed by agent.
    """
    info: dict[str, Any] = {REFUSED: str(error)}
    parts: Parts = (last, None, False, False, info)
    if several_agents:
        parts = (last, *(dict.fromkeys(last, one) for one in (None, False, False)), info)
    elif asked[0].action_mask is not None:
        info["action_mask"] = asked[0].action_mask
    return make_result(parts, None, waiting, () if waiting else asked, about)


def make_start(
    ready: AutoResetReady[Any], asked: Asked, events: tuple[Event, ...]
) -> ResetResult[Any]:
    """Make the result of a reset."""
    result: ResetResult[Any] = ResetResult(ready.initial_obs, ready.initial_info)
    result.episode_id, result.task_id = ready.episode_id, ready.task_id
    result._asked, result._events = asked, events  # noqa: SLF001 - the session makes results
    return result


def join_start(
    result: StepResult[Any], ready: AutoResetReady[Any], asked: Asked, events: tuple[Event, ...]
) -> StepResult[Any]:
    """Put the start of the next episode into the result that ended the last one."""
    result.ready = ready
    result._asked, result._later = asked, events  # noqa: SLF001 - the session makes results
    return result


def end_of(terminated: bool) -> EpisodeEnd:  # noqa: FBT001 - the first of two flags
    """Return the end that a flag of the author's declares."""
    return EpisodeEnd("terminated" if terminated else "truncated")


def settle_end(
    end: EpisodeEnd | None,
    terminated: bool,  # noqa: FBT001 - Gymnasium's order
    truncated: bool,  # noqa: FBT001
) -> tuple[EpisodeEnd | None, bool, bool]:
    """Return an end that was emitted and the two flags so that they agree."""
    if end is None:
        return (end_of(terminated) if terminated or truncated else None), terminated, truncated
    terminated |= end.reason == "terminated"
    return end, terminated, truncated or (end.reason != "terminated" and not terminated)


def cut_short(agents: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the rewards and flags of agents whose episode failed."""
    return dict.fromkeys(agents), dict.fromkeys(agents, False), dict.fromkeys(agents, True)


def total(*earned: float | None) -> float | None:
    """Add up what was earned; `None` is not scored yet, and adds nothing."""
    scored = [one for one in earned if one is not None]
    return math.fsum(scored) if scored else None


def unpaid(parts: Parts, end: EpisodeEnd) -> tuple[Parts, EpisodeEnd]:
    """Take every reward out of a failure: it is none, of 0 or of anything."""
    observation, reward, terminated, truncated, info = parts
    nothing = dict.fromkeys(reward, math.nan) if isinstance(reward, dict) else math.nan
    info = {name: one for name, one in info.items() if name != "reward_parts"}
    end = msgspec.structs.replace(end, rewards=dict.fromkeys(end.rewards, math.nan))
    return (observation, nothing, terminated, truncated, info), end

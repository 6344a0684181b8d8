"""Tracking an episode that runs elsewhere, and ending it when its process is lost."""

from __future__ import annotations

import math
from typing import Any, final

from envweave.session.episodes import Position
from envweave.session.results import join_start, make_result
from envweave.session.snapshot import snapshot
from envweave.types import AutoResetReady, EpisodeEnd, ResetResult, StepResult


def advance_seed(position: Position, seed: int | None) -> Position:
    """Return the position of a stream after a reset that timed out: as after one that failed."""
    base, k = (position.base, position.k + 1) if seed is None else (seed, 0)
    return position._replace(base=base, k=k, begun=position.begun + 1)


def lost_result(last: Any, end: EpisodeEnd, about: Any, *, several_agents: bool) -> StepResult[Any]:
    """Return the last result of a lost episode: no reward, and the last good observation."""
    if not several_agents:
        return make_result((last, math.nan, False, True, {}), end, (), None, about)
    nan, false, true = (dict.fromkeys(last, value) for value in (math.nan, False, True))
    return make_result((last, nan, false, true, {}), end, (), (), about)


def with_autoreset(
    result: StepResult[Any], fresh: ResetResult[Any] | Exception | None
) -> StepResult[Any]:
    """Add the start of the next episode, or why it failed, to the last result of a lost one."""
    if isinstance(fresh, ResetResult):
        ready = AutoResetReady(fresh.observation, fresh.info, fresh.episode_id, fresh.task_id)
        return join_start(result, ready, fresh._needs, tuple(fresh.events))  # noqa: SLF001
    if fresh is not None:
        result.info = {**result.info, "reset_error": str(fresh)}
    return result


@final
class EpisodeTracker:
    """What the caller of one environment has seen of its episode.

    Attributes:
        is_live: Whether an episode is running.
        step_index: How many steps it has taken.
        episode_id: The episode.
        task_id: Its task.
    """

    def __init__(self, *, several_agents: bool) -> None:
        self._several_agents = several_agents
        self._last: Any = None
        self.is_live = False
        self.step_index = 0
        self.episode_id: str | None = None
        self.task_id: str | None = None

    def follow(self, result: StepResult[Any]) -> None:
        """Record a result."""
        ready = result.ready
        self.is_live = ready is not None or not result.done
        if ready is not None:
            self._last, self.step_index = ready.initial_obs, 0
            self.episode_id, self.task_id = ready.episode_id, ready.task_id
            return
        shown = result.observation
        if self._several_agents and not isinstance(result, ResetResult):
            shown = {**self._last, **shown}
            for event in result.events:
                shown.pop(getattr(event, "agent_id", None), None)
        self._last, self.step_index = shown, result.step_index
        self.episode_id, self.task_id = result.episode_id, result.task_id

    @property
    def last(self) -> Any:
        """A copy of the last observation."""
        return snapshot(self._last)

    def lost(self, end: EpisodeEnd) -> StepResult[Any]:
        """End the episode, which is lost; return its last result."""
        self.is_live = False
        self.step_index += 1
        return lost_result(self.last, end, self, several_agents=self._several_agents)

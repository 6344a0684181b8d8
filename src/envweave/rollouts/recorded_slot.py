"""Records the episodes of a rollout, with what only it knows: group, attempt, extra data."""

from __future__ import annotations

from collections.abc import Awaitable
from time import perf_counter
from typing import Any, final

from envweave.recording.recorder import EpisodeEvents, pack
from envweave.recording.writer import RunWriter
from envweave.rollouts.episode import Agent, Decision, EpisodeAttempt, play
from envweave.rollouts.pool import PoolSlot
from envweave.types import Episode, ResetResult, StepResult, ToolResult


async def play_recorded(
    slot: PoolSlot, agent: Agent, attempt: EpisodeAttempt, writer: RunWriter
) -> Episode:
    """Play one episode, and record it. See `play`."""
    recorded = RecordedSlot(slot, agent, attempt, writer)
    episode = await play(recorded, recorded.decide, attempt)
    recorded.finish(episode)
    return episode


@final
class RecordedSlot:
    """A slot of a pool and the agent of a rollout, for one episode that is recorded."""

    def __init__(
        self, slot: PoolSlot, agent: Agent, attempt: EpisodeAttempt, writer: RunWriter
    ) -> None:
        self._slot = slot
        self._agent = agent
        self._events = EpisodeEvents(writer)
        job = attempt.job
        self._events.about = {
            "group": job.group,
            "member": job.member,
            "attempt": attempt.number if attempt.number > 1 else None,
        }
        self._extra: bytes | None = None

    async def decide(self, result: StepResult[Any]) -> Any:
        """Return the agent's decision, whose extra data is recorded with the step."""
        answer = self._agent(result)
        if isinstance(answer, Awaitable):
            answer = await answer
        is_decision = type(answer) is Decision and answer.extra is not None
        self._extra = pack(answer.extra) if is_decision else None
        return answer

    async def reset(self, **params: Any) -> ResetResult[Any]:
        """Begin the episode."""
        began_s = perf_counter()
        result = await self._slot.reset(**params)
        asked = {name: params.get(name) for name in ("seed", "task", "options")}
        self._events.began(result, perf_counter() - began_s, **asked)
        return result

    async def step(self, action: Any) -> StepResult[Any]:
        """Take one step."""
        packed = pack(action)
        began_s = perf_counter()
        result = await self._slot.step(action)
        is_answer = type(action) is ToolResult
        duration_s = perf_counter() - began_s
        self._events.stepped(packed, result, duration_s, is_answer=is_answer, extra=self._extra)
        return result

    def finish(self, episode: Episode) -> None:
        """Record the end, if no result told of it: the rollout truncated it, or a call failed."""
        self._events.ended(episode.end)

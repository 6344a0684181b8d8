"""Records the episodes of a rollout, with what only it knows: group, attempt, extra data."""

from __future__ import annotations

from collections.abc import Awaitable
from time import perf_counter
from typing import Any, final

from envweave.recording.events import pack
from envweave.recording.recorder import EpisodeEvents
from envweave.recording.writer import RunWriter
from envweave.rollouts.episode import Agent, Decision, EpisodeAttempt
from envweave.rollouts.logged_slot import LoggedSlot, SlotSnapshot
from envweave.rollouts.pool import PoolSlot
from envweave.types import EpisodeEnd, ResetResult, StepResult, ToolResult


@final
class RecordedSlot:
    """A slot of a pool, for one episode that is recorded: what the environment is sent and answers.

    A chat view goes around it, so the recording has the actions that were read from replies.
    """

    def __init__(
        self, slot: PoolSlot | LoggedSlot, attempt: EpisodeAttempt, writer: RunWriter
    ) -> None:
        self._slot = slot
        self._events = EpisodeEvents(writer)
        if isinstance(slot, LoggedSlot):
            slot.on_restored = self._events.restored
        job = attempt.job
        self._events.about = {
            "group": job.group,
            "member": job.member,
            "attempt": attempt.number if attempt.number > 1 else None,
        }
        self._extra: bytes | None = None

    def watch(self, agent: Agent) -> Agent:
        """Return the agent, with the extra data of its decisions recorded with their steps."""

        async def decide(result: StepResult[Any]) -> Any:
            answer = agent(result)
            if isinstance(answer, Awaitable):
                answer = await answer
            is_decision = type(answer) is Decision and answer.extra is not None
            self._extra = pack(answer.extra) if is_decision else None
            return answer

        return decide

    async def reset(self, **params: Any) -> ResetResult[Any]:
        """Begin the episode."""
        began_s = perf_counter()
        result = await self._slot.reset(**params)
        asked = {name: params.get(name) for name in ("seed", "task", "options")}
        self._events.began(result, perf_counter() - began_s, **asked)
        return result

    async def snapshot(self) -> SlotSnapshot:
        """Return the point that the episode has reached."""
        assert isinstance(self._slot, LoggedSlot)
        return await self._slot.snapshot()

    async def restore(self, point: SlotSnapshot, episode_id: str) -> ResetResult[Any]:
        """Begin an episode that continues another one."""
        assert isinstance(self._slot, LoggedSlot)
        began_s = perf_counter()
        result = await self._slot.restore(point, episode_id)
        parent = point.parent
        self._events.about["parent"] = {"episode": parent.episode, "step": parent.step}
        asked = {name: point.params.get(name) for name in ("seed", "task", "options")}
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

    def finish(self, end: EpisodeEnd) -> None:
        """Record the end, if no result has it: the rollout truncated it, or a call failed."""
        self._events.ended(end)

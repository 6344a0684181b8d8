"""`LoggedSlot`: a slot of a pool for an episode that can be forked, or brought back after a loss.

It keeps the episode's actions, and digests of its results. After a loss it plays the actions again
in a replacement, compares every result, and only then takes the action whose result was lost.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from envweave.environment import Interface
from envweave.errors import EnvironmentLostError, ForkError, ResetNeededError
from envweave.recording.episode_log import EpisodeLog, LoggedPoint
from envweave.recording.events import pack
from envweave.recording.recorder import (
    EpisodeEvents,
    as_start,
    failure_end,
    not_repeatable,
    not_the_same,
)
from envweave.recording.replaying import Difference, EpisodeReplay, replay_on_async
from envweave.rollouts.pool import REFUSALS, PoolSlot
from envweave.types import EpisodeEnd, EpisodeParent, ResetResult, StepResult, ToolResult

logger = logging.getLogger(__name__)

TAKEN = 3
"""An action whose result is lost this often is not taken again: it may cause the losses."""

LOSSES = 8
"""An episode that is lost this often in a row is given up, also where others cause the losses."""


@dataclass(frozen=True, slots=True)
class SlotSnapshot:
    """A point of an episode in a pool, from which others continue.

    Attributes:
        state: The copy that the place where it runs keeps; `None` if it cannot be copied.
        refusal: Why there is no copy.
        logged: The log of the episode so far.
        params: What its reset was called with, with the private part of the task.
    """

    state: Any
    refusal: str
    logged: LoggedPoint
    params: Mapping[str, Any]

    @property
    def parent(self) -> EpisodeParent:
        """The episode and its step."""
        return EpisodeParent(self.params["episode_id"], self.logged.length)


class _Outcome(NamedTuple):
    """What a call returned, and the end of its episode if that was lost."""

    result: Any
    loss: EpisodeEnd | None


@final
class LoggedSlot:
    """A slot of a pool, for one episode.

    Args:
        slot: The slot.
        interface: The interface of its environment.
        is_durable: Whether the episode is brought back after a loss.

    Attributes:
        restored: How often it was brought back.
        on_restored: Called each time, with its step and how it was lost.
    """

    def __init__(self, slot: PoolSlot, interface: Interface, *, is_durable: bool) -> None:
        self._slot = slot
        self._interface = interface
        self._is_durable = is_durable
        self._log = EpisodeLog()
        self._events = EpisodeEvents(self._log)
        self._params: Mapping[str, Any] = {}
        self._replay: EpisodeReplay | None = None  # the last one; it knows the ids of tool calls
        self._call_ids: Mapping[str, str] = {}  # of a fork: its ids, with those in the log
        self.restored = 0
        self.on_restored: Callable[[int, str | None], None] = lambda _step, _cause: None

    async def reset(self, **params: Any) -> ResetResult[Any]:
        """Begin the episode; if it is durable, a loss is tried again.

        Raises:
            EnvWeaveError: As the slot's `reset`.
        """
        losses = 0
        while True:
            try:
                result = await self._slot.reset(**params)
                break
            except REFUSALS:
                raise
            except Exception as error:
                losses += 1
                if not self._is_durable or losses == LOSSES or not _is_loss(failure_end(error)):
                    raise
        about = {"episode_id": result.episode_id}
        if "seed" in self._interface.reset_takes:
            about["seed"] = result.info.get("seed", params.get("seed"))
        self._params = {**params, **about}
        self._log.keep_request(params.get("task"), params.get("options"))
        asked = {name: params.get(name) for name in ("seed", "task", "options")}
        self._events.began(result, 0.0, **asked)
        return result

    async def step(self, action: Any) -> StepResult[Any]:
        """Take one step; if the episode is durable and lost, bring it back and take the step then.

        An episode that cannot be brought back ends as lost, and its cause says why.

        Raises:
            EnvWeaveError: As the slot's `step`.
        """
        packed = pack(action)
        self._log.keep_action(action)
        if self._is_durable:
            result = await self._durable_step(action)
        else:
            result = await self._slot.step(self._answering(action))
        result.episode_id = self._params["episode_id"]
        self._events.stepped(packed, result, 0.0, is_answer=type(action) is ToolResult)
        return result

    async def _durable_step(self, action: Any) -> StepResult[Any]:
        result, loss = await _watch(self._slot.step(self._answering(action)))
        if loss is None:
            return result  # type: ignore[no-any-return] # no loss, so it is a result
        first, last, why = result, loss, ""
        taken = losses = 1
        while not why:
            difference, again = await self._play_again()
            if difference is not None:
                why = str(not_the_same("", self._step_index(), difference))
                break
            if again is None:
                taken += 1
                result, again = await _watch(self._slot.step(self._answering(action)))
                if again is None:
                    self._count_restored(loss.cause)
                    return result  # type: ignore[no-any-return] # as above
            losses, last = losses + 1, again
            if taken == TAKEN:
                why = f"The action was taken {taken} times, and its result was lost each time."
            elif losses == LOSSES:
                why = f"It was lost {losses} times in a row."
        cause = f"{str(last.cause).rstrip('.')}. {why}"
        if first is None:
            raise EnvironmentLostError(f"step() of {self._interface.name} failed: {cause}")
        first.end = EpisodeEnd("lost", "infrastructure", cause, loss.rewards)
        return first  # type: ignore[no-any-return] # that of the first try

    def _count_restored(self, cause: str | None) -> None:
        self.restored += 1
        step = self._step_index()
        logger.info("an episode of %s was brought back: step %d", self._interface.name, step)
        self.on_restored(step, cause)

    def _answering(self, action: Any) -> Any:
        if self._replay is None:
            return action
        if isinstance(action, ToolResult):
            logged_id = self._call_ids.get(action.call_id, action.call_id)
            action = ToolResult(logged_id, action.value, action.error)
        return self._replay.answering(action)

    def _step_index(self) -> int:
        return self._logged().length

    def _logged(self) -> LoggedPoint:
        logged = self._log.point()
        if logged is None:
            raise ResetNeededError(
                f"No episode of {self._interface.name} is running. Call reset() first."
            )
        return logged

    async def _play_again(self) -> tuple[Difference | None, EpisodeEnd | None]:
        """Play the logged episode again; return the first difference, or the end of a loss."""
        replay = self._logged().replay(None)
        target = _ReplaySlot(self._slot, self._params)
        difference = await replay_on_async(replay, target)
        if target.loss is not None:
            return None, target.loss
        self._replay = replay
        return difference, None

    async def snapshot(self) -> SlotSnapshot:
        """Return the point that the episode has reached.

        Raises:
            ForkError: The environment cannot be copied, and is not deterministic.
        """
        state, refusal = None, ""
        try:
            state = await self._slot.snapshot()
        except ForkError as error:
            refusal = str(error)
        if state is None and not self._interface.deterministic:
            raise not_repeatable(refusal, self._interface.name)
        return SlotSnapshot(state, refusal, self._logged(), self._params)

    async def restore(self, point: SlotSnapshot, episode_id: str) -> ResetResult[Any]:
        """Continue from a point of another episode, as an episode with this id.

        Raises:
            ForkError: The same state is not reached; the message has the first difference.
            EnvironmentLostError: The environment was lost.
        """
        self._params = {**point.params, "episode_id": episode_id}
        self._log.continue_from(point.logged, episode_id, {})
        refusal, result = point.refusal, None
        if point.state is not None:
            try:
                result = await self._slot.restore(point.state)
            except ForkError as error:
                refusal = str(error)
        if result is None:
            result = await self._played_again(refusal)
        result.episode_id = episode_id
        return result

    async def _played_again(self, refusal: str) -> ResetResult[Any]:
        if not self._interface.deterministic:
            raise not_repeatable(refusal, self._interface.name)
        for _ in range(LOSSES if self._is_durable else 1):
            difference, loss = await self._play_again()
            if loss is None:
                break
        if loss is not None:
            raise EnvironmentLostError(f"{self._interface.name} was lost in a fork: {loss.cause}")
        if difference is not None:
            raise not_the_same(refusal, self._step_index(), difference)
        assert self._replay is not None
        self._call_ids = self._replay.call_ids
        self._log.continue_from(self._logged(), self._params["episode_id"], self._call_ids)
        return as_start(self._replay.result, self._replay.seed)


@final
class _ReplaySlot:
    """Where an episode is played again: begun just as it was, and watched for losses.

    Attributes:
        loss: The end of the replayed episode, if it was lost.
    """

    def __init__(self, slot: PoolSlot, params: Mapping[str, Any]) -> None:
        self._slot = slot
        self._params = params
        self.loss: EpisodeEnd | None = None

    async def reset(self, **_: Any) -> ResetResult[Any]:
        """Begin the episode, with what its reset was called with then."""
        result: ResetResult[Any] = await self._result(self._slot.reset(**self._params))
        return result

    async def step(self, action: Any) -> StepResult[Any]:
        """Take one step."""
        result: StepResult[Any] = await self._result(self._slot.step(action))
        return result

    async def _result(self, call: Awaitable[Any]) -> Any:
        result, self.loss = await _watch(call)
        if self.loss is not None:
            raise EnvironmentLostError(str(self.loss.cause))
        return result


async def _watch(call: Awaitable[Any]) -> _Outcome:
    """Await a call; what it raised is a loss too, if the place where it ran is gone."""
    try:
        result = await call
    except REFUSALS:
        raise
    except Exception as error:
        end = failure_end(error)
        if not _is_loss(end):
            raise
        return _Outcome(None, end)
    return _Outcome(result, result.end if _is_loss(result.end) else None)


def _is_loss(end: EpisodeEnd | None) -> bool:
    return end is not None and end.reason == "lost" and end.blame == "infrastructure"

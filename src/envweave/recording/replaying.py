"""Plays a recorded episode again, step by step, and finds the first difference.

`EpisodeReplay` makes no calls itself: it yields them, so that it serves sync and async callers.
`replay_on` and `replay_on_async` make its calls on a transport.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, final

from envweave.codec.digest import digest
from envweave.codec.spec import short_repr
from envweave.errors import ActionError, EnvWeaveError, TaskError, format_error
from envweave.recording.events import pack
from envweave.types import Episode, ResetResult, StepResult, Task, Tasks, ToolResult
from envweave.types.results import same
from envweave.wire.encoding import MSGPACK

MEASURED = "duration_s"
"""The name of fields with measured times, which are not compared."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a replay first differs from its recording.

    Attributes:
        step: The step, from 1; 0 for the reset.
        field: The part of the result, such as `observation.value` or `reward`.
        recorded: Its recorded value; `None` if there was none, or if it is too large to be kept.
        replayed: Its value in the replay.
    """

    step: int
    field: str
    recorded: Any
    replayed: Any

    def __str__(self) -> str:
        recorded, replayed = short_repr(self.recorded), short_repr(self.replayed)
        return f"step {self.step}, {self.field}: recorded {recorded}, replayed {replayed}"


@dataclass(frozen=True, slots=True)
class ReplayReset:
    """A call of a replay: `reset` with these keywords."""

    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """A call of a replay: `step` with this action, or with the answer to a tool call."""

    action: Any


ReplayCall: TypeAlias = ReplayReset | ReplayStep


class Replayable(Protocol):
    """Where a sync caller replays."""

    def reset(
        self,
        *,
        seed: int | None = None,
        task: Task | str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> ResetResult[Any]:
        """Begin an episode."""
        ...

    def step(self, action: Any) -> StepResult[Any]:
        """Take one step."""
        ...


class AsyncReplayable(Protocol):
    """Where an async caller replays."""

    async def reset(
        self,
        *,
        seed: int | None = None,
        task: Task | str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> ResetResult[Any]:
        """Begin an episode."""
        ...

    async def step(self, action: Any) -> StepResult[Any]:
        """Take one step."""
        ...


@final
@dataclass(frozen=True, slots=True)
class EpisodeEdges:
    """What the log of an episode knows besides its steps.

    Attributes:
        calls_at_start: The tool calls of its start.
        acting: The agents that must act at its end; `None` for one agent.
    """

    calls_at_start: Sequence[Any]
    acting: list[str] | None


@final
class EpisodeReplay:
    """The replay of one episode.

    Args:
        recorded: The episode, with plain observations and their digests.
        tasks: The tasks of the environment that replays it.
        is_whole: Whether the episode's end is compared too; otherwise it is still running.
        edges: What its log also knows; `None` for an episode that was loaded.

    Attributes:
        seed: The seed of the episode.
        steps: How many steps were replayed, without those before a fork.
        result: The result of the last call.
    """

    def __init__(
        self,
        recorded: Episode,
        tasks: Tasks | None,
        *,
        is_whole: bool = True,
        edges: EpisodeEdges | None = None,
    ) -> None:
        self._edges = edges
        self._recorded = recorded
        self._tasks = tasks
        self._is_whole = is_whole
        self._calls: dict[str, str] = {}  # the ids of tool calls: recorded, and of the replay
        self.seed = recorded.seed
        self.steps = 0
        self.result: Any = None

    def calls(self) -> Generator[ReplayCall, StepResult[Any], Difference | None]:
        """Yield the calls to make, and take their results or errors; return the difference."""
        recorded = self._recorded
        try:
            result = yield from self._reset()
            for action in recorded.inherited:
                result = yield ReplayStep(self.answering(action))
        except EnvWeaveError as error:
            return Difference(0, "reset", "an episode began", format_error(error))
        self.result = result
        difference = self._compare(0, recorded.observations[0], recorded.digests[0], result)
        if difference is None and not recorded.inherited:
            difference = find_difference("info", recorded.info, _plain(result.info), 0)
        if difference is None and self._edges is not None:
            before, now = _called(self._edges.calls_at_start), _called(result.tool_calls)
            difference = find_difference("tool_calls", before, now, 0)
            self._match_calls(self._edges.calls_at_start, result)
        for place, step in enumerate(recorded.steps):
            if difference is not None:
                return difference
            try:
                result = yield ReplayStep(self.answering(step.action))
            except EnvWeaveError as error:
                name = "action" if isinstance(error, ActionError) else "step"
                return Difference(step.step_index, name, "a step", format_error(error))
            self.result = result
            self.steps += not step.is_answer
            seen = recorded.observations[place + 1]
            difference = self._compare(step.step_index, seen, recorded.digests[place + 1], result)
            difference = difference or self._compare_outcome(step, result)
            self._match_calls(step.events, result)
        return difference or self._compare_end(result)

    @property
    def call_ids(self) -> dict[str, str]:
        """The ids of its tool calls, with those that they have in the recording."""
        return {now: before for before, now in self._calls.items()}

    def _reset(self) -> Generator[ReplayCall, StepResult[Any], StepResult[Any]]:
        recorded = self._recorded
        asked: dict[str, Any] = {"seed": recorded.seed, "options": recorded.options}
        if recorded.task_id is None:
            return (yield ReplayReset(asked))
        if recorded.task is None or self._tasks is not None:
            try:
                return (yield ReplayReset({"task": recorded.task_id, **asked}))
            except TaskError:
                if recorded.task is None:
                    raise
        return (yield ReplayReset({"task": recorded.task, **asked}))

    def answering(self, action: Any) -> Any:
        """Return an action; an answer gets the id that its tool call has in the replay."""
        if isinstance(action, ToolResult):
            call_id = self._calls.get(action.call_id, action.call_id)
            return ToolResult(call_id, action.value, action.error)
        return action

    def _match_calls(self, recorded: Iterable[Any], result: StepResult[Any]) -> None:
        for before, now in zip(_tool_calls(recorded), result.tool_calls, strict=False):
            self._calls[before.call_id] = now.call_id

    def _compare(
        self, step: int, recorded: Any, recorded_digest: str, result: StepResult[Any]
    ) -> Difference | None:
        replayed = _plain(result.observation)
        if digest(replayed) == recorded_digest:
            return None
        return find_difference("observation", recorded, replayed, step)

    def _compare_outcome(self, step: Any, result: StepResult[Any]) -> Difference | None:
        index = step.step_index
        outcomes = {
            "reward": (step.reward, result.reward),
            "terminated": (step.terminated, result.terminated),
            "info": (step.info, result.info),
            "tool_calls": (_called(step.events), _called(result.tool_calls)),
        }
        if not self._is_cut_at(index):
            outcomes["truncated"] = (step.truncated, result.truncated)
        for name, (recorded, replayed) in outcomes.items():
            difference = find_difference(name, recorded, _plain(replayed), index)
            if difference is not None:
                return difference
        return None

    def _is_cut_at(self, index: int) -> bool:
        """Whether the episode's caller, not its environment, may have truncated it here."""
        return self._recorded.end.reason == "truncated" and index == self._recorded.length

    def _compare_end(self, result: StepResult[Any]) -> Difference | None:
        recorded, end = self._recorded.end, result.end
        step, now = self._recorded.length, None if end is None else end.reason
        if not self._is_whole:
            if end is not None:
                return Difference(step, "end", None, now)
            return None if self._edges is None else self._compare_acting(self._edges.acting, result)
        if end is None and recorded.reason == "truncated":
            return None  # its caller truncated it
        if recorded.reason != now:
            return Difference(step, "end", recorded.reason, now)
        assert end is not None
        if recorded.blame != end.blame:
            return Difference(step, "end.blame", recorded.blame, end.blame)
        return None

    def _compare_acting(
        self, before: list[str] | None, result: StepResult[Any]
    ) -> Difference | None:
        needs = result._needs  # noqa: SLF001 - a result's own field
        now = None if needs is None else [need.agent_id for need in needs]
        return None if now == before else Difference(self._recorded.length, "needs", before, now)


def replay_on(replay: EpisodeReplay, target: Replayable) -> Difference | None:
    """Make the calls of a replay; return the first difference."""
    calls = replay.calls()
    try:
        call = next(calls)
        while True:
            try:
                if isinstance(call, ReplayReset):
                    result: StepResult[Any] = target.reset(**call.params)
                else:
                    result = target.step(call.action)
            except EnvWeaveError as error:
                call = calls.throw(error)
            else:
                call = calls.send(result)
    except StopIteration as stop:
        difference: Difference | None = stop.value
        return difference


async def replay_on_async(replay: EpisodeReplay, target: AsyncReplayable) -> Difference | None:
    """Make the calls of a replay; return the first difference."""
    calls = replay.calls()
    try:
        call = next(calls)
        while True:
            try:
                if isinstance(call, ReplayReset):
                    result: StepResult[Any] = await target.reset(**call.params)
                else:
                    result = await target.step(call.action)
            except EnvWeaveError as error:
                call = calls.throw(error)
            else:
                call = calls.send(result)
    except StopIteration as stop:
        difference: Difference | None = stop.value
        return difference


def _tool_calls(events: Iterable[Any]) -> list[Any]:
    return [one for one in events if getattr(one, "type", "") == "tool_call_request"]


def _called(events: Iterable[Any]) -> list[dict[str, Any]]:
    """Return what tool calls ask for, without their ids, which may differ."""
    return [{"name": one.name, "arguments": _plain(one.arguments)} for one in _tool_calls(events)]


def _plain(value: Any) -> Any:
    return MSGPACK.decode(pack(value))


def find_difference(name: str, recorded: Any, replayed: Any, step: int) -> Difference | None:
    """Return the first difference of two plain values."""
    if isinstance(recorded, dict) and isinstance(replayed, dict):
        for key in [*recorded, *(key for key in replayed if key not in recorded)]:
            if key == MEASURED:
                continue
            path = f"{name}.{key}"
            if (key in recorded) != (key in replayed):
                return Difference(step, path, recorded.get(key), replayed.get(key))
            difference = find_difference(path, recorded[key], replayed[key], step)
            if difference is not None:
                return difference
        return None
    if isinstance(recorded, list) and isinstance(replayed, list) and len(recorded) == len(replayed):
        for place, (before, now) in enumerate(zip(recorded, replayed, strict=True)):
            difference = find_difference(f"{name}[{place}]", before, now, step)
            if difference is not None:
                return difference
        return None
    return None if same(recorded, replayed) else Difference(step, name, recorded, replayed)

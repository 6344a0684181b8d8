"""The log of the running episode, in memory: what a fork needs to play it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, final

from envweave.codec.digest import digest
from envweave.errors import BadReturnError
from envweave.recording.events import TakenEnd, TakenReset, TakenResult, TakenStep, pack
from envweave.recording.replaying import EpisodeEdges, EpisodeReplay
from envweave.recording.writer import EventWriter
from envweave.session.snapshot import snapshot
from envweave.types import Episode, EpisodeEnd, EpisodeStep, Task, Tasks, ToolResult
from envweave.types.requests import REFUSED, ToolCallRequest
from envweave.wire.encoding import MSGPACK

LARGE = 4096
"""Of observations with more bytes than this, only the digest is kept."""

_EXACT = frozenset((bool, int, float, str, bytes))
"""The types of actions that packing does not change."""

_unpack = MSGPACK.decode


@final
class EpisodeLog:
    """Keeps the events of the running episode of one environment, and passes all events on.

    Args:
        writer: Takes the events too, if the episodes are recorded.
    """

    def __init__(self, writer: EventWriter | None = None) -> None:
        self._writer = writer
        # Of the running episode; empty if there is none. Points share it: it only grows, and
        # another episode begins another list.
        self._taken: list[Any] = []
        self._about = _About()
        self._length = 0
        self._action: Any = None  # of the step under way
        self._call_ids: Mapping[str, str] = {}  # of a continued episode; see `continue_from`

    def keep_action(self, action: Any) -> None:
        """Keep the action of the step that begins: what packing would change, as it is."""
        self._action = None if type(action) in _EXACT else _copy(action)

    def keep_request(self, task: Task | str | None, options: Any) -> None:
        """Keep what the episode that begins was given, as it is."""
        self._about = _About(task=task, options=_copy(options))

    def put(self, taken: Any, size: int) -> None:
        """Take an event."""
        if self._writer is not None:
            self._writer.put(taken, size)
        kind = type(taken)
        if kind is TakenReset:
            result = _Unpacked(taken.result)
            self._begin(taken, self._about, result)
        elif kind is TakenEnd:
            self._taken = []
        elif not self._taken:
            return  # its start is not known, so it cannot be played again
        elif kind is TakenStep:
            self._taken.append(_without_large(taken, self._action))
            self._length, self._about.acting = taken.step, None
        elif kind is TakenResult:
            self._add(taken)

    def _begin(self, start: Any, about: _About, result: _Unpacked) -> None:
        about.episode_id = result.episode_id
        about.acting = _acting(result.needs)
        self._taken, self._about, self._length, self._call_ids = [start], about, 0, {}

    def _add(self, taken: TakenResult) -> None:
        result = _Unpacked(taken.result)
        if result.ready is not None:
            result.episode_id = result.ready["episode_id"]
            start = {**result.ready, "events": result.ready_events}
            self._begin(start, _About(task=self._about.task), result)
            return
        if result.end is not None:
            self._taken = []
        elif type(result.info) is not dict or REFUSED not in result.info:
            seen, action = None, self._action
            if taken.is_answer:
                call_id = self._call_ids.get(action.call_id, action.call_id)
                action = ToolResult(call_id, action.value, action.error)
            if len(taken.result) > LARGE:
                seen = digest(result.observation)
                taken = taken._replace(result=pack([None, *_unpack(taken.result)[1:]]))
            self._taken.append(_LoggedStep(taken, action, seen))
            self._length, self._about.acting = result.step_index, _acting(result.needs)

    def hurry(self) -> None:
        """Have what was put written at once."""
        if self._writer is not None:
            self._writer.hurry()

    def close(self) -> None:
        """End the recording."""
        self._taken = []
        if self._writer is not None:
            self._writer.close()

    def point(self) -> LoggedPoint | None:
        """Return the point that the running episode has reached; `None` if there is none."""
        if not self._taken:
            return None
        return LoggedPoint(self._taken, len(self._taken), replace(self._about), self._length)

    def continue_from(
        self, point: LoggedPoint | None, episode_id: str | None, call_ids: Mapping[str, str]
    ) -> None:
        """Continue from a point of another episode, from which this one was forked.

        Args:
            point: The point; `None` if it is not known what leads there.
            episode_id: The episode that continues.
            call_ids: The ids of its tool calls, with those that they have before the point.
        """
        self._taken, self._call_ids = [], call_ids
        if point is not None:
            self._taken = point.taken[: point.count]
            self._about = replace(point.about, episode_id=episode_id)
            self._length = point.length


@final
@dataclass(slots=True)
class _About:
    """What is known of an episode besides its steps.

    Attributes:
        episode_id: The episode.
        task: The task that it was given, with its private part.
        options: The options that it was given.
        acting: The agents that must act now; `None` for one agent.
    """

    episode_id: str | None = None
    task: Task | str | None = None
    options: Any = None
    acting: list[str] | None = None


@final
@dataclass(frozen=True, slots=True)
class LoggedPoint:
    """A point of a logged episode. It shares the log.

    Attributes:
        taken: The start of the episode, its steps up to here, and maybe later ones.
        count: How many of these are up to here.
        about: The episode.
        length: How many steps it had taken.
    """

    taken: list[Any] = field(repr=False)
    count: int
    about: _About
    length: int

    def episode(self) -> Episode:
        """Return the episode up to here, with plain values."""
        episode = self._started(self.taken[0])
        for logged in self.taken[1 : self.count]:
            _extend(episode, logged)
        episode.length = self.length
        return episode

    def replay(self, tasks: Tasks | None) -> EpisodeReplay:
        """Return the replay that leads here, in an environment with these tasks."""
        start = self.taken[0]
        is_reset = isinstance(start, TakenReset)
        calls = _calls(_Unpacked(start.result).events if is_reset else start["events"])
        edges = EpisodeEdges(calls, self.about.acting)
        return EpisodeReplay(self.episode(), tasks, is_whole=False, edges=edges)

    def _started(self, start: Any) -> Episode:
        asked_seed = None
        if isinstance(start, TakenReset):
            result, asked_seed = _Unpacked(start.result), _unpack(start.asked).get("seed")
            observation, info, task_id = result.observation, result.info, result.task_id
        else:  # an `AutoResetReady`
            observation, info = start["initial_obs"], start["initial_info"]
            task_id = start["task_id"]
        seed = info.get("seed") if isinstance(info, dict) else None
        task = self.about.task
        return Episode(
            task=task if isinstance(task, Task) and task.id == task_id else None,
            task_id=task_id,
            seed=asked_seed if seed is None else seed,
            options=self.about.options,
            episode_id=self.about.episode_id,
            info=info,
            final_observation=observation,
            digests=[digest(observation)],
            end=EpisodeEnd("truncated", cause="The episode is still running."),
        )


def _extend(episode: Episode, logged: _LoggedStep) -> None:
    taken, action, seen = logged
    terminated = truncated = False
    events: tuple[Any, ...] = ()
    if isinstance(taken, TakenStep):
        observation, reward, info = _unpack(taken.outcome)
        observation = observation if taken.array is None else taken.array
        step_index = taken.step
    else:
        result = _Unpacked(taken.result)
        observation, reward, info = result.observation, result.reward, result.info
        terminated, truncated = result.terminated, result.truncated
        step_index, events = result.step_index, _calls(result.events)
    episode.steps.append(
        EpisodeStep(
            observation=episode.final_observation,
            action=_unpack(taken.action) if action is None else action,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            info=info,
            events=events,
            step_index=step_index,
        )
    )
    episode.final_observation = observation
    episode.digests.append(digest(observation) if seen is None else seen)


class _LoggedStep(NamedTuple):
    """A step of the running episode.

    Attributes:
        taken: Its event, without an observation that is large.
        action: The action as it was given; `None` if the event has it.
        seen: The digest of a large observation; `None` for others.
    """

    taken: TakenStep | TakenResult
    action: Any
    seen: str | None


def _without_large(taken: TakenStep, action: Any) -> _LoggedStep:
    """Return an ordinary step, with the digest of a large observation in place of it."""
    array = taken.array
    if array is not None and array.nbytes > LARGE:
        return _LoggedStep(taken._replace(array=None), action, digest(array))
    if len(taken.outcome) > LARGE:
        observation, *rest = _unpack(taken.outcome)
        outcome = pack((None, *rest))
        return _LoggedStep(taken._replace(outcome=outcome), action, digest(observation))
    return _LoggedStep(taken, action, None)


def _copy(value: Any) -> Any:
    """Return a copy of what a caller gave; what cannot be copied is kept itself."""
    try:
        return snapshot(value)
    except BadReturnError:
        return value


def _acting(needs: Any) -> list[str] | None:
    return None if needs is None else [need["agent_id"] for need in needs]


@final
class _Unpacked:
    """The fields of a result that `pack_result` packed."""

    def __init__(self, packed: bytes) -> None:
        (
            self.observation, self.reward, self.terminated, self.truncated, self.info, self.end,
            self.ready, self.episode_id, self.step_index, self.task_id, self.needs, self.events,
            self.ready_events,
        ) = _unpack(packed)  # fmt: skip


def _calls(events: Any) -> tuple[ToolCallRequest, ...]:
    """Return the tool calls among packed events."""
    return tuple(
        ToolCallRequest(one["call_id"], one["name"], one["arguments"])
        for one in events
        if one.get("type") == "tool_call_request"
    )

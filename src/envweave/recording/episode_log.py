"""The log of the running episode, in memory: what a fork needs to play it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

from envweave.codec.digest import digest
from envweave.recording.events import TakenEnd, TakenReset, TakenResult, TakenStep
from envweave.recording.writer import EventWriter
from envweave.types import Episode, EpisodeEnd, EpisodeStep, Task, ToolResult
from envweave.types.requests import REFUSED, ToolCallRequest
from envweave.wire.encoding import MSGPACK

LARGE = 4096
"""Arrays of more bytes than this are kept as their digest only."""

_unpack = MSGPACK.decode


@final
class EpisodeLog:
    """Keeps the events of the running episode of one environment, and passes all events on.

    Args:
        writer: Takes the events too, if the episodes are recorded.

    Attributes:
        task: The task that the running episode was given, with its private part.
    """

    def __init__(self, writer: EventWriter | None = None) -> None:
        self._writer = writer
        self._taken: list[Any] = []  # of the running episode; empty if there is none
        self.task: Task | str | None = None

    def put(self, taken: Any, size: int) -> None:
        """Take an event."""
        if self._writer is not None:
            self._writer.put(taken, size)
        kind = type(taken)
        if kind is TakenStep:
            array = taken.array
            if array is not None and array.nbytes > LARGE:
                taken = _LargeStep(taken, digest(array))
            self._taken.append(taken)
        elif kind is TakenReset:
            self._taken = [taken]
        elif kind is TakenEnd:
            self._taken = []
        elif kind is TakenResult:
            self._add(taken)

    def _add(self, taken: TakenResult) -> None:
        result = _Unpacked(taken.result)
        if result.ready is not None:
            self._taken = [result.ready]
        elif result.end is not None:
            self._taken = []
        elif type(result.info) is not dict or REFUSED not in result.info:
            self._taken.append(taken)

    def hurry(self) -> None:
        """Have what was put written at once."""
        if self._writer is not None:
            self._writer.hurry()

    def close(self) -> None:
        """End the recording."""
        self._taken = []
        if self._writer is not None:
            self._writer.close()

    def continue_from(self, episode: Episode, task: Task | str | None) -> None:
        """Continue the log of another episode, from which this one was forked."""
        self._taken, self.task = [episode], task

    def episode(self) -> Episode | None:
        """Return the running episode, with plain values; `None` if there is none."""
        if not self._taken:
            return None
        start = self._taken[0]
        if isinstance(start, Episode):
            episode = replace(start, steps=list(start.steps), digests=list(start.digests))
        else:
            episode = self._started(start)
        for taken in self._taken[1:]:
            self._extend(episode, taken)
        episode.length = max([0, *(one.step_index for one in episode.steps)])
        return episode

    def _started(self, start: Any) -> Episode:
        asked: Mapping[str, Any] = {}
        if isinstance(start, TakenReset):
            result, asked = _Unpacked(start.result), _unpack(start.asked)
            observation, info = result.observation, result.info
            episode_id, task_id = result.episode_id, result.task_id
        else:  # an `AutoResetReady`
            observation, info = start["initial_obs"], start["initial_info"]
            episode_id, task_id = start["episode_id"], start["task_id"]
        seed = info.get("seed") if isinstance(info, dict) else None
        task = self.task if isinstance(self.task, Task) and self.task.id == task_id else None
        return Episode(
            task=task,
            task_id=task_id,
            seed=asked.get("seed") if seed is None else seed,
            options=asked.get("options"),
            episode_id=episode_id,
            info=info,
            final_observation=observation,
            digests=[digest(observation)],
            end=EpisodeEnd("truncated", cause="The episode is still running."),
        )

    def _extend(self, episode: Episode, taken: Any) -> None:
        action = _unpack(taken.action)
        terminated = truncated = False
        events: tuple[Any, ...] = ()
        if isinstance(taken, TakenStep):
            observation, reward, info = _unpack(taken.outcome)
            observation = observation if taken.array is None else taken.array
            step_index, seen = taken.step, digest(observation)
        elif isinstance(taken, _LargeStep):
            _, reward, info = _unpack(taken.outcome)
            observation, step_index, seen = None, taken.step, taken.digest
        else:
            result = _Unpacked(taken.result)
            observation, reward, info = result.observation, result.reward, result.info
            terminated, truncated = result.terminated, result.truncated
            step_index, seen, events = result.step_index, digest(observation), _calls(result.events)
            if taken.is_answer:
                action = ToolResult(action["call_id"], action["value"], action["error"])
        episode.steps.append(
            EpisodeStep(
                observation=episode.final_observation,
                action=action,
                reward=reward,
                terminated=terminated,
                truncated=truncated,
                info=info,
                events=events,
                step_index=step_index,
            )
        )
        episode.final_observation = observation
        episode.digests.append(seen)


@final
class _LargeStep:
    """A step whose observation is large: only its digest is kept."""

    __slots__ = ("action", "digest", "outcome", "step")

    def __init__(self, taken: TakenStep, seen: str) -> None:
        self.action = taken.action
        self.outcome = taken.outcome
        self.step = taken.step
        self.digest = seen


@final
class _Unpacked:
    """The fields of a result that `pack_result` packed."""

    def __init__(self, packed: bytes) -> None:
        (
            self.observation, self.reward, self.terminated, self.truncated, self.info, self.end,
            self.ready, self.episode_id, self.step_index, self.task_id, _, self.events, _,
        ) = _unpack(packed)  # fmt: skip


def _calls(events: Any) -> tuple[ToolCallRequest, ...]:
    """Return the tool calls among packed events."""
    return tuple(
        ToolCallRequest(one["call_id"], one["name"], one["arguments"])
        for one in events
        if one.get("type") == "tool_call_request"
    )

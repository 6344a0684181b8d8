"""Replays recorded episodes, and reports the first difference of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

from envweave.api.env import Env
from envweave.api.make import make
from envweave.codec.digest import digest
from envweave.codec.spec import short_repr
from envweave.errors import (
    ActionError,
    EnvWeaveError,
    RecordingError,
    TaskError,
    format_error,
)
from envweave.recording.reader import EpisodeSummary, RecordedRun, Recording, load
from envweave.recording.recorder import pack
from envweave.types import Episode, StepResult, ToolResult
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
        recorded: Its recorded value; `None` if there was none.
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
class ReplayedEpisode:
    """The outcome of replaying one episode.

    Attributes:
        episode_id: The episode.
        env_id: The ID that it was recorded with.
        status: `"equal"`, `"different"`, or `"not replayed"`.
        steps: How many steps were replayed.
        difference: The first difference.
        reason: Why it was not replayed.
    """

    episode_id: str | None
    env_id: str
    status: Literal["equal", "different", "not replayed"]
    steps: int = 0
    difference: Difference | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The outcome of a replay.

    Attributes:
        episodes: The outcome of each episode, in the order in which they began.
    """

    episodes: list[ReplayedEpisode] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs. Episodes that were not replayed show no difference."""
        return not self.different

    @property
    def different(self) -> list[ReplayedEpisode]:
        """The episodes that differ."""
        return [one for one in self.episodes if one.status == "different"]

    @property
    def not_replayed(self) -> list[ReplayedEpisode]:
        """The episodes that were not replayed."""
        return [one for one in self.episodes if one.status == "not replayed"]


def replay(
    path: str | os.PathLike[str],
    *,
    against: str | None = None,
    env: Any = None,
    episode: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    on_episode: Callable[[ReplayedEpisode], Any] | None = None,
) -> ReplayReport:
    """Make the environment of a recording again, replay its episodes, and compare every step.

    Seed, task, options and actions are those of the recording. Observation, reward, flags, info
    and end are compared; fields called `duration_s`, which hold measured times, are not. The
    recording is not changed.

    Args:
        path: The directory of the recording.
        against: The backend to replay on; by default the one it was recorded on, or `"inproc"`
            where a server recorded it.
        env: Another ID, class or function to replay against, such as another version; by default
            what was recorded.
        episode: The id of the one episode to replay; by default all of them.
        kwargs: Keywords for the environment's constructor, which replace recorded ones: those
            that look like secrets are not in the recording.
        on_episode: Called after each episode.

    Raises:
        RecordingError: There is no recording, or no such episode.
        EnvWeaveError: The environment cannot be made.
    """
    recording = load(path)
    chosen = recording.summaries if episode is None else [recording.summary(episode)]
    report = ReplayReport()
    for one in _replayed(recording, chosen, _Maker(against, env, kwargs or {})):
        report.episodes.append(one)
        if on_episode is not None:
            on_episode(one)
    return report


@final
class _Maker:
    """Makes the environments to replay against, one for each writer of a recording."""

    def __init__(self, against: str | None, env: Any, kwargs: Mapping[str, Any]) -> None:
        self._against = against
        self._env = env
        self._kwargs = kwargs

    def obstacle(self, run: RecordedRun) -> str | None:
        """Return why the episodes of a run cannot be replayed; `None` if they can."""
        if not run.deterministic:
            return f"{run.env_id} is not deterministic, as its author declared"
        if self._env is not None:
            return None
        definition = run.definition
        if definition is None:
            return f"the recording does not say how to make it again: {run.undefined}"
        missing = [one for one in definition.get("withheld", ()) if one not in self._kwargs]
        if missing:
            return (
                f"its keyword {missing[0]!r} was not recorded, as it looks like a secret; pass it"
            )
        return None

    def make(self, run: RecordedRun) -> Env:
        definition = run.definition or {}
        if self._env is not None:
            return make(
                self._env,
                backend=self._against,
                max_episode_steps=definition.get("max_episode_steps"),
                kwargs=self._kwargs,
            )
        backend = self._against
        if backend is None and run.backend != "server" and "://" not in definition["id"]:
            backend = run.backend
        return make(
            definition["id"],
            backend=backend,
            max_episode_steps=definition.get("max_episode_steps"),
            kwargs={**definition["kwargs"], **self._kwargs},
        )


def _replayed(
    recording: Recording, chosen: Iterable[EpisodeSummary], maker: _Maker
) -> Iterator[ReplayedEpisode]:
    made: dict[str, Env] = {}
    try:
        for summary in chosen:
            run = summary.run
            obstacle = maker.obstacle(run) or _episode_obstacle(summary)
            if obstacle is not None:
                yield ReplayedEpisode(summary.id, run.env_id, "not replayed", reason=obstacle)
                continue
            if run.id not in made:
                made[run.id] = maker.make(run)
            yield _replay_one(recording, summary, made[run.id])
    finally:
        for env in made.values():
            env.close()


def _episode_obstacle(summary: EpisodeSummary) -> str | None:
    end = summary.end
    if end is None:
        return "the recording has no end of it: its process was killed, or it is still running"
    if end.blame == "infrastructure":
        return f"it was lost: {end.cause or end.reason}"
    if summary.missing is not None:
        return f"its step {summary.missing} was not recorded"
    return None


def _replay_one(recording: Recording, summary: EpisodeSummary, env: Env) -> ReplayedEpisode:
    try:
        recorded = recording.load(summary, typed=False)
        prefix = _prefix(recording, recorded)
    except RecordingError as error:
        return ReplayedEpisode(summary.id, summary.run.env_id, "not replayed", reason=str(error))
    replaying = _Replay(env, recorded, prefix)
    difference = replaying.run()
    return ReplayedEpisode(
        summary.id,
        summary.run.env_id,
        "equal" if difference is None else "different",
        replaying.steps,
        difference,
    )


def _prefix(recording: Recording, episode: Episode) -> list[Any]:
    """Return the actions that lead to where an episode was forked from."""
    if episode.parent is None:
        return []
    parent = recording.load(recording.summary(episode.parent.episode), typed=False)
    own = [one.action for one in parent.steps if one.step_index <= episode.parent.step]
    return [*_prefix(recording, parent), *own]


@final
class _Replay:
    """The replay of one episode."""

    def __init__(self, env: Env, recorded: Episode, prefix: list[Any]) -> None:
        self._env = env
        self._recorded = recorded
        self._prefix = prefix
        self._calls: dict[str, str] = {}  # the ids of tool calls: recorded, and of the replay
        self.steps = 0

    def run(self) -> Difference | None:
        recorded = self._recorded
        try:
            result: StepResult[Any] = self._reset()
            for action in self._prefix:
                result = self._env.step(self._answering(action))
        except EnvWeaveError as error:
            return Difference(0, "reset", "an episode began", format_error(error))
        difference = self._compare(0, recorded.observations[0], recorded.digests[0], result)
        if difference is None:
            difference = _find("info", recorded.info, _plain(result.info), 0)
        for place, step in enumerate(recorded.steps):
            if difference is not None:
                return difference
            self._match_calls(recorded.steps[place - 1].events if place else (), result)
            try:
                result = self._env.step(self._answering(step.action))
            except EnvWeaveError as error:
                name = "action" if isinstance(error, ActionError) else "step"
                return Difference(step.step_index, name, "a step", format_error(error))
            self.steps += not step.is_answer
            seen = recorded.observations[place + 1]
            difference = self._compare(step.step_index, seen, recorded.digests[place + 1], result)
            difference = difference or self._compare_outcome(step, result)
        return difference or self._compare_end(result)

    def _reset(self) -> StepResult[Any]:
        recorded, env = self._recorded, self._env
        asked: dict[str, Any] = {"seed": recorded.seed, "options": recorded.options}
        if recorded.task_id is None:
            return env.reset(**asked)
        if recorded.task is None or env.tasks is not None:
            try:
                return env.reset(task=recorded.task_id, **asked)
            except TaskError:
                if recorded.task is None:
                    raise
        return env.reset(task=recorded.task, **asked)

    def _answering(self, action: Any) -> Any:
        if isinstance(action, ToolResult):
            call_id = self._calls.get(action.call_id, action.call_id)
            return ToolResult(call_id, action.value, action.error)
        return action

    def _match_calls(self, recorded: Iterable[Any], result: StepResult[Any]) -> None:
        called = [event for event in recorded if getattr(event, "type", "") == "tool_call_request"]
        for before, now in zip(called, result.tool_calls, strict=False):
            self._calls[before.call_id] = now.call_id

    def _compare(
        self, step: int, recorded: Any, recorded_digest: str, result: StepResult[Any]
    ) -> Difference | None:
        replayed = _plain(result.observation)
        if digest(replayed) == recorded_digest:
            return None
        return _find("observation", recorded, replayed, step)

    def _compare_outcome(self, step: Any, result: StepResult[Any]) -> Difference | None:
        index = step.step_index
        outcomes = {
            "reward": (step.reward, result.reward),
            "terminated": (step.terminated, result.terminated),
            "info": (step.info, result.info),
        }
        if not self._is_cut_at(index):
            outcomes["truncated"] = (step.truncated, result.truncated)
        for name, (recorded, replayed) in outcomes.items():
            difference = _find(name, recorded, _plain(replayed), index)
            if difference is not None:
                return difference
        return None

    def _is_cut_at(self, index: int) -> bool:
        """Whether the episode's caller, not its environment, may have truncated it here."""
        return self._recorded.end.reason == "truncated" and index == self._recorded.length

    def _compare_end(self, result: StepResult[Any]) -> Difference | None:
        recorded, end = self._recorded.end, result.end
        if end is None and recorded.reason == "truncated":
            return None  # its caller truncated it
        step, now = self._recorded.length, None if end is None else end.reason
        if recorded.reason != now:
            return Difference(step, "end", recorded.reason, now)
        assert end is not None
        if recorded.blame != end.blame:
            return Difference(step, "end.blame", recorded.blame, end.blame)
        return None


def _plain(value: Any) -> Any:
    return MSGPACK.decode(pack(value))


def _find(name: str, recorded: Any, replayed: Any, step: int) -> Difference | None:
    """Return the first difference of two plain values."""
    if isinstance(recorded, dict) and isinstance(replayed, dict):
        for key in [*recorded, *(key for key in replayed if key not in recorded)]:
            if key == MEASURED:
                continue
            path = f"{name}.{key}"
            if (key in recorded) != (key in replayed):
                return Difference(step, path, recorded.get(key), replayed.get(key))
            difference = _find(path, recorded[key], replayed[key], step)
            if difference is not None:
                return difference
        return None
    if isinstance(recorded, list) and isinstance(replayed, list) and len(recorded) == len(replayed):
        for place, (before, now) in enumerate(zip(recorded, replayed, strict=True)):
            difference = _find(f"{name}[{place}]", before, now, step)
            if difference is not None:
                return difference
        return None
    return None if same(recorded, replayed) else Difference(step, name, recorded, replayed)

"""Replays recorded episodes, and reports the first difference of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

from envweave.api.env import Env
from envweave.api.make import make
from envweave.errors import RecordingError
from envweave.recording.reader import EpisodeSummary, RecordedRun, Recording, load
from envweave.recording.replaying import Difference, EpisodeReplay, replay_on
from envweave.types import Episode, ToolResult


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
    for one in _replayed(recording, chosen, EnvMaker(against, env, kwargs or {})):
        report.episodes.append(one)
        if on_episode is not None:
            on_episode(one)
    return report


@final
class EnvMaker:
    """Makes the environments of a recording again, one for each of its writers.

    Args:
        against: The backend; by default the recorded one.
        env: Another ID, class or function.
        kwargs: Keywords for the constructor, which replace recorded ones.
        forkable: Whether they can be forked, even where they cannot be copied.
    """

    def __init__(
        self,
        against: str | None,
        env: Any,
        kwargs: Mapping[str, Any],
        *,
        forkable: bool = False,
    ) -> None:
        self._against = against
        self._env = env
        self._kwargs = kwargs
        self._forkable = forkable

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
        """Make the environment of a run.

        Raises:
            EnvWeaveError: It cannot be made.
        """
        definition = run.definition or {}
        if self._env is not None:
            return make(
                self._env,
                backend=self._against,
                max_episode_steps=definition.get("max_episode_steps"),
                kwargs=self._kwargs,
                forkable=self._forkable,
            )
        backend = self._against
        if backend is None and run.backend != "server" and "://" not in definition["id"]:
            backend = run.backend
        return make(
            definition["id"],
            backend=backend,
            max_episode_steps=definition.get("max_episode_steps"),
            kwargs={**definition["kwargs"], **self._kwargs},
            forkable=self._forkable,
        )


def _replayed(
    recording: Recording, chosen: Iterable[EpisodeSummary], maker: EnvMaker
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


def missing_parent(recorded: Episode) -> str | None:
    """Return that an episode was forked from one that is recorded elsewhere; `None` if not."""
    steps = sum(not isinstance(action, ToolResult) for action in recorded.inherited)
    if recorded.parent is None or steps >= recorded.parent.step:
        return None
    return f"the episode it was forked from, {recorded.parent.episode!r}, is not in this recording"


def _replay_one(recording: Recording, summary: EpisodeSummary, env: Env) -> ReplayedEpisode:
    try:
        recorded = recording.load(summary, typed=False)
        obstacle = missing_parent(recorded)
    except RecordingError as error:
        obstacle = str(error)
    if obstacle is not None:
        return ReplayedEpisode(summary.id, summary.run.env_id, "not replayed", reason=obstacle)
    replaying = EpisodeReplay(recorded, env.tasks)
    difference = replay_on(replaying, env)
    return ReplayedEpisode(
        summary.id,
        summary.run.env_id,
        "equal" if difference is None else "different",
        replaying.steps,
        difference,
    )

"""`load`, and what forks the episodes that it returns."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

from envweave.api.env import Env
from envweave.api.options import whole_number
from envweave.errors import ForkError
from envweave.recording import reader
from envweave.recording.reader import EpisodeSummary, Recording
from envweave.recording.replaying import EpisodeReplay, replay_on
from envweave.rollouts.replay import EnvMaker, missing_parent
from envweave.types import Episode, EpisodeEnd


def load(path: str | os.PathLike[str]) -> Recording:
    """Load the recording of a run, from the directory that was passed as `record=`.

    Its episodes can be forked: `load(path).episode(id).at(7).fork(8)`.

    Raises:
        RecordingError: The directory has no recording.
    """
    return reader.load(path, RecordedOrigin)


@final
class RecordedOrigin:
    """Forks one episode of a recording.

    A copy of the episode in another process has none: it is not pickled.
    """

    def __init__(self, recording: Recording, summary: EpisodeSummary) -> None:
        self._recording = recording
        self._summary = summary

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()

    def fork(
        self,
        step: int,
        n: int,
        *,
        backend: str | None,
        env: Any,
        kwargs: Mapping[str, Any] | None,
    ) -> list[Env]:
        """Return environments that continue from a step. See `EpisodePoint.fork`."""
        count = whole_number("n", n)
        summary = self._summary
        maker = EnvMaker(backend, env, kwargs or {}, forkable=True)
        episode = self._recording.load(summary, typed=False)
        obstacle = maker.obstacle(summary.run) or missing_parent(episode)
        if obstacle is None and step == summary.steps and _has_ended(summary.end):
            obstacle = f"it ended with step {step}, so take an earlier one"
        if obstacle is not None:
            is_unknown = env is None and summary.run.definition is None
            hint = " Pass env=, the ID or class to make it of." if is_unknown else ""
            raise ForkError(f"Episode {summary.id!r} cannot be forked: {obstacle}.{hint}")
        taken = sum(one.step_index <= step for one in episode.steps)
        recorded = _whole(self._recording, summary, taken)
        first = maker.make(summary.run)
        try:
            difference = replay_on(EpisodeReplay(recorded, first.tasks, is_whole=False), first)
            if difference is not None:
                raise ForkError(
                    f"Episode {summary.id!r} cannot be forked at step {step}: taking its actions "
                    "again did not lead to the same state. The first difference is at "
                    f"{difference}."
                )
            return [first, *(first.fork(count - 1) if count > 1 else ())]
        except BaseException:
            first.close()
            raise


def _has_ended(end: EpisodeEnd | None) -> bool:
    return end is not None and end.reason != "truncated"


def _whole(recording: Recording, summary: EpisodeSummary, count: int) -> Episode:
    """Return the first steps and answers of an episode, with those of its parents before them."""
    own = recording.load(summary, typed=False, marked=False)
    own = replace(
        own,
        steps=own.steps[:count],
        final_observation=own.observations[count],
        digests=own.digests[: count + 1],
        length=max([0, *(one.step_index for one in own.steps[:count])]),
        end=EpisodeEnd("truncated", cause="It goes on."),
    )
    if own.parent is None:
        return own
    origin = recording.summary(own.parent.episode)
    before = _whole(recording, origin, recording.steps_before(summary))
    return replace(
        own,
        length=max(own.length, before.length),
        info=before.info,
        steps=[*before.steps, *own.steps],
        digests=[*before.digests, *own.digests[1:]],
        inherited=[],
    )

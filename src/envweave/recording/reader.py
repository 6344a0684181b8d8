"""Loads recordings: an index of where each episode's lines are, and episodes on access."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, final, overload

import msgspec

from envweave.errors import EnvWeaveError, RecordingError, suggest
from envweave.recording.events import SCHEMA
from envweave.recording.values import ValueReader
from envweave.recording.writer import PATTERN
from envweave.types import (
    AgentEnd,
    Episode,
    EpisodeEnd,
    EpisodeParent,
    EpisodeStep,
    Task,
    ToolCallRequest,
    ToolResult,
)
from envweave.types.episodes import EpisodeOrigin
from envweave.wire.description import Rebuilt, read_description
from envweave.wire.results import EVENTS, IDENTITY, Rebuild

_read = msgspec.json.Decoder().decode


class _Indexed(msgspec.Struct):
    """What the index reads of every line."""

    event: str
    t: float = 0.0
    episode: str | None = None
    row: int | None = None
    step: int = 0


class _IndexedReset(msgspec.Struct):
    """What the index reads of a `reset`."""

    t: float = 0.0
    seed: Any = None
    task_id: str | None = None
    group: int = 0
    member: int = 0
    attempt: int = 1
    parent: dict[str, Any] | None = None


class _IndexedEnd(msgspec.Struct):
    """What the index reads of an `end`."""

    reason: str
    step: int = 0
    blame: str | None = None
    message: str | None = None
    reward: Any = None
    reward_parts: dict[str, Any] = {}
    duration_s: float | None = None


_read_indexed = msgspec.json.Decoder(_Indexed).decode
_read_reset = msgspec.json.Decoder(_IndexedReset).decode
_read_end = msgspec.json.Decoder(_IndexedEnd).decode


@final
class RecordedRun:
    """The recording of one writer: what it is of, from the first line of its file.

    Attributes:
        path: The file.
        id: The id of the run.
        env_id: The ID of the environment.
        backend: Where it ran.
        definition: How to make the environment again; `None` where `undefined` says why not.
        undefined: Why there is no definition.
        versions: The versions of envweave, Python, numpy and the environment's package.
        deterministic: Whether the same seed, task and actions give the same episode.
        spec_digest: The digest of its specs.
        header: All fields of the line.
        is_closed: Whether its writer closed it.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self.header = header
        self.id: str = str(header.get("run", ""))
        self.env_id: str = str(header.get("env_id", ""))
        self.backend: str | None = header.get("backend")
        self.definition: dict[str, Any] | None = header.get("definition")
        self.undefined: str | None = header.get("undefined")
        self.versions: dict[str, str] = header.get("versions") or {}
        self.spec_digest: str | None = header.get("spec_digest")
        self.is_closed = False
        self._rebuild: Rebuild | None = None

    @property
    def deterministic(self) -> bool:
        """Whether the same seed, task and actions give the same episode."""
        return bool((self.header.get("description") or {}).get("deterministic", True))

    @property
    def possible_agents(self) -> tuple[str, ...] | None:
        """Every agent that may take part; `None` for one unnamed agent."""
        agents = (self.header.get("description") or {}).get("possible_agents")
        return None if agents is None else tuple(agents)

    @property
    def rebuild(self) -> Rebuild:
        """Makes observations of plain data; leaves it plain if it cannot read the description."""
        if self._rebuild is None:
            self._rebuild = IDENTITY
            with contextlib.suppress(EnvWeaveError):
                self._rebuild = Rebuilt(read_description(self.header.get("description"))).rebuild
        return self._rebuild

    def __repr__(self) -> str:
        return f"RecordedRun({str(self.path)!r}, env_id={self.env_id!r})"


@dataclass(frozen=True, slots=True)
class RecordedLine:
    """Where a line is.

    Attributes:
        path: The file.
        offset: Where it begins, in bytes.
        size: How long it is, with its newline.
    """

    path: Path
    offset: int
    size: int

    def read(self) -> bytes:
        """Return the line."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


@dataclass(slots=True)
class EpisodeSummary:
    """What the index knows of an episode, without reading its steps.

    Attributes:
        id: The episode's id.
        run: The recording it is in.
        row: The row of a vector; `None` for one environment.
        began: When it began, in seconds since 1970.
        seed: The seed of its reset.
        task_id: The id of its task.
        group: The group it belongs to, in a rollout.
        member: Which one of its group it is.
        attempt: Which attempt at playing it this is, from 1.
        parent: Where it was forked from.
        steps: How many steps it has.
        end: What ended it; `None` while the recording has no end of it.
        reward: Its whole reward; `None` without an end, and if nothing was scored.
        reward_parts: The sums of the parts.
        duration_s: How long it took.
        missing: The first step that is missing, if a step could not be recorded; the episode
            then cannot be loaded.
        offsets: Where its lines begin, in the file `run.path`.
        sizes: How long they are.
    """

    id: str | None
    run: RecordedRun
    row: int | None
    began: float
    seed: int | None = None
    task_id: str | None = None
    group: int = 0
    member: int = 0
    attempt: int = 1
    parent: EpisodeParent | None = None
    steps: int = 0
    end: EpisodeEnd | None = None
    reward: Any = None
    reward_parts: dict[str, Any] = field(default_factory=dict)
    duration_s: float = 0.0
    missing: int | None = None
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    @property
    def usable(self) -> bool:
        """Whether it may be trained on: it ended, and only the agent may have failed."""
        return self.end is not None and self.end.valid

    @property
    def lines(self) -> list[RecordedLine]:
        """Where its lines are."""
        places = zip(self.offsets, self.sizes, strict=True)
        return [RecordedLine(self.run.path, offset, size) for offset, size in places]


@final
class _File:
    """The index of one file, as far as it was read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run: RecordedRun | None = None
        self.position = 0
        self.episodes: list[EpisodeSummary] = []
        self._open: dict[tuple[int | None, str | None], EpisodeSummary] = {}

    def scan(self, problems: list[str], values: ValueReader) -> None:
        """Read the lines that were added. A line that is not whole yet is left for later."""
        with self.path.open("rb") as file:
            file.seek(self.position)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                try:
                    self._add(line, values)
                except (msgspec.MsgspecError, UnicodeError, EnvWeaveError) as error:
                    problems.append(f"{self.path.name}, byte {self.position}: {error}")
                self.position += len(line)

    def _add(self, line: bytes, values: ValueReader) -> None:
        indexed = _read_indexed(line)
        if indexed.event == "run":
            self._add_run(line, values)
            return
        if self.run is None:
            raise RecordingError("The file does not begin with the event 'run'.")
        if indexed.event == "close":
            self.run.is_closed = True
            return
        key = (indexed.row, indexed.episode)
        if indexed.event == "reset":
            read = _read_reset(line)
            parent = read.parent
            self._open[key] = episode = EpisodeSummary(
                indexed.episode,
                self.run,
                indexed.row,
                indexed.t,
                read.seed,
                read.task_id,
                read.group,
                read.member,
                read.attempt,
                None if parent is None else EpisodeParent(parent["episode"], parent["step"]),
                0 if parent is None else parent["step"],
            )
            self.episodes.append(episode)
        elif (found := self._open.get(key)) is None:
            raise RecordingError(f"A {indexed.event!r} of an episode that never began.")
        else:
            episode = found
        episode.offsets.append(self.position)
        episode.sizes.append(len(line))
        if indexed.event in ("step", "answer"):
            if indexed.step != episode.steps + (indexed.event == "step"):
                episode.missing = episode.missing or episode.steps + 1
            episode.steps = max(episode.steps, indexed.step)
        episode.duration_s = indexed.t - episode.began
        if indexed.event == "end":
            del self._open[key]
            self._add_end(episode, line, values)

    def _add_run(self, line: bytes, values: ValueReader) -> None:
        header = values.read(_read(line))
        schema = header.get("schema")
        if not isinstance(schema, int) or schema > SCHEMA:
            raise RecordingError(
                f"The recording has schema {schema!r}, and this envweave reads up to {SCHEMA}. "
                "Load it with a newer version: pip install -U envweave."
            )
        self.run = RecordedRun(self.path, header)

    def _add_end(self, episode: EpisodeSummary, line: bytes, values: ValueReader) -> None:
        read: Any = _read_end(line)
        episode.end = EpisodeEnd(read.reason, read.blame, read.message)
        episode.reward = values.read(read.reward)
        episode.reward_parts = values.read(read.reward_parts)
        if read.duration_s is not None:
            episode.duration_s = read.duration_s


@final
class Recording:
    """The recording of a run: all episodes that were recorded into its directory.

    Iterating over it loads one `Episode` after the other. Its steps are read when an episode is
    loaded; until then there is an index of a few figures for each (`summaries`).

    Attributes:
        path: The directory.
        problems: Lines that could not be read, and why. All others are right.
    """

    def __init__(
        self,
        path: Path,
        origin_of: Callable[[Recording, EpisodeSummary], EpisodeOrigin] | None = None,
    ) -> None:
        self.path = path
        self.problems: list[str] = []
        self._origin_of = origin_of
        self._values = ValueReader(path)
        self._files: dict[Path, _File] = {}
        self._summaries: list[EpisodeSummary] = []
        self._by_id: dict[str | None, EpisodeSummary] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read what was recorded since the last time."""
        for path in sorted(self.path.glob(PATTERN)):
            if path not in self._files:
                self._files[path] = _File(path)
            self._files[path].scan(self.problems, self._values)
        episodes = [one for file in self._files.values() for one in file.episodes]
        self._summaries = sorted(episodes, key=lambda one: one.began)
        self._by_id = {one.id: one for one in self._summaries}

    @property
    def runs(self) -> list[RecordedRun]:
        """The recordings of its writers, one for each file."""
        return [file.run for file in self._files.values() if file.run is not None]

    @property
    def summaries(self) -> list[EpisodeSummary]:
        """What the index knows of each episode, in the order in which they began."""
        return list(self._summaries)

    @property
    def episodes(self) -> RecordedEpisodes:
        """The episodes in the order in which they began, loaded on access."""
        return RecordedEpisodes(self, self._summaries)

    def episode(self, episode_id: str) -> Episode:
        """Return an episode; the last one that began, if several have this id.

        Raises:
            RecordingError: There is no such episode, or it cannot be read.
        """
        return self.load(self.summary(episode_id))

    def summary(self, episode_id: str) -> EpisodeSummary:
        """Return what the index knows of an episode.

        Raises:
            RecordingError: There is no such episode.
        """
        found = self._by_id.get(episode_id)
        if found is None:
            near = suggest(episode_id, [one for one in self._by_id if one is not None])
            raise RecordingError(
                f"{str(self.path)!r} has no episode {episode_id!r}.{near} "
                f"It has {len(self._summaries)}."
            )
        return found

    def load(self, summary: EpisodeSummary, *, typed: bool = True, marked: bool = True) -> Episode:
        """Return the episode of one of the `summaries`.

        Args:
            summary: Which one.
            typed: Whether observations are objects, as the environment's description has them;
                otherwise they are plain data: dicts, lists, numbers, strings and arrays.
            marked: Whether the last step of an episode that its caller truncated is marked so.

        Raises:
            RecordingError: It cannot be read, or a step of it is missing.
        """
        if summary.missing is not None:
            raise RecordingError(
                f"Step {summary.missing} of episode {summary.id!r} was not recorded, so the "
                "episode cannot be loaded. The log of the program that recorded it says why."
            )
        episode = _Loader(summary, self._values, typed=typed).load()
        if marked:
            _mark_truncated(episode)
        if summary.parent is not None and summary.parent.episode in self._by_id:
            parent = self.load(self.summary(summary.parent.episode), typed=False)
            own = [one.action for one in parent.steps[: self.steps_before(summary)]]
            episode.inherited = [*parent.inherited, *own]
        if self._origin_of is not None:
            episode.origin = self._origin_of(self, summary)
        return episode

    def steps_before(self, summary: EpisodeSummary) -> int:
        """Return how many steps and answers of its parent lead to where an episode was forked.

        A fork may be taken between a step and the answers to its tool calls, which have its number.

        Raises:
            RecordingError: The parent is not in this recording.
        """
        assert summary.parent is not None
        fork = _Loader(summary, self._values, typed=False)
        origin = self.summary(summary.parent.episode)
        episode = self.load(origin, typed=False)
        pending = _Loader(origin, self._values, typed=False).calls_at_start
        step = 0 if origin.parent is None else origin.parent.step
        if step == summary.parent.step and fork.is_at(pending, episode.digests[0]):
            return 0
        for count, one in enumerate(episode.steps, 1):
            if one.step_index > summary.parent.step:
                return count - 1
            pending += sum(isinstance(event, ToolCallRequest) for event in one.events)
            pending -= one.is_answer
            is_there = one.step_index == summary.parent.step
            if is_there and fork.is_at(pending, episode.digests[count]):
                return count
        return len(episode.steps)

    def __len__(self) -> int:
        return len(self._summaries)

    def __iter__(self) -> Iterator[Episode]:
        return iter(self.episodes)

    def __repr__(self) -> str:
        return f"Recording({str(self.path)!r}, episodes={len(self)})"


@final
class RecordedEpisodes(Sequence[Episode]):
    """The episodes of a recording, loaded on access."""

    def __init__(self, recording: Recording, summaries: Sequence[EpisodeSummary]) -> None:
        self._recording = recording
        self._summaries = summaries

    def __len__(self) -> int:
        return len(self._summaries)

    @overload
    def __getitem__(self, index: int) -> Episode: ...
    @overload
    def __getitem__(self, index: slice) -> RecordedEpisodes: ...
    def __getitem__(self, index: int | slice) -> Episode | RecordedEpisodes:
        """Return an episode, or some of them, loaded on access."""
        if isinstance(index, slice):
            return RecordedEpisodes(self._recording, self._summaries[index])
        return self._recording.load(self._summaries[index])


@final
class _Loader:
    """Makes an `Episode` of its lines."""

    def __init__(self, summary: EpisodeSummary, values: ValueReader, *, typed: bool) -> None:
        self._summary = summary
        self._values = values
        self._rebuild = summary.run.rebuild if typed else IDENTITY
        self._several = summary.run.possible_agents is not None

    def load(self) -> Episode:
        summary, run = self._summary, self._summary.run
        lines = iter(self._lines())
        start = next(lines)
        observation = self._observation(start["observation"])
        episode = Episode(
            task=_task(start.get("task")),
            task_id=summary.task_id,
            seed=summary.seed,
            group=summary.group,
            member=summary.member,
            episode_id=summary.id,
            info=start.get("info") or {},
            end=summary.end or _no_end(summary),
            length=summary.steps,
            duration_s=summary.duration_s,
            attempts=summary.attempt,
            env_id=run.env_id,
            options=start.get("options"),
            parent=summary.parent,
            digests=[start["digest"]],
            definition=run.definition,
        )
        needs, info, ended = start.get("needs"), episode.info, None
        for line in lines:
            if line["event"] == "end":
                ended = line
                continue
            if line["event"] == "restored":
                episode.restored += 1
                continue
            step = self._step(line, observation, self._mask(needs, info))
            episode.steps.append(step)
            episode.digests.append(line["digest"])
            metrics = line.get("metrics")
            if metrics:
                episode.metrics = {**episode.metrics, **metrics} if self._several else metrics
            observation = self._observation(line["observation"])
            needs, info = line.get("needs"), step.info
        episode.final_observation = observation
        if ended is None:
            nan = float("nan")
            agents = run.possible_agents
            episode.reward = nan if agents is None else dict.fromkeys(agents, nan)
        else:
            episode.end.rewards = ended.get("rewards") or {}
            episode.reward, episode.reward_parts = summary.reward, summary.reward_parts
        if self._several and episode.reward is None:
            episode.reward = {}
        return episode

    @cached_property
    def _start(self) -> dict[str, Any]:
        return next(iter(self._lines()))

    @property
    def calls_at_start(self) -> int:
        """How many tool calls wait for an answer when it begins."""
        requests = self._start.get("requests") or ()
        return sum(one["type"] == "tool_call_request" for one in requests)

    def is_at(self, pending: int, digest: str) -> bool:
        """Whether it begins with this many open tool calls, and this observation."""
        return pending == self.calls_at_start and digest == self._start["digest"]

    def _lines(self) -> Iterator[dict[str, Any]]:
        summary = self._summary
        try:
            with summary.run.path.open("rb") as file:
                for offset, size in zip(summary.offsets, summary.sizes, strict=True):
                    file.seek(offset)
                    line = file.read(size)
                    marked = b'"$' in line or b"\\u" in line
                    yield self._values.read(_read(line), has_marks=marked)
        except (OSError, msgspec.MsgspecError) as error:
            if isinstance(error, EnvWeaveError):
                raise
            raise RecordingError(
                f"Episode {summary.id!r} cannot be read from {str(summary.run.path)!r}: {error}"
            ) from error

    def _observation(self, plain: Any) -> Any:
        return self._rebuild(plain)

    def _step(self, line: dict[str, Any], seen: Any, mask: Any) -> EpisodeStep:
        if line["event"] == "answer":
            action: Any = ToolResult(line["call_id"], line.get("value"), line.get("error"))
        else:
            action = line.get("action")  # as `step` takes it
        return EpisodeStep(
            observation=seen,
            action=action,
            reward=line.get("reward"),
            terminated=line.get("terminated", False),
            truncated=line.get("truncated", False),
            info=line.get("info") or {},
            action_mask=mask,
            events=tuple(self._event(one) for one in line.get("requests") or ()),
            extra=line.get("extra"),
            step_index=line.get("step", 0),
        )

    def _mask(self, needs: Any, info: Any) -> Any:
        if not self._several:
            return info.get("action_mask")
        masks = {need["agent_id"]: need["action_mask"] for need in needs or ()}
        return masks if any(mask is not None for mask in masks.values()) else None

    def _event(self, plain: dict[str, Any]) -> Any:
        kind = EVENTS.get(plain.get("type"))
        if kind is None:
            return plain
        event = kind(**{name: plain[name] for name in kind.__struct_fields__ if name in plain})
        if isinstance(event, AgentEnd):
            event.observation = self._rebuild.one(event.agent_id, event.observation)
        return event


def _task(plain: Any) -> Task | None:
    if not isinstance(plain, dict) or "split" not in plain:
        return None
    names = ("id", "split", "data", "image", "limits")
    return Task(**{name: plain[name] for name in names if name in plain})


def _no_end(summary: EpisodeSummary) -> EpisodeEnd:
    return EpisodeEnd(
        "lost",
        "infrastructure",
        f"The recording has no end of this episode after step {summary.steps}: it is running, or "
        "its process was killed.",
    )


def _mark_truncated(episode: Episode) -> None:
    """Mark the last step of an episode that its caller truncated, as `rollout` does."""
    if episode.end.reason != "truncated" or not episode.steps:
        return
    last = episode.steps[-1]
    if isinstance(last.terminated, dict):
        if not any(last.truncated.values()):
            last.truncated = {agent: not over for agent, over in last.terminated.items()}
    elif not last.terminated:
        last.truncated = True


def load(
    path: str | os.PathLike[str],
    origin_of: Callable[[Recording, EpisodeSummary], EpisodeOrigin] | None = None,
) -> Recording:
    """Load the recording of a run, from the directory that was passed as `record=`.

    Args:
        path: The directory.
        origin_of: Returns what forks an episode; otherwise none can be forked.

    Raises:
        RecordingError: The directory has no recording.
    """
    directory = Path(path)
    if not any(directory.glob(PATTERN)):
        raise RecordingError(
            f"{str(directory)!r} has no recording: there is no file {PATTERN}. Record one with "
            "record=, such as ew.make(…, record='runs/x')."
        )
    return Recording(directory, origin_of)

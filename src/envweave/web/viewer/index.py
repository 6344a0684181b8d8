"""Where every episode and step of a run lies in its files.

A recording may be longer than memory, may still be written, and may be damaged. So its lines are
read once, what was appended since is read on the next request, and only places and a few figures
are kept: 12 bytes per step, where `load` keeps what it needs to make typed episodes. The lines
themselves are read again when they are shown, as they are.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import msgspec

from envweave.errors import OptionError
from envweave.recording.values import VALUES, ValueReader
from envweave.recording.writer import PATTERN

METRICS = "metrics.jsonl"

REFRESH_S = 0.3
"""How old an index may be when it is asked for."""

LIVE_S = 15.0
"""A file that was written to this recently, and not closed, is still being written."""

METRICS_BYTES = 1 << 20
"""How much of the metrics one call returns."""

VALUE_BYTES = 64 << 20
"""The largest stored value that is shown."""

AGENTS = 32
"""Of how many agents rewards are shown."""

_FILE_BITS = 48  # of a place: the offset; above them, the number of the file


class _Line(msgspec.Struct):
    """The fields of a line that the index needs; the others are skipped, not decoded."""

    event: str
    t: float = 0.0
    episode: str | None = None
    row: int | None = None
    step: int | None = None
    seed: Any = None
    task_id: Any = None
    parent: Any = None
    reward: Any = None
    reason: str | None = None
    blame: str | None = None
    message: Any = None
    duration_s: Any = None


_decode_line = msgspec.json.Decoder(_Line).decode


@final
class IndexedEpisode:
    """An episode: its figures, and the places of its lines.

    Attributes:
        lines: The places of `reset`, of every `step` and of every `answer`, in order.
        rewards: The reward of each of these lines; with several agents, the sum.
        reward: Its whole reward; with several agents, the sum.
        by_agent: Its whole reward by agent; `None` with one agent.
        is_scored: Whether it has a reward at all.
        end: The place of `end`; -1 while the episode runs.
    """

    __slots__ = (
        "blame", "by_agent", "duration_s", "end", "id", "is_scored", "lines", "message", "parent",
        "reason", "reward", "rewards", "row", "seed", "started", "steps", "task",
    )  # fmt: skip

    def __init__(self, episode_id: str) -> None:
        self.id = episode_id
        self.lines = array("Q")
        self.rewards = array("f")
        self.end = -1
        self.steps = 0
        self.reward = 0.0
        self.by_agent: dict[str, float] | None = None
        self.is_scored = False
        self.started = 0.0
        self.row: int | None = None
        self.seed: Any = None
        self.task = ""
        self.parent: dict[str, Any] | None = None
        self.reason: str | None = None
        self.blame: str | None = None
        self.message = ""
        self.duration_s: float | None = None

    def add(self, line: _Line, place: int) -> None:
        """Take in a line."""
        if line.event == "end":
            self.end = place
            self.reason, self.blame = line.reason, line.blame
            self.message = "" if line.message is None else str(line.message)
            if isinstance(line.duration_s, int | float):
                self.duration_s = float(line.duration_s)
            if line.reward is not None:
                self.is_scored = True
                self.reward = read_reward(line.reward)
                self.by_agent = read_rewards(line.reward)
            return
        self.lines.append(place)
        earned = read_reward(line.reward) if line.event == "step" else 0.0
        self.rewards.append(earned)
        if line.event == "reset":
            self.started, self.row, self.seed = line.t, line.row, line.seed
            self.task = "" if line.task_id is None else str(line.task_id)
            self.parent = _read_parent(line.parent)
        elif line.event == "step":
            self.steps = self.steps + 1 if line.step is None else max(self.steps, line.step)
            self.reward += earned
            self.is_scored = self.is_scored or line.reward is not None
            if (rewards := read_rewards(line.reward)) is not None:
                known = self.by_agent or {}
                self.by_agent = {**known, **{a: known.get(a, 0.0) + r for a, r in rewards.items()}}

    @property
    def returned(self) -> float | dict[str, float] | None:
        """Its whole reward, as people are shown it."""
        return (self.by_agent or self.reward) if self.is_scored else None

    def summary(self) -> dict[str, Any]:
        """Return its figures for a table."""
        return {
            "id": self.id,
            "row": self.row,
            "seed": self.seed,
            "task": self.task[:200],
            "steps": self.steps,
            "reward": self.returned,
            "reason": self.reason,
            "blame": self.blame,
            "message": self.message[:300],
            "started": self.started,
            "duration_s": self.duration_s,
            "parent": self.parent,
        }


@final
class _EventsFile:
    """One file of a run, and how far it was read."""

    def __init__(self, path: Path, number: int) -> None:
        self.path = path
        self.number = number
        self.read = 0
        self.is_closed = False

    def lines(self) -> Iterator[tuple[bytes, int]]:
        """Yield the whole lines that were appended, with their places."""
        with self.path.open("rb") as file:
            file.seek(self.read)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # it is still being written, or was cut off
                place = self.number << _FILE_BITS | self.read
                self.read += len(line)
                yield line, place


@final
class RunIndex:
    """The index of one run. Its methods may be called from any thread.

    Args:
        folder: The folder of the run.
        run_id: Its path below the folder that is viewed.

    Attributes:
        broken: The number of lines that cannot be read.
    """

    def __init__(self, folder: Path, run_id: str) -> None:
        self.folder = folder
        self.id = run_id
        self._lock = threading.Lock()
        self._looked_s = 0.0
        self._forget()

    def _forget(self) -> None:
        self._files: dict[str, _EventsFile] = {}
        self._by_number: list[_EventsFile] = []
        self.episodes: dict[str, IndexedEpisode] = {}
        self._open: dict[tuple[int, int | str | None], IndexedEpisode] = {}
        self._attempts: dict[str, int] = {}  # at an episode id: how many began with it
        self.header: dict[str, Any] = {}
        self.broken = 0
        self.steps = 0
        self.version = 0
        self.updated = 0.0
        self.is_indexed = False

    def refresh(self) -> None:
        """Read what was appended, unless that was just done."""
        with self._lock:
            if time.monotonic() - self._looked_s < REFRESH_S:
                return
            for path in sorted(self.folder.glob(PATTERN)):
                if path.is_symlink() or not path.is_file():
                    continue
                known = self._files.get(path.name)
                size = path.stat().st_size
                if known is not None and size < known.read:
                    self._forget()  # another file by the same name
                    known = None
                if known is None:
                    known = self._files[path.name] = _EventsFile(path, len(self._by_number))
                    self._by_number.append(known)
                if size > known.read:
                    self._read(known)
            self.updated = max((one.stat().st_mtime for one in self._paths()), default=0.0)
            self.is_indexed = True
            self._looked_s = time.monotonic()

    def _paths(self) -> Iterator[Path]:
        yield from (one.path for one in self._by_number)
        if (self.folder / METRICS).is_file():
            yield self.folder / METRICS

    def _read(self, file: _EventsFile) -> None:
        episodes = self.episodes
        for text, place in file.lines():
            self.version += 1
            try:
                line = _decode_line(text)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                try:
                    line = _decode_line(text.decode("utf-8", "replace"))
                except (msgspec.DecodeError, RecursionError):
                    self.broken += 1
                    continue
            if line.event == "run":
                self.header = self.header or _read_json(text)
                file.is_closed = False
            elif line.event == "close":
                file.is_closed = True
            elif line.event in ("reset", "step", "answer", "end"):
                key = (file.number, line.row if line.episode is None else line.episode)
                episode = self._open.get(key)
                if episode is None or line.event == "reset":
                    name = line.episode or f"row {line.row or 0}"
                    attempt = self._attempts[name] = self._attempts.get(name, 0) + 1
                    name = name if attempt == 1 else f"{name} ({attempt})"
                    episode = self._open[key] = episodes[name] = IndexedEpisode(name)
                episode.add(line, place)
                if line.event == "end":
                    del self._open[key]
                self.steps += line.event == "step"

    def all_episodes(self) -> list[IndexedEpisode]:
        """Return every episode, in the order in which they began."""
        return list(self.episodes.values())  # at once, for another thread may add some

    @property
    def is_live(self) -> bool:
        """Whether it is still being written."""
        open_files = any(not one.is_closed for one in self._by_number) or not self._by_number
        return open_files and time.time() - self.updated < LIVE_S

    def summary(self) -> dict[str, Any]:
        """Return its figures for the list of runs."""
        episodes = self.all_episodes()
        ended = [one for one in episodes if one.reason is not None]
        usable = [one for one in ended if one.blame in (None, "agent") and one.is_scored]
        return {
            "id": self.id,
            "env_id": _text(self.header.get("env_id")),
            "backend": _text(self.header.get("backend")),
            "started": self.header.get("t") or self.updated,
            "updated": self.updated,
            "is_live": self.is_live,
            "is_indexed": self.is_indexed,
            "episodes": len(episodes),
            "steps": self.steps,
            "reward": _mean_return(usable),
            "reasons": Counter(one.reason or "running" for one in episodes),
            "blames": Counter(one.blame for one in ended if one.blame),
            "forks": sum(one.parent is not None for one in episodes),
            "broken": self.broken,
            "has_metrics": (self.folder / METRICS).is_file(),
            "version": self.version,
        }

    def raw_line(self, place: int) -> bytes:
        """Return the bytes of the line at a place."""
        number, offset = place >> _FILE_BITS, place & ((1 << _FILE_BITS) - 1)
        with self._by_number[number].path.open("rb") as file:
            file.seek(offset)
            return file.readline()

    def event(self, place: int) -> dict[str, Any]:
        """Return the line at a place as an object."""
        return _read_json(self.raw_line(place))

    def where(self, place: int) -> str:
        """Return the file and the offset of a place, for people."""
        name = self._by_number[place >> _FILE_BITS].path.name
        return f"{name} at byte {place & ((1 << _FILE_BITS) - 1)}"

    def value(self, digest: str) -> Any:
        """Return a large value that lies beside the events.

        Raises:
            OptionError: There is none, or it is too large to be shown.
        """
        path = self.folder / VALUES / f"{digest}.msgpack"
        if not digest.isalnum() or path.is_symlink() or not path.is_file():
            raise OptionError(f"This run has no stored value {digest[:80]!r}.")
        if path.stat().st_size > VALUE_BYTES:
            raise OptionError(f"The value is larger than {VALUE_BYTES >> 20} MB: see {path.name}.")
        return ValueReader(self.folder).read({"$value": digest})

    def metrics(self, since: int) -> dict[str, Any]:
        """Return the lines of `metrics.jsonl` from an offset on, as columns by name.

        A line is a point of `TYPE/FIELD` for every number in it. Call again with the returned
        offset until `is_all`.
        """
        path, points = self.folder / METRICS, dict[str, list[tuple[float, float]]]()
        if path.is_symlink() or not path.is_file():
            return {"offset": 0, "points": {}, "settings": {}, "is_all": True}
        settings: dict[str, Any] = {}
        with path.open("rb") as file:
            size = file.seek(0, 2)
            offset = file.seek(since if since <= size else 0)
            began = offset
            for text in file:
                if not text.endswith(b"\n") or offset - began > METRICS_BYTES:
                    break
                offset += len(text)
                line = _read_json(text)
                if line.get("type") == "run":
                    settings = {k: one for k, one in line.items() if k not in ("type", "time_s")}
                else:
                    _add_points(points, line)
        return {
            "offset": offset,
            "points": points,
            "settings": settings,
            "is_all": offset >= size or offset == began,
        }


def read_reward(value: Any) -> float:
    """Return a reward as a number: with several agents the sum, 0 where none was given."""
    if type(value) is float or type(value) is int:
        return float(value)
    if not isinstance(value, dict):
        return 0.0
    if "$float" in value:
        return float(value["$float"]) if value["$float"] in ("nan", "inf", "-inf") else 0.0
    return sum(read_reward(one) for one in value.values())


def read_rewards(value: Any) -> dict[str, float] | None:
    """Return a reward by agent; `None` if it is that of one agent."""
    if not isinstance(value, dict) or "$float" in value:
        return None
    return {str(name)[:40]: read_reward(one) for name, one in list(value.items())[:AGENTS]}


def _mean_return(episodes: list[IndexedEpisode]) -> float | dict[str, float] | None:
    """The mean return, by agent if every episode has several of them."""
    if not episodes:
        return None
    agents = {name: 0.0 for one in episodes for name in one.by_agent or ()}
    if not agents or len(agents) > AGENTS or any(one.by_agent is None for one in episodes):
        return sum(one.reward for one in episodes) / len(episodes)
    for one in episodes:
        for name, reward in (one.by_agent or {}).items():
            agents[name] += reward / len(episodes)
    return agents


def _add_points(points: dict[str, list[tuple[float, float]]], line: dict[str, Any]) -> None:
    numbers = {
        name: float(one)
        for name, one in line.items()
        if isinstance(one, int | float) and name != "time_s"
    }
    name = next((one for one in ("step", "update", "episode", "iteration") if one in numbers), None)
    kind = _text(line.get("type")) or "metrics"
    if kind == "evaluation" and "policy" in line and name is None:
        return  # of a whole policy, beside the curves
    for key, one in numbers.items():
        if key != name:
            mine = points.setdefault(f"{kind}/{key}", [])
            at = numbers[name] if name else float(line.get("time_s") or len(mine))
            mine.append((at, one))


def _read_json(text: bytes) -> dict[str, Any]:
    """Return a line as an object; what is not UTF-8 or JSON is shown as text."""
    try:
        found = msgspec.json.decode(text.decode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        return {"event": "unreadable", "text": text.decode("utf-8", "replace")}
    return found if isinstance(found, dict) else {"event": "unreadable", "text": repr(found)}


def _read_parent(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict) or not isinstance(value.get("episode"), str):
        return None
    step = value.get("step")
    return {"episode": value["episode"], "step": step if isinstance(step, int) else 0}


def _text(value: Any) -> str:
    return value[:200] if isinstance(value, str) else ""

"""The events of a recording: what a caller's thread takes, and the lines that are made of it.

A caller's thread packs values with MessagePack, which copies them too, so that nothing that it or
an author changes later reaches the recording. Everything else is done by the writer's thread:
`EventLines` makes the lines, follows each episode's rewards, and writes its `end`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import time
from typing import Any, NamedTuple, final

import msgspec
import numpy as np
from msgspec.msgpack import Ext
from numpy.typing import NDArray

from envweave.codec.digest import digest
from envweave.recording.values import ValueWriter
from envweave.types import EpisodeEnd
from envweave.types.requests import REFUSED
from envweave.wire.arrays import header
from envweave.wire.encoding import ARRAY, MSGPACK, encode_fallback

SCHEMA = 1
"""The version of the format; it grows with a change that older readers cannot read."""

NUMBERS = frozenset("?bBhHiIlLqQefd")
"""The numpy types of which the wire holds every value."""


def _encode(value: Any) -> Any:
    """Return what MessagePack writes of a value: as `encode_fallback`, but arrays more quickly."""
    if type(value) is np.ndarray and value.dtype.char in NUMBERS:
        return Ext(ARRAY, header(value.dtype, value.shape) + value.tobytes())
    return encode_fallback(value)


_pack_fast = msgspec.msgpack.Encoder(enc_hook=_encode).encode


def pack(value: Any) -> bytes:
    """Return a packed copy of a value. What cannot be packed is packed as its `repr`."""
    try:
        return _pack_fast(value)
    except Exception:  # noqa: BLE001 - a value that MessagePack cannot write
        return MSGPACK.encode(value)


_write = msgspec.json.Encoder().encode
_unpack = MSGPACK.decode


class TakenReset(NamedTuple):
    """The start of an episode.

    Attributes:
        t: When it was, in seconds since 1970.
        row: The row of a vector; `None` for one environment.
        result: The packed result, as `pack_result` makes it.
        asked: Packed: seed, task, options and whatever else describes the episode.
        duration_s: How long the reset took.
    """

    t: float
    row: int | None
    result: bytes
    asked: bytes
    duration_s: float


class TakenStep(NamedTuple):
    """An ordinary step: with no end, no event and nothing asked but the next action.

    Attributes:
        t: When it was.
        row: The row of a vector.
        episode: The episode.
        step: Its index in the episode.
        action: The packed action.
        outcome: Packed: observation, reward and info.
        array: A copy of the observation, if it is an array; then it is not in `outcome`.
        extra: Packed data that the agent attached; `None` for none.
        duration_s: How long it took.
    """

    t: float
    row: int | None
    episode: str | None
    step: int
    action: bytes
    outcome: bytes
    array: NDArray[Any] | None
    extra: bytes | None
    duration_s: float


class TakenResult(NamedTuple):
    """Any other step, and the answer to a tool call.

    Attributes:
        t: When it was.
        row: The row of a vector.
        action: The packed action, or the answer.
        is_answer: Whether it answered a tool call.
        result: The packed result.
        extra: Packed data that the agent attached.
        duration_s: How long it took.
    """

    t: float
    row: int | None
    action: bytes
    is_answer: bool
    result: bytes
    extra: bytes | None
    duration_s: float


class TakenEnd(NamedTuple):
    """An end that is in no result: a call raised, or the caller gave the episode up.

    Attributes:
        t: When it was.
        row: The row of a vector.
        episode: The episode; `None` for the one that runs in the row.
        end: The packed end.
    """

    t: float
    row: int | None
    episode: str | None
    end: bytes


RESTORE_BEGAN = "restore() began another episode."
"""The cause of the end of an episode that a caller left by `restore`."""


class TakenRestored(NamedTuple):
    """An episode was lost, and brought back.

    Attributes:
        t: When it was.
        row: The row of a vector.
        episode: The episode.
        step: How many steps it had taken.
        cause: How it was lost.
    """

    t: float
    row: int | None
    episode: str | None
    step: int
    cause: str | None


class TakenBatch(NamedTuple):
    """One step of many environments.

    Attributes:
        t: When it was.
        actions: The packed actions of the rows.
        answers: The places of the rows whose action answered a tool call.
        columns: Packed: the ids, rewards, infos, step indices, episodes and special results.
        observations: The packed observations by row, or their columns.
        layout: How to take observations out of columns; `None` if they are by row.
    """

    t: float
    actions: bytes
    answers: frozenset[int]
    columns: bytes
    observations: bytes
    layout: Any


def pack_result(result: Any) -> bytes:
    """Return everything in a result, packed."""
    return MSGPACK.encode(
        (
            result.observation,
            result.reward,
            result.terminated,
            result.truncated,
            result.info,
            result.end,
            result.ready,
            result.episode_id,
            result.step_index,
            result.task_id,
            None
            if result._needs is None  # noqa: SLF001 - a result's own fields
            else [
                {"agent_id": need.agent_id, "action_mask": need.action_mask, "reward": need.reward}
                for need in result._needs  # noqa: SLF001
            ],
            list(result._events),  # noqa: SLF001
            list(result._ready_events),  # noqa: SLF001
        )
    )


@final
class _RunningEpisode:
    """An episode that is being recorded."""

    __slots__ = ("began", "parts", "step", "total")

    def __init__(self, began: float, *, several_agents: bool) -> None:
        self.began = began
        self.step = 0
        self.total: Any = {} if several_agents else None
        self.parts: dict[str, Any] = {}

    def add(self, reward: Any) -> None:
        if isinstance(reward, dict):
            total = self.total = self.total if isinstance(self.total, dict) else {}
            for agent, one in reward.items():
                total.setdefault(agent, None)
                if one is not None:
                    total[agent] = (total[agent] or 0.0) + one
        elif reward is not None:
            self.total = (self.total or 0.0) + reward


@final
class EventLines:
    """Makes the lines of one file. It runs on the writer's thread.

    Args:
        directory: The directory of the run.
        header: The fields of the first line.
        agents: Every agent that may take part; `None` for one unnamed agent.
    """

    def __init__(
        self, directory: Path, header: Mapping[str, Any], agents: Sequence[str] | None
    ) -> None:
        self._header = header
        self._agents = agents
        self._values = ValueWriter(directory)
        self._running: dict[tuple[int | None, str | None], _RunningEpisode] = {}
        self._in_row: dict[int | None, str | None] = {}

    def opening(self) -> bytes:
        """Return the line `run`."""
        return self._line({"event": "run", "t": time(), **self._header})

    def closing(self) -> bytes:
        """Return the ends of the episodes that were running, and the line `close`."""
        end = EpisodeEnd("truncated", cause="The environment was closed in mid-episode.")
        now = time()
        ends = [self._end(now, row, episode, end) for row, episode in list(self._running)]
        return b"".join([*ends, self._line({"event": "close", "t": now})])

    def lines(self, taken: Any) -> list[bytes]:
        """Return the lines of one event."""
        if type(taken) is TakenStep:
            return [self._step(taken)]
        if type(taken) is TakenResult:
            return self._result(taken)
        if type(taken) is TakenReset:
            return self._reset(taken)
        if type(taken) is TakenBatch:
            return self._batch(taken)
        if type(taken) is TakenRestored:
            fields = {"event": "restored", **taken._asdict()}
            return [self._line({name: one for name, one in fields.items() if one is not None})]
        row = taken.row
        episode = self._in_row.get(row) if taken.episode is None else taken.episode
        if (row, episode) not in self._running:
            return []
        return [self._end(taken.t, row, episode, _end_in(_unpack(taken.end)))]

    def _line(self, fields: dict[str, Any]) -> bytes:
        try:
            return _write(fields) + b"\n"
        except UnicodeEncodeError:  # an id or a message with lone surrogates
            return _write({name: _valid(one) for name, one in fields.items()}) + b"\n"

    # The lines of an episode

    def _reset(self, taken: TakenReset) -> list[bytes]:
        asked: dict[str, Any] = _unpack(taken.asked)
        (
            observation, _, _, _, info, _, _, episode, _, task_id, needs, events, _,
        ) = _unpack(taken.result)  # fmt: skip
        lines = [] if taken.row is None else self._interrupt(taken.t, taken.row)
        if info.get("seed") is not None:
            asked["seed"] = info["seed"]
        about = {name: one for name, one in asked.items() if one is not None}
        return [
            *lines,
            self._start(
                taken.t, taken.row, episode, task_id, about,
                observation, info, needs, events, taken.duration_s,
            ),
        ]  # fmt: skip

    def _interrupt(self, t: float, row: int) -> list[bytes]:
        """End the episode that runs in a row of a vector: another one begins."""
        running = (row, self._in_row.get(row))
        if running not in self._running:
            return []
        end = EpisodeEnd("truncated", cause="reset() began another episode.")
        return [self._end(t, *running, end)]

    def _start(
        self,
        t: float,
        row: int | None,
        episode: str | None,
        task_id: str | None,
        about: dict[str, Any],
        observation: Any,
        info: Any,
        needs: Any,
        events: Any,
        duration_s: float | None,
    ) -> bytes:
        self._running[row, episode] = _RunningEpisode(
            t - (duration_s or 0.0), several_agents=self._agents is not None
        )
        self._in_row[row] = episode
        fields = {
            "event": "reset",
            "t": t,
            "episode": episode,
            "row": row,
            "task_id": task_id,
            **{name: self._values.to_json(one) for name, one in about.items()},
            "observation": self._values.to_json(observation),
            "digest": digest(observation),
            "info": self._value(info),
            "requests": self._value(events),
            "needs": self._value(needs),
            "duration_s": duration_s,
        }
        return self._line({name: one for name, one in fields.items() if one is not None})

    def _value(self, value: Any) -> Any:
        """Return the JSON of a value; `None` for an empty one."""
        return self._values.to_json(value) if value else None

    def _step(self, taken: TakenStep) -> bytes:
        observation, reward, info = _unpack(taken.outcome)
        if taken.array is not None:
            observation = taken.array
        return self._ordinary(
            taken.t, taken.row, taken.episode, taken.step, _unpack(taken.action), observation,
            reward, info, None if taken.extra is None else _unpack(taken.extra), taken.duration_s,
        )  # fmt: skip

    def _ordinary(
        self,
        t: float,
        row: int | None,
        episode: str | None,
        step: int,
        action: Any,
        observation: Any,
        reward: Any,
        info: Any,
        extra: Any,
        duration_s: float | None,
    ) -> bytes:
        running = self._running.get((row, episode))
        if running is not None:
            running.step = step
            if reward is not None:
                running.add(reward)
        to_json = self._values.to_json
        fields: dict[str, Any] = {"event": "step", "t": t, "episode": episode}
        if row is not None:
            fields["row"] = row
        fields["step"] = step
        fields["action"] = to_json(action)
        fields["observation"] = to_json(observation)
        fields["digest"] = digest(observation)
        if type(reward) is float and math.isfinite(reward):
            fields["reward"] = reward
        elif reward is not None:
            fields["reward"] = to_json(reward)
        if info:
            fields["info"] = to_json(info)
            self._add_parts(fields, info, running)
        if extra is not None:
            fields["extra"] = to_json(extra)
        if duration_s is not None:
            fields["duration_s"] = duration_s
        return self._line(fields)

    def _add_parts(
        self, fields: dict[str, Any], info: Any, running: _RunningEpisode | None
    ) -> None:
        """Add the reward's parts and the metrics, which are in the info too."""
        for name in ("reward_parts", "metrics"):
            by_agent = self._agents is not None
            found = (
                {agent: one[name] for agent, one in info.items() if _has(one, name)}
                if by_agent
                else info.get(name)
            )
            if not found:
                continue
            fields[name] = self._values.to_json(found)
            if name == "reward_parts" and running is not None:
                for agent, parts in found.items() if by_agent else ((None, found),):
                    sums = running.parts if agent is None else running.parts.setdefault(agent, {})
                    for part, value in parts.items():
                        sums[part] = sums.get(part, 0.0) + value

    def _result(self, taken: TakenResult) -> list[bytes]:
        return self._full(
            taken.t, taken.row, _unpack(taken.action), taken.is_answer, _unpack(taken.result),
            None if taken.extra is None else _unpack(taken.extra), taken.duration_s,
        )  # fmt: skip

    def _full(
        self,
        t: float,
        row: int | None,
        action: Any,
        is_answer: bool,  # noqa: FBT001 - a field of the event
        result: Any,
        extra: Any,
        duration_s: float | None,
    ) -> list[bytes]:
        (
            observation, reward, terminated, truncated, info, end, ready, episode, step, _,
            needs, events, later,
        ) = result  # fmt: skip
        if type(info) is dict and REFUSED in info:
            return []  # no step was taken
        running = self._running.get((row, episode))
        if running is not None:
            running.step = step
            running.add(reward)
        fields: dict[str, Any] = {
            "event": "answer" if is_answer else "step",
            "t": t,
            "episode": episode,
            "row": row,
            "step": step,
            **(_answer(action, self._values) if is_answer else {}),
            "action": None if is_answer else self._values.to_json(action),
            "observation": self._values.to_json(observation),
            "digest": digest(observation),
            "reward": None if reward is None else self._values.to_json(reward),
            "terminated": terminated if terminated is not False else None,
            "truncated": truncated if truncated is not False else None,
            "info": self._value(info),
            "requests": self._value(events),
            "needs": self._value(needs) if ready is None else None,
            "extra": None if extra is None else self._values.to_json(extra),
            "duration_s": duration_s,
        }
        if info:
            self._add_parts(fields, info, running)
        lines = [self._line({name: one for name, one in fields.items() if one is not None})]
        if end is not None:
            lines.append(self._end(t, row, episode, _end_in(end)))
        if ready is not None:
            about = {"seed": ready["initial_info"].get("seed")}
            lines.append(
                self._start(
                    t, row, ready["episode_id"], ready["task_id"],
                    {name: one for name, one in about.items() if one is not None},
                    ready["initial_obs"], ready["initial_info"], needs, later, None,
                )
            )  # fmt: skip
        return lines

    def _end(self, t: float, row: int | None, episode: str | None, end: EpisodeEnd) -> bytes:
        running = self._running.pop((row, episode), None) or _RunningEpisode(
            t, several_agents=False
        )
        if self._in_row.get(row) == episode:
            self._in_row.pop(row, None)
        total, parts = running.total, running.parts
        if not end.valid:
            agents = self._agents
            total = math.nan if agents is None else dict.fromkeys(agents, math.nan)
            parts = {}
        fields = {
            "event": "end",
            "t": t,
            "episode": episode,
            "row": row,
            "step": running.step,
            "reason": end.reason,
            "blame": end.blame,
            "message": end.cause,
            "rewards": self._value(end.rewards),
            "reward": None if total is None else self._values.to_json(total),
            "reward_parts": self._value(parts),
            "usable": end.valid,
            "duration_s": t - running.began,
        }
        return self._line({name: one for name, one in fields.items() if one is not None})

    # Vectors

    def _batch(self, taken: TakenBatch) -> list[bytes]:
        actions = _unpack(taken.actions)
        ids, rewards, infos, steps, episodes, special = _unpack(taken.columns)
        observations = _unpack(taken.observations)
        if taken.layout is not None:
            observations = taken.layout(observations, rewards, infos, len(ids))
        rewards = rewards.tolist() if isinstance(rewards, np.ndarray) else rewards
        steps = steps.tolist() if isinstance(steps, np.ndarray) else steps
        lines: list[bytes] = []
        for place, row in enumerate(ids):
            action = actions[place]
            if place in special:
                lines += self._full(
                    taken.t,
                    row,
                    action,
                    place in taken.answers,
                    _unpack(special[place]),
                    None,
                    None,
                )
            else:
                lines.append(
                    self._ordinary(
                        taken.t, row, episodes[place], steps[place], action, observations[place],
                        rewards[place], infos.get(place), None, None,
                    )
                )  # fmt: skip
        return lines


def _valid(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _has(info: Any, name: str) -> bool:
    return isinstance(info, dict) and bool(info.get(name))


def _answer(answer: Any, values: ValueWriter) -> dict[str, Any]:
    error = answer["error"]
    given = {"call_id": answer["call_id"], "error": error}
    return given if error is not None else {**given, "value": values.to_json(answer["value"])}


def _end_in(plain: Any) -> EpisodeEnd:
    if isinstance(plain, EpisodeEnd):
        return plain
    return EpisodeEnd(plain["reason"], plain["blame"], plain["cause"], plain["rewards"])

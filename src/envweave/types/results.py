"""The results that callers get: of a step and of a reset."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from envweave.errors import SpecError
from envweave.types.requests import (
    REFUSED,
    AgentEnd,
    AutoResetReady,
    EpisodeEnd,
    LogEvent,
    NeedAction,
    Request,
    ToolCallRequest,
)


def same(left: Any, right: Any) -> bool:
    """Compare by value and type: NaN equals NaN, arrays by dtype, shape and content.

    Dataclass fields with `compare=False` are ignored.
    """
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        if type(left) is not type(right) or left.dtype != right.dtype:
            return False
        return np.array_equal(left, right, equal_nan=left.dtype.kind in "fc")
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, msgspec.Struct) and type(left) is type(right):
        fields = left.__struct_fields__
        return all(same(getattr(left, name), getattr(right, name)) for name in fields)
    if dataclasses.is_dataclass(left) and not isinstance(left, type):
        if type(left) is not type(right):
            return False
        names = [field.name for field in dataclasses.fields(left) if field.compare]
        return all(same(getattr(left, name), getattr(right, name)) for name in names)
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(left, pydantic.BaseModel):
        return type(left) is type(right) and same(dict(left), dict(right))
    return bool(left == right)


ObsT = TypeVar("ObsT")

_MISSING: Any = object()

Event = AgentEnd[Any] | LogEvent | ToolCallRequest
_EVENTS = (AgentEnd, LogEvent, ToolCallRequest)


class StepResult(Generic[ObsT]):
    """The outcome of one step, as the caller sees it.

    Unpacks to Gymnasium's five: `observation, reward, terminated, truncated, info`. With
    several agents, the first four are dicts keyed by agent id, and `info` holds theirs.

    Attributes:
        observation: What the environment shows now. At the end of an episode this is the
            final observation, never the first one of the next episode.
        reward: What the step earned; `None` means not scored yet, NaN that the step failed.
        terminated: Whether the task ended the episode.
        truncated: Whether a limit ended the episode. Both may be true.
        info: Further data from the environment.
        end: The `EpisodeEnd`, if the episode is over.
        ready: The `AutoResetReady`, if the next episode has already begun.
        episode_id: The episode this step belongs to.
        step_index: Which step of the episode it was, from 1; 0 after a reset.
        task_id: What the episode is about, if it has a task.
    """

    __slots__ = (
        "_events",
        "_needs",
        "_ready_events",
        "end",
        "episode_id",
        "info",
        "observation",
        "ready",
        "reward",
        "step_index",
        "task_id",
        "terminated",
        "truncated",
    )

    observation: ObsT
    reward: Any
    terminated: Any
    truncated: Any
    info: dict[str, Any]
    end: EpisodeEnd | None
    ready: AutoResetReady[ObsT] | None
    episode_id: str | None
    step_index: int
    task_id: str | None
    _needs: tuple[NeedAction[Any], ...] | None
    _events: tuple[Event, ...]
    _ready_events: tuple[Event, ...]

    def __init__(
        self,
        observation: ObsT = _MISSING,
        reward: Any = None,
        terminated: Any = False,  # noqa: FBT002 - Gymnasium's order
        truncated: Any = False,  # noqa: FBT002
        info: dict[str, Any] | None = None,
        requests: Iterable[Request] | None = None,
        *,
        done: bool | Mapping[str, bool] | None = None,
        reward_parts: Mapping[str, float] | None = None,
        end: EpisodeEnd | None = None,
        episode_id: str | None = None,
        step_index: int = 0,
        task_id: str | None = None,
        obs: ObsT = _MISSING,
    ) -> None:
        if (observation is _MISSING) is (obs is _MISSING):
            raise SpecError("A result has one observation. Pass `observation`, or `obs`.")
        is_plain = terminated is False and truncated is False
        if done is not None and done is not True and done is not False:
            done = _read_done(done)
            if isinstance(done, dict):
                if not is_plain:
                    raise SpecError(
                        "done by agent contradicts terminated or truncated. Pass one of them."
                    )
                # Like a single bool, it means terminated; `"__all__"` covers every agent.
                terminated, truncated = done, dict.fromkeys(done, False)
                is_plain, done = False, None
        if not is_plain:
            terminated, truncated = _flag(terminated), _flag(truncated)
        if done is False and (terminated is True or truncated is True):
            raise SpecError("done=False contradicts terminated or truncated. Leave `done` out.")
        if done and terminated is False and truncated is False:
            terminated = True
        self.observation = obs if observation is _MISSING else observation
        self.reward = reward
        self.terminated = terminated
        self.truncated = truncated
        self.info = {} if info is None else info
        self.end = end
        self.ready = None
        self.episode_id = episode_id
        self.step_index = step_index
        self.task_id = task_id
        self._needs = None
        self._events = ()
        self._ready_events = ()
        if reward_parts is not None:
            self.info = {**self.info, "reward_parts": dict(reward_parts)}
        if requests is not None:
            self._take(tuple(requests))
        if is_plain and not done:
            return
        if self.end is None and (done or _is_over(terminated) or _is_over(truncated)):
            self.end = EpisodeEnd("terminated" if _any(terminated) else "truncated")

    def _take(self, requests: tuple[Request, ...]) -> None:
        self._needs = tuple(r for r in requests if isinstance(r, NeedAction))
        for request in requests:
            if isinstance(request, EpisodeEnd):
                self.end = request
            elif isinstance(request, AutoResetReady):
                self.ready = request
            elif isinstance(request, _EVENTS):
                if self.ready is None:
                    self._events += (request,)
                else:
                    self._ready_events += (request,)
            elif not isinstance(request, NeedAction):
                raise SpecError(f"requests: {request!r} is not a request.")

    def copied(self) -> StepResult[ObsT]:
        """Return a shallow copy, which can be changed without changing this result."""
        twin: StepResult[ObsT] = object.__new__(type(self))
        for name in StepResult.__slots__:
            setattr(twin, name, getattr(self, name))
        return twin

    @property
    def obs(self) -> ObsT:
        """The same as `observation`."""
        return self.observation

    @property
    def done(self) -> bool:
        """Whether the episode is over, however it ended."""
        return self.end is not None or self.terminated is True or self.truncated is True

    @property
    def valid(self) -> bool:
        """Whether the step may be trained on: taken, and no failure or one the agent caused."""
        return (self.end is None or self.end.valid) and REFUSED not in self.info

    @property
    def refused(self) -> str | None:
        """In a row of a batch, why the environment refused the action, if it did.

        No step was taken then: the observation, the episode and the agents to act are unchanged.
        A single environment raises `ActionError` instead.
        """
        refused: str | None = self.info.get(REFUSED)
        return refused

    @property
    def current(self) -> ObsT:
        """The observation to act on next: after an autoreset, the first of the new episode."""
        return self.observation if self.ready is None else self.ready.initial_obs

    @property
    def needs(self) -> list[NeedAction[Any]]:
        """The agents that must act now, in the order the environment names them."""
        if self._needs is not None:
            return list(self._needs)
        if self.ready is not None:
            mask = self.ready.initial_info.get("action_mask")
            return [NeedAction(self.ready.initial_obs, mask)]
        if self.end is not None or self.terminated is True or self.truncated is True:
            return []
        return [NeedAction(self.observation, self.info.get("action_mask"), self.reward)]

    @property
    def events(self) -> list[Event]:
        """What happened in the step, in order: logs, tool calls, agents that left.

        After an autoreset, events from the start of the new episode come last.
        """
        return [*self._events, *self._ready_events]

    @property
    def tool_calls(self) -> list[ToolCallRequest]:
        """The tool calls that wait for an answer."""
        return [event for event in self.events if isinstance(event, ToolCallRequest)]

    @property
    def requests(self) -> list[Request]:
        """Everything the environment sent its caller, in order.

        First the events of the step (logs, tool calls, agents that left), then the end, then the
        new episode and the events of its start, then the agents that must act.
        """
        requests: list[Request] = list(self._events)
        if self.end is not None:
            requests.append(self.end)
        if self.ready is not None:
            requests.append(self.ready)
        return [*requests, *self._ready_events, *self.needs]

    @property
    def reward_parts(self) -> dict[str, float]:
        """The named parts of the reward, which sum to `reward`; empty if none were named."""
        parts: dict[str, float] = self.info.get("reward_parts") or {}
        return parts

    @property
    def metrics(self) -> dict[str, Any]:
        """Figures worth watching that are not part of the reward."""
        metrics: dict[str, Any] = self.info.get("metrics") or {}
        return metrics

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StepResult) or type(self) is not type(other):
            return NotImplemented
        return all(same(getattr(self, n), getattr(other, n)) for n in StepResult.__slots__)

    __hash__ = None  # type: ignore[assignment] # a result can be changed

    def __iter__(self) -> Iterator[Any]:
        yield from (self.observation, self.reward, self.terminated, self.truncated, self.info)

    def __len__(self) -> int:
        return 5

    def __repr__(self) -> str:
        shown = [f"observation={self.observation!r}"]
        if not isinstance(self, ResetResult):
            shown += [f"reward={self.reward!r}", f"terminated={self.terminated!r}"]
            shown += [f"truncated={self.truncated!r}"]
        if self.info:
            shown.append(f"info={self.info!r}")
        if self.end is not None:
            shown.append(f"end={self.end!r}")
        if self.ready is not None:
            shown.append(f"ready={self.ready!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


class ResetResult(StepResult[ObsT]):
    """The outcome of a reset: a `StepResult` with no reward, so `result.done` works after it.

    Unpacks to Gymnasium's two: `observation, info`.
    """

    __slots__ = ()

    def __init__(
        self,
        observation: ObsT = _MISSING,
        info: dict[str, Any] | None = None,
        requests: Iterable[Request] | None = None,
        *,
        episode_id: str | None = None,
        task_id: str | None = None,
        obs: ObsT = _MISSING,
    ) -> None:
        super().__init__(
            observation,
            info=info,
            requests=requests,
            episode_id=episode_id,
            task_id=task_id,
            obs=obs,
        )

    def __iter__(self) -> Iterator[Any]:
        yield from (self.observation, self.info)

    def __len__(self) -> int:
        return 2


def _read_done(done: Any) -> bool | dict[str, bool]:
    """Return `done` as one bool, or as one for each agent.

    Raises:
        SpecError: It is neither.
    """
    by_agent = dict(done) if isinstance(done, Mapping) else {"": done}
    read = {
        agent: bool(one) if type(one) is int and one in (0, 1) else _flag(one)
        for agent, one in by_agent.items()
    }
    if not all(isinstance(one, bool) for one in read.values()):
        raise SpecError(f"done must be a bool, or a dict of bools by agent id, got {done!r}.")
    return read if isinstance(done, Mapping) else bool(read[""])


def _flag(value: Any) -> Any:
    """A numpy bool as a Python bool; anything else unchanged."""
    if isinstance(value, bool | dict):
        return value
    import numpy as np

    return bool(value) if isinstance(value, np.bool_) else value


def _any(flag: Any) -> bool:
    return any(flag.values()) if isinstance(flag, dict) else flag is True


def _is_over(flag: Any) -> bool:
    return flag is True or (isinstance(flag, dict) and flag.get("__all__") is True)

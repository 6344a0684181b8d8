"""Results on the wire, in envweave's own dialect and for plain HTTP.

Our own form is short. It leaves out defaults, and `requests` that the client can derive, since a
`NeedAction` repeats the observation.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from envweave.errors import WireError
from envweave.session.episodes import Position
from envweave.types import (
    AgentEnd,
    AutoResetReady,
    EpisodeEnd,
    LogEvent,
    NeedAction,
    ResetResult,
    StepResult,
    ToolCallRequest,
)
from envweave.wire.messages import read_as

EVENTS: dict[Any, Any] = {
    "agent_end": AgentEnd,
    "log_event": LogEvent,
    "tool_call_request": ToolCallRequest,
}


class Rebuild(Protocol):
    """Makes an author's observation from plain data."""

    def __call__(self, plain: Any) -> Any:
        """Return the observation; with several agents, a dict of them by agent."""
        ...

    def one(self, agent_id: str, plain: Any) -> Any:
        """Return the observation of one agent."""
        ...


class Wired(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A result in envweave's own dialect. Its fields are those of `StepResult`.

    Attributes:
        is_reset: Whether it is the result of a reset.
        needs: The agents that may act, unless a result of one agent implies it.
        agents: The agents that take part now, with several agents.
        position: The position in the stream of episodes, when an episode has begun.
        parent: The episode that a restored one continues, and how many steps that had taken.
    """

    observation: Any
    reward: Any = None
    terminated: Any = False
    truncated: Any = False
    info: dict[Any, Any] = {}
    end: EpisodeEnd | None = None
    ready: Any = None
    episode_id: str | None = None
    step_index: int = 0
    task_id: str | None = None
    is_reset: bool = False
    needs: list[Any] | None = msgspec.field(default=None, name="asked")  # its wire name
    events: list[Any] = []
    later: list[Any] = []
    agents: list[str] | None = None
    position: Position | None = None
    parent: tuple[str | None, int] | None = None


def encode_result(
    result: StepResult[Any], agents: list[str] | None, position: Position | None
) -> Wired:
    """Return a result in envweave's own dialect."""
    needs = result._needs  # noqa: SLF001 - a result's own fields
    if (
        result.end is None
        and needs is None
        and agents is None
        and position is None
        and not result._events  # noqa: SLF001
        and type(result) is StepResult
    ):  # an ordinary step, the most frequent result
        return Wired(
            observation=result.observation,
            reward=result.reward,
            info=result.info,
            episode_id=result.episode_id,
            step_index=result.step_index,
            task_id=result.task_id,
        )
    return Wired(
        observation=result.observation,
        reward=result.reward,
        terminated=result.terminated,
        truncated=result.truncated,
        info=result.info,
        end=result.end,
        ready=result.ready,
        episode_id=result.episode_id,
        step_index=result.step_index,
        task_id=result.task_id,
        is_reset=isinstance(result, ResetResult),
        needs=None if needs is None else list(needs),
        events=list(result._events),  # noqa: SLF001
        later=list(result._ready_events),  # noqa: SLF001
        agents=agents,
        position=position,
    )


def read_ordinary(plain: Any, rebuild: Rebuild) -> StepResult[Any] | None:
    """Return a decoded result, if it is of an ordinary step; else `None`.

    It returns the same as `decode_result` and `result_of`, in half the time.
    """
    if type(plain) is not dict or not plain.keys() <= _ORDINARY:
        return None
    take = plain.get
    info, index, episode, task = (
        take("info"), take("step_index"), take("episode_id"), take("task_id"),
    )  # fmt: skip
    if (
        "observation" not in plain
        or type(index) is not int
        or type(episode) is not str
        or (info is not None and type(info) is not dict)
        or (task is not None and type(task) is not str)
    ):
        return None
    result: StepResult[Any] = object.__new__(StepResult)
    result.observation = rebuild(plain["observation"])
    result.reward = take("reward")
    result.terminated = result.truncated = False
    result.info = {} if info is None else info
    result.end = result.ready = None
    result.episode_id, result.step_index, result.task_id = episode, index, task
    result._needs = None  # noqa: SLF001 - a result's carrier
    result._events = result._ready_events = ()  # noqa: SLF001
    return result


_ORDINARY = frozenset({"observation", "reward", "info", "episode_id", "step_index", "task_id"})


def decode_result(plain: Any) -> Wired:
    """Return a decoded result; its observations are still plain.

    The values that an author's code puts into an event are not checked.

    Raises:
        WireError: It is not a valid result.
    """
    sent = read_as(plain, Wired, "The reply has no valid result")
    if sent.ready is not None:
        sent.ready = _made(sent.ready, AutoResetReady)
    if sent.needs is not None:
        sent.needs = [_made(one, NeedAction) for one in sent.needs]
    sent.events = [_event(one) for one in sent.events]
    sent.later = [_event(one) for one in sent.later]
    return sent


def result_of(sent: Wired, rebuild: Rebuild) -> StepResult[Any]:
    """Return a decoded result as its session made it."""
    result: StepResult[Any] = object.__new__(ResetResult if sent.is_reset else StepResult)
    result.observation = rebuild(sent.observation)
    result.reward = sent.reward
    result.terminated = sent.terminated
    result.truncated = sent.truncated
    result.info = sent.info
    result.end = sent.end
    result.ready = sent.ready
    if sent.ready is not None:
        sent.ready.initial_obs = rebuild(sent.ready.initial_obs)
    result.episode_id = sent.episode_id
    result.step_index = sent.step_index
    result.task_id = sent.task_id
    result._needs = None  # noqa: SLF001 - a result's carrier
    if sent.needs is not None:
        for need in sent.needs:
            need.observation = rebuild.one(need.agent_id, need.observation)
        result._needs = tuple(sent.needs)  # noqa: SLF001
    result._events = tuple(_seen(one, rebuild) for one in sent.events)  # noqa: SLF001
    result._ready_events = tuple(_seen(one, rebuild) for one in sent.later)  # noqa: SLF001
    return result


def _seen(event: Any, rebuild: Rebuild) -> Any:
    if isinstance(event, AgentEnd):
        event.observation = rebuild.one(event.agent_id, event.observation)
    return event


def _event(plain: Any) -> Any:
    named = plain.get("type") if isinstance(plain, dict) else None
    kind = EVENTS.get(named) if isinstance(named, str) else None
    if kind is None:
        raise WireError("The reply has an event of an unknown type.")
    return _made(plain, kind)


def _made(plain: Any, kind: Any) -> Any:
    """A request from its fields. Their types are not checked: an author's values may pass."""
    if not isinstance(plain, dict):
        raise WireError(f"{kind.__name__} in the reply must be an object.")
    fields = {name: plain[name] for name in kind.__struct_fields__ if name in plain}
    if not isinstance(fields.get("agent_id", ""), str):
        raise WireError(f"{kind.__name__}.agent_id in the reply must be a string.")
    if not isinstance(fields.get("initial_info", {}), dict):
        raise WireError(f"{kind.__name__}.initial_info in the reply must be an object.")
    try:
        return kind(**fields)
    except TypeError as error:
        raise WireError(f"{kind.__name__} in the reply is incomplete: {error}") from None


def as_http_payload(sent: Wired) -> dict[str, Any]:
    """Return a result for plain HTTP: every field by name, and all requests."""
    result = result_of(sent, IDENTITY)
    return {
        "observation": sent.observation,
        "reward": sent.reward,
        "done": result.done,
        "terminated": sent.terminated,
        "truncated": sent.truncated,
        "info": sent.info,
        "requests": result.requests,
        "episode_id": sent.episode_id,
        "step_index": sent.step_index,
        "task_id": sent.task_id,
    }


class _Identity:
    def __call__(self, plain: Any) -> Any:
        return plain

    def one(self, agent_id: str, plain: Any) -> Any:  # noqa: ARG002 - a rebuilder's signature
        return plain


IDENTITY: Rebuild = _Identity()
"""Leaves observations as plain data."""

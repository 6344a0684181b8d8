"""Results as plain HTTP has them, read: `{"observation": …, "reward": …, "done": …, …}`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from envweave.errors import WireError
from envweave.types import (
    AgentEnd,
    AutoResetReady,
    EpisodeEnd,
    LogEvent,
    NeedAction,
    Request,
    ResetResult,
    StepResult,
    ToolCallRequest,
)

Rebuild = Callable[[Any], Any]

_KINDS: dict[Any, Any] = {
    kind.type: kind
    for kind in (AgentEnd, AutoResetReady, EpisodeEnd, LogEvent, NeedAction, ToolCallRequest)
}


def observed(payload: Mapping[str, Any]) -> Any:
    """Return the observation of a payload, as plain data; `obs` is another name for it.

    Raises:
        WireError: It has none.
    """
    for name in ("observation", "obs"):
        if name in payload:
            return payload[name]
    held = ", ".join(map(repr, payload)) or "nothing"
    raise WireError(f"The server's answer holds no observation, only {held}.")


def parse_result(payload: Mapping[str, Any], rebuild: Rebuild) -> StepResult[Any]:
    """Return the result in a payload, with its observations rebuilt.

    Raises:
        WireError: It holds none.
    """
    return fill(StepResult(rebuild(observed(payload))), payload, rebuild)


def fill(result: StepResult[Any], payload: Mapping[str, Any], rebuild: Rebuild) -> StepResult[Any]:
    """Return a result with what it leaves out taken from its payload.

    What whoever made it has set, stays: a reward, an info, requests, an end that the server knows
    nothing of. How an episode ended, the payload says better than `done` does.

    Raises:
        WireError: The payload holds something else than its name says.
    """
    given = StepResult(
        result.observation,
        _reward(payload),
        *_flags(payload),
        info=_dict(payload, "info"),
        requests=_requests(payload, result.observation, rebuild),
    )
    if given.end is not None and not given.end.valid and given.reward is None:
        given.reward = math.nan  # a failure; JSON has no NaN
    if result.reward is None:
        result.reward = given.reward
    agrees = given.done or not result.done
    if agrees:
        result.terminated, result.truncated = given.terminated, given.truncated
        result.end = given.end
    if not result.info:
        result.info = given.info
    has_said = result._asked is not None or result.events or result.ready is not None  # noqa: SLF001
    if agrees and not has_said and "requests" in payload:
        result.ready = given.ready
        result._asked = given._asked  # noqa: SLF001 - a result's carrier
        result._events, result._later = given._events, given._later  # noqa: SLF001
    for name in ("episode_id", "task_id"):
        if getattr(result, name) is None and isinstance(payload.get(name), str):
            setattr(result, name, payload[name])
    index = payload.get("step_index")
    if result.step_index == 0 and isinstance(index, int):
        result.step_index = index
    return result


def as_reset(result: StepResult[Any]) -> StepResult[Any]:
    """Return what a reset returns: the same, without a reward."""
    if type(result) is not StepResult:
        return result
    began: ResetResult[Any] = object.__new__(ResetResult)
    for name in StepResult.__slots__:
        setattr(began, name, getattr(result, name))
    began.reward = None
    return began


def _reward(payload: Mapping[str, Any]) -> Any:
    reward = payload.get("reward")
    return float(reward) if isinstance(reward, bool) else reward


def _flags(payload: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return `terminated` and `truncated`; a server that says only `done` means the first."""
    truncated = payload.get("truncated") or False
    terminated = payload.get("terminated")
    if terminated is None:
        terminated = bool(payload.get("done")) and truncated is not True
    return terminated, truncated


def _dict(payload: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = payload.get(name)
    if value is not None and not isinstance(value, dict):
        raise WireError(f"The server's answer holds {name}={value!r}, which is no dict.")
    return value or {}


def _requests(
    payload: Mapping[str, Any], observation: Any, rebuild: Rebuild
) -> list[Request] | None:
    plain = payload.get("requests")
    if plain is None:
        return None
    if not isinstance(plain, list):
        raise WireError(f"The server's answer holds requests={plain!r}, which is no list.")
    shown = observed(payload)
    return [_request(one, shown, observation, rebuild) for one in plain]


def _request(plain: Any, shown: Any, observation: Any, rebuild: Rebuild) -> Request:
    kind = _KINDS.get(plain.get("type")) if isinstance(plain, dict) else None
    if kind is None:
        raise WireError("The server's answer holds a request of no known type.")
    try:
        request: Any = msgspec.convert(plain, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise WireError(
            f"The server's answer holds a request that cannot be read: {error}"
        ) from None
    if isinstance(request, AutoResetReady):
        request.initial_obs = rebuild(request.initial_obs)
    elif isinstance(request, NeedAction) and request.observation == shown:
        request.observation = observation  # as the caller's own hook made it
    elif isinstance(request, NeedAction | AgentEnd):
        request.observation = rebuild(request.observation)
    read: Request = request
    return read

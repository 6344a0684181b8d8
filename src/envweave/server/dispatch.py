"""From a call on the wire to a call on a driver, and from its outcome to the reply.

Calls come from untrusted clients. `read_call` validates one completely before anything happens,
and its errors name the offending parameter.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec

from envweave.errors import (
    ActionError,
    EnvWeaveError,
    ForkError,
    OptionError,
    ResetNeededError,
    SeedError,
    TaskError,
    format_error,
    suggest,
)
from envweave.session import AsyncDriver, LoopDriver, Phase, Position, Session, SyncDriver
from envweave.session.kept_snapshots import CAPACITY, MAX_TOKEN, KeptSnapshots
from envweave.session.session import SessionSnapshot
from envweave.types import ResetResult, State, StepResult, Task, ToolResult
from envweave.wire.results import encode_result

logger = logging.getLogger("envweave.server")

PlainDriver: TypeAlias = SyncDriver | LoopDriver

PARAMETERS: dict[str, tuple[str, ...]] = {
    "reset": ("seed", "task", "options", "episode_id", "keep_stream"),
    "check_reset": ("seed", "task", "options", "episode_id"),
    "step": ("action", "answer", "timeout_s"),
    "state": (),
    "snapshot": ("dropped",),
    "restore": ("token",),
}
"""The methods of an environment, with the names of their parameters."""

_TASK_FIELDS = frozenset(Task.__dataclass_fields__)
_ANSWER_FIELDS = frozenset(ToolResult.__struct_fields__)
_PREVIEW_LENGTH = 80


class ParsedCall(NamedTuple):
    """A validated call.

    Attributes:
        method: One of `PARAMETERS`.
        reset_kwargs: The keyword arguments of a reset; empty for other methods.
        action: The action of a step.
        token: The token of the snapshot to restore.
        dropped: The tokens of snapshots that the caller has dropped.
    """

    method: str
    reset_kwargs: dict[str, Any]
    action: Any = None
    token: str = ""
    dropped: tuple[str, ...] = ()


class CallOutcome(NamedTuple):
    """The outcome of a call.

    Attributes:
        value: The result, the state, the snapshot or `None`, as the session made it; or the error
            it raised.
        encoded: The value as it is sent; `None` for an error.
        is_live: Whether an episode is running now.
        position: Position in the stream of episodes now, if the call may have changed it.
    """

    value: Any
    encoded: Any
    is_live: bool
    position: Position | None


class ProcessExitAttemptError(Exception):
    """The author's code raised `SystemExit` or the like. Never leaves the server."""


def read_call(method: str, params: Mapping[str, Any]) -> ParsedCall:
    """Validate a call.

    Raises:
        EnvWeaveError: The method or a parameter is invalid; the message names which.
    """
    if method == "step" and len(params) == 1 and "action" in params:
        return ParsedCall(method, {}, params["action"])
    takes = PARAMETERS.get(method)
    if takes is None:
        raise OptionError(f"An environment has no method {_preview(method)}.")
    for name in params:
        if name not in takes:
            known = f" It takes: {', '.join(takes)}." if takes else " It takes none."
            hint = suggest(name, takes) if isinstance(name, str) else ""
            raise OptionError(f"{method} takes no parameter {_preview(name)}.{hint or known}")
    if method == "step":
        return ParsedCall(method, {}, _read_action(params))
    if method == "restore":
        return ParsedCall(method, {}, token=read_token(params.get("token")))
    if method == "snapshot":
        return ParsedCall(method, {}, dropped=read_dropped(params))
    return ParsedCall(method, _read_reset_kwargs(params) if takes else {})


def read_token(value: Any) -> str:
    """Return the token of a snapshot.

    Raises:
        OptionError: It is not a token.
    """
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TOKEN:
        raise OptionError(f"token must be what snapshot() returned, got {_preview(value)}.")
    return value


def read_dropped(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the tokens of the snapshots that a caller of `snapshot` has dropped.

    Raises:
        OptionError: They are not a list of tokens.
    """
    tokens = params.get("dropped", [])
    if not isinstance(tokens, list) or len(tokens) > CAPACITY:
        raise OptionError(f"dropped must be a list of tokens, got {_preview(tokens)}.")
    return tuple(map(read_token, tokens))


def _read_action(params: Mapping[str, Any]) -> Any:
    if "answer" not in params:
        if "action" not in params:
            raise ActionError("step needs an `action`, or the `answer` to a tool call.")
        return params["action"]
    if "action" in params:
        raise ActionError("step takes an `action` or an `answer`, not both.")
    answer = params["answer"]
    if isinstance(answer, ToolResult):
        return answer
    if not isinstance(answer, dict):
        raise ActionError(f"answer: must be the answer to a tool call, got {_preview(answer)}")
    _check_fields("answer", answer, _ANSWER_FIELDS, ActionError)
    call_id, error = answer.get("call_id"), answer.get("error")
    if not isinstance(call_id, str):
        raise ActionError(f"answer.call_id: must be a string, got {_preview(call_id)}")
    if error is not None and not isinstance(error, str):
        raise ActionError(f"answer.error: must be a string, got {_preview(error)}")
    return ToolResult(call_id, answer.get("value"), error)


def _read_reset_kwargs(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of a reset, without those that are `None`."""
    kwargs = {name: value for name, value in params.items() if value is not None}
    seed = kwargs.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise SeedError(f"seed must be an integer >= 0, got {_preview(seed)}.")
    options = kwargs.get("options", {})
    if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
        raise OptionError(f"options must be a dict with string keys, got {_preview(options)}.")
    episode_id = kwargs.get("episode_id", "")
    if not isinstance(episode_id, str):
        raise OptionError(f"episode_id must be a string, got {_preview(episode_id)}.")
    if not isinstance(kwargs.get("keep_stream", False), bool):
        raise OptionError(
            f"keep_stream must be true or false, got {_preview(kwargs['keep_stream'])}."
        )
    if "task" in kwargs:
        kwargs["task"] = _read_task(kwargs["task"])
    return kwargs


def _read_task(task: Any) -> Task | str:
    if isinstance(task, str | Task):
        return task
    if not isinstance(task, dict):
        raise TaskError(f"task must be a task or the id of one, got {_preview(task)}.")
    _check_fields("task", task, _TASK_FIELDS, TaskError)
    try:
        return msgspec.convert(task, Task).public()  # clients cannot set the private part
    except (msgspec.ValidationError, RecursionError) as error:
        raise TaskError(f"task is invalid: {error}") from None


def _check_fields(
    what: str, value: dict[Any, Any], fields: frozenset[str], error: type[EnvWeaveError]
) -> None:
    for name in value:
        if name not in fields:
            hint = suggest(name, fields) if isinstance(name, str) else ""
            raise error(f"{what}: there is no field {_preview(name)}.{hint}")


def _preview(value: Any) -> str:
    """Return a client's value for a message, shortened."""
    if isinstance(value, str | bytes) and len(value) > _PREVIEW_LENGTH:
        value = value[:_PREVIEW_LENGTH]
    elif isinstance(value, dict | list) and len(value) > 4:
        return f"a {type(value).__name__} of {len(value)}"
    shown = repr(value)
    return shown if len(shown) <= 2 * _PREVIEW_LENGTH else f"{shown[:_PREVIEW_LENGTH]}…"


def perform(
    driver: PlainDriver, call: ParsedCall, point: SessionSnapshot | None = None
) -> CallOutcome:
    """Carry out a call in this thread. An error is returned as the value of the outcome.

    Args:
        driver: The driver.
        call: The call.
        point: The snapshot to restore.

    Raises:
        ProcessExitAttemptError: The author's code raised `SystemExit` or the like.
    """
    session = driver.session
    try:
        if call.method == "step":
            return _result_outcome(session, driver.step(call.action))
        if call.method == "reset":
            return _result_outcome(session, driver.reset(**call.reset_kwargs))
        if point is not None:
            return _restored_outcome(session, driver.restore(point), point)
        if call.method == "snapshot":
            return CallOutcome(driver.snapshot(), None, is_live(session), None)
        return _read_outcome(session, driver.state() if call.method == "state" else None, call)
    except BaseException as error:  # noqa: BLE001 - the thread goes on to serve other sessions
        return _or_raise(_error_outcome(session, call.method, error))


def take_step(
    driver: PlainDriver, action: Any
) -> StepResult[Any] | CallOutcome | ProcessExitAttemptError:
    """Take a step in this thread; raises nothing.

    Returns:
        The bare result of an ordinary step. Otherwise what `perform` returns or raises.
    """
    try:
        result = driver.step(action)
        if result.end is None and result._needs is None and not result._events:  # noqa: SLF001
            return result
        return _result_outcome(driver.session, result)
    except BaseException as error:  # noqa: BLE001 - the thread goes on to serve other sessions
        return _error_outcome(driver.session, "step", error)


async def perform_on_loop(
    driver: AsyncDriver, call: ParsedCall, point: SessionSnapshot | None = None
) -> CallOutcome:
    """Carry out a call on this event loop, as `perform` does in a thread.

    Raises:
        ProcessExitAttemptError: The author's code raised `SystemExit` or the like.
    """
    session = driver.session
    try:
        if call.method == "step":
            return _result_outcome(session, await driver.step(call.action))
        if call.method == "reset":
            return _result_outcome(session, await driver.reset(**call.reset_kwargs))
        if point is not None:
            return _restored_outcome(session, await driver.restore(point), point)
        if call.method == "snapshot":
            return CallOutcome(await driver.snapshot(), None, is_live(session), None)
        state = await driver.state() if call.method == "state" else None
        return _read_outcome(session, state, call)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - but a cancellation
        return _or_raise(_error_outcome(session, call.method, error))


def _result_outcome(session: Session, result: StepResult[Any]) -> CallOutcome:
    is_over = result.end is not None
    if not is_over and type(result) is StepResult and session.interface.possible_agents is None:
        return CallOutcome(result, encode_result(result, None, None), is_live(session), None)
    begins = result.ready is not None or isinstance(result, ResetResult)
    position = session.position if is_over or begins else None
    agents = None if session.interface.possible_agents is None else session.agents
    encoded = encode_result(result, agents, position if begins else None)
    return CallOutcome(result, encoded, is_live(session), position)


def _restored_outcome(
    session: Session, result: ResetResult[Any], point: SessionSnapshot
) -> CallOutcome:
    outcome = _result_outcome(session, result)
    outcome.encoded.parent = point.episode_id, point.step_index
    return outcome


def keep_snapshot(call: ParsedCall, outcome: CallOutcome, kept: KeptSnapshots) -> CallOutcome:
    """Keep a snapshot that a call returned, if it did; its caller gets the token."""
    kept.drop(call.dropped)
    if isinstance(outcome.value, SessionSnapshot):
        return outcome._replace(encoded=kept.keep(outcome.value))
    return outcome


def fork_failed(method: str, name: str, cause: object) -> ForkError:
    """Return the error of a `snapshot` or `restore` whose environment was lost."""
    return ForkError(f"{name}.{method}() failed: {cause}")


def _read_outcome(session: Session, value: State | None, call: ParsedCall) -> CallOutcome:
    """Return the outcome of a call that changes nothing: a state, or a checked reset."""
    if call.method != "state":
        kwargs = {name: arg for name, arg in call.reset_kwargs.items() if name != "episode_id"}
        session.check_reset(**kwargs)
    return CallOutcome(value, value, is_live(session), None)


def _error_outcome(
    session: Session, method: str, error: BaseException
) -> CallOutcome | ProcessExitAttemptError:
    """Return the outcome of a call that raised: the one mapping from errors to replies."""
    if not isinstance(error, Exception):
        return ProcessExitAttemptError(format_error(error))
    if not isinstance(error, EnvWeaveError):
        error = _invalid_values(method, error)
    return CallOutcome(error, None, is_live(session), session.position)


def _or_raise(outcome: CallOutcome | ProcessExitAttemptError) -> CallOutcome:
    if isinstance(outcome, ProcessExitAttemptError):
        raise outcome from None
    return outcome


def _invalid_values(method: str, error: Exception) -> EnvWeaveError:
    """Return the error for values that the environment's own types cannot handle."""
    logger.warning("%s failed on the values it received", method, exc_info=error)
    if method == "step":
        return ActionError(f"action: invalid: {format_error(error)}")
    return OptionError(f"The parameters of {method} are invalid: {format_error(error)}")


def refuse_early_state(session: Session) -> None:
    """Refuse to read the state of a shared object, which may hold another client's episode.

    Raises:
        ResetNeededError: This session has not begun an episode.
    """
    if session.phase is Phase.FRESH:
        raise ResetNeededError(
            f"state() on {session.interface.name} before its first episode: the server shares one "
            "object between all clients in turn. Call reset() first."
        )


def is_live(session: Session) -> bool:
    """Whether an episode is running."""
    return session.phase is Phase.LIVE or session.phase is Phase.TOOL

"""How a call of the wire becomes a call on an environment, and its value what travels back.

What is asked comes from strangers: whatever cannot be read is refused by name, and nothing has
happened then.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec

from envweave.errors import (
    ActionError,
    EnvWeaveError,
    OptionError,
    ResetNeededError,
    SeedError,
    TaskError,
    format_error,
    suggest,
)
from envweave.session import AsyncDriver, LoopDriver, Phase, Position, Session, SyncDriver
from envweave.types import ResetResult, State, StepResult, Task, ToolResult
from envweave.wire.results import encode_result

logger = logging.getLogger("envweave.server")

PlainDriver: TypeAlias = SyncDriver | LoopDriver

TAKES: dict[str, tuple[str, ...]] = {
    "reset": ("seed", "task", "options", "episode_id"),
    "check_reset": ("seed", "task", "options", "episode_id"),
    "step": ("action", "answer", "timeout_s"),
    "state": (),
}
"""The methods of an environment, and what each is given by name."""

_TASK_FIELDS = frozenset(Task.__dataclass_fields__)
_ANSWER_FIELDS = frozenset(ToolResult.__struct_fields__)
_SHOWN = 80


class ResetRequests(NamedTuple):
    """A call that can be read.

    Attributes:
        method: One of `TAKES`.
        wanted: What a reset is given.
        action: What a step is given.
    """

    method: str
    wanted: dict[str, Any]
    action: Any = None


class CallOutcome(NamedTuple):
    """What came of a call.

    Attributes:
        value: A result, a state or nothing, as the session made it; or what was raised.
        travels: The same as it travels.
        is_live: Whether an episode is running now.
        position: Where the stream of episodes stands now, if this may have moved it.
    """

    value: Any
    travels: Any
    is_live: bool
    position: Position | None


class ProcessExitAttemptError(Exception):
    """An author's code raised what is meant to end a process. Never leaves the server."""


def read_call(method: str, params: Mapping[str, Any]) -> ResetRequests:
    """Return what is asked.

    Raises:
        EnvWeaveError: It is nothing that can be asked; the message names what is wrong.
    """
    if method == "step" and len(params) == 1 and "action" in params:
        return ResetRequests(method, {}, params["action"])
    takes = TAKES.get(method)
    if takes is None:
        raise OptionError(f"An environment has no method {_shown(method)}.")
    for name in params:
        if name not in takes:
            known = f" It takes: {', '.join(takes)}." if takes else " It takes none."
            hint = suggest(name, takes) if isinstance(name, str) else ""
            raise OptionError(f"{method} takes no parameter {_shown(name)}.{hint or known}")
    if method == "step":
        return ResetRequests(method, {}, _read_action(params))
    return ResetRequests(method, _read_wanted(params) if takes else {})


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
        raise ActionError(f"answer: {_shown(answer)} is no answer to a tool call")
    _refuse_others("answer", answer, _ANSWER_FIELDS, ActionError)
    call_id, error = answer.get("call_id"), answer.get("error")
    if not isinstance(call_id, str):
        raise ActionError(f"answer.call_id: {_shown(call_id)} is no text")
    if error is not None and not isinstance(error, str):
        raise ActionError(f"answer.error: {_shown(error)} is no text")
    return ToolResult(call_id, answer.get("value"), error)


def _read_wanted(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a reset is given, without what it is not."""
    wanted = {name: one for name, one in params.items() if one is not None}
    seed = wanted.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise SeedError(f"seed={_shown(seed)} is not a whole number of 0 or more.")
    options = wanted.get("options", {})
    if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
        raise OptionError(f"options={_shown(options)} are no dict by name.")
    episode_id = wanted.get("episode_id", "")
    if not isinstance(episode_id, str):
        raise OptionError(f"episode_id={_shown(episode_id)} is no text.")
    if "task" in wanted:
        wanted["task"] = _read_task(wanted["task"])
    return wanted


def _read_task(task: Any) -> Task | str:
    if isinstance(task, str | Task):
        return task
    if not isinstance(task, dict):
        raise TaskError(f"task={_shown(task)} is neither a task nor the id of one.")
    _refuse_others("task", task, _TASK_FIELDS, TaskError)
    try:
        return msgspec.convert(task, Task).public()  # whatever it says of its private part
    except (msgspec.ValidationError, RecursionError) as error:
        raise TaskError(f"The task cannot be read: {error}") from None


def _refuse_others(
    what: str, given: dict[Any, Any], fields: frozenset[str], error: type[EnvWeaveError]
) -> None:
    for name in given:
        if name not in fields:
            hint = suggest(name, fields) if isinstance(name, str) else ""
            raise error(f"{what}: there is no field {_shown(name)}.{hint}")


def _shown(value: Any) -> str:
    """Return a stranger's value in a message: not all of it."""
    if isinstance(value, str | bytes) and len(value) > _SHOWN:
        value = value[:_SHOWN]
    elif isinstance(value, dict | list) and len(value) > 4:
        return f"a {type(value).__name__} of {len(value)}"
    shown = repr(value)
    return shown if len(shown) <= 2 * _SHOWN else f"{shown[:_SHOWN]}…"


def perform(driver: PlainDriver, asked: ResetRequests) -> CallOutcome:
    """Carry out a call, in this thread. What is raised on purpose is returned as the value.

    Raises:
        EndedItselfError: The author's code raised what is meant to end a process.
    """
    session = driver.session
    try:
        if asked.method == "step":
            return _performed(session, driver.step(asked.action))
        if asked.method == "reset":
            return _performed(session, driver.reset(**asked.wanted))
        return _looked(session, driver.state() if asked.method == "state" else None, asked)
    except EnvWeaveError as error:
        return _refused(session, error)
    except Exception as error:  # noqa: BLE001 - a stranger's values
        return _refused(session, _unreadable(asked, error))
    except BaseException as error:  # noqa: BLE001 - the thread goes on, for others
        raise ProcessExitAttemptError(format_error(error)) from None


def take_step(driver: PlainDriver, action: Any) -> Any:
    """Take a step, in this thread; nothing is raised.

    Returns its result if it was an ordinary one, else as `perform` has it; or the
    `ProcessExitAttemptError`.
    """
    try:
        result = driver.step(action)
        if result.end is None and result._needs is None and not result._events:  # noqa: SLF001
            return result
        return _performed(driver.session, result)
    except EnvWeaveError as error:
        return _refused(driver.session, error)
    except Exception as error:  # noqa: BLE001 - a stranger's values
        return _refused(driver.session, _unreadable(ResetRequests("step", {}), error))
    except BaseException as error:  # noqa: BLE001 - the thread goes on, for others
        return ProcessExitAttemptError(format_error(error))


async def perform_on_loop(driver: AsyncDriver, asked: ResetRequests) -> CallOutcome:
    """Carry out a call, on this loop. What is raised on purpose is returned as the value.

    Raises:
        EndedItselfError: The author's code raised what is meant to end a process.
    """
    session = driver.session
    try:
        if asked.method == "step":
            return _performed(session, await driver.step(asked.action))
        if asked.method == "reset":
            return _performed(session, await driver.reset(**asked.wanted))
        return _looked(session, await driver.state() if asked.method == "state" else None, asked)
    except EnvWeaveError as error:
        return _refused(session, error)
    except Exception as error:  # noqa: BLE001 - a stranger's values
        return _refused(session, _unreadable(asked, error))
    except (SystemExit, KeyboardInterrupt) as error:
        raise ProcessExitAttemptError(format_error(error)) from None


def _performed(session: Session, result: StepResult[Any]) -> CallOutcome:
    is_over = result.end is not None
    if not is_over and type(result) is StepResult and session.interface.possible_agents is None:
        return CallOutcome(result, encode_result(result, None, None), is_live(session), None)
    begins = result.ready is not None or isinstance(result, ResetResult)
    position = session.position if is_over or begins else None
    agents = None if session.interface.possible_agents is None else session.agents
    travels = encode_result(result, agents, position if begins else None)
    return CallOutcome(result, travels, is_live(session), position)


def _looked(session: Session, value: State | None, asked: ResetRequests) -> CallOutcome:
    """Carry out what changes nothing: a state was looked at already."""
    if asked.method != "state":
        wanted = {name: one for name, one in asked.wanted.items() if name != "episode_id"}
        session.check_reset(**wanted)
    return CallOutcome(value, value, is_live(session), None)


def _refused(session: Session, error: EnvWeaveError) -> CallOutcome:
    return CallOutcome(error, None, is_live(session), session.position)


def _unreadable(asked: ResetRequests, error: Exception) -> EnvWeaveError:
    """Return what to say of values that an environment's own types could not bear."""
    logger.warning("%s could not be carried out", asked.method, exc_info=error)
    if asked.method == "step":
        return ActionError(f"action: it cannot be read: {format_error(error)}")
    return OptionError(f"What {asked.method} is given cannot be read: {format_error(error)}")


def refuse_early_state(session: Session) -> None:
    """Refuse to show the state of a shared object, which may be that of another caller's episode.

    Raises:
        ResetNeededError: This session has begun no episode.
    """
    if session.phase is Phase.FRESH:
        raise ResetNeededError(
            f"state() on {session.interface.name} before its first episode: the server has one "
            "object for all callers, one after the other. Call reset() first."
        )


def is_live(session: Session) -> bool:
    """Whether an episode is running."""
    return session.phase is Phase.LIVE or session.phase is Phase.TOOL

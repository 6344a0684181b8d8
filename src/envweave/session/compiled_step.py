"""The step of a sync environment, compiled for the actions that it takes.

`Session.admit`, the author's `step` and `Session.conclude` in one function. It takes the ordinary
step itself: an episode is running, the action fits as it is, the outcome is a tuple of five or a
dataclass of immutable values with a float for a reward, and nothing was emitted, ended or broken.
Everything else goes to the session, which has the only rules; a property test holds the two
against each other.

The source is completed with a test of the action and then compiled, as `dataclasses` does it. A
call for each part would take half as long again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from sys import getrefcount
from typing import Any, Protocol

import numpy as np

from envweave.codec import Spec
from envweave.codec.records import DataclassSpec
from envweave.session.session import Phase, Session
from envweave.session.snapshot import is_shallow_immutable, snapshot, snapshot_info
from envweave.types import Observation, StepResult, ToolResult


class AuthorCalls(Protocol):
    """The author's code under the rules of its session.

    Attributes:
        session: The rules.
        step: The author's `step`; that of another environment after a replacement.
    """

    session: Session
    step: Callable[[Any], Any]

    def step_by_rules(self, action: Any) -> StepResult[Any]:
        """Take a step that is not known to be an ordinary one."""
        ...

    def conclude(self, outcome: Any) -> StepResult[Any]:
        """Take the outcome of the author's `step`."""
        ...

    def fail(self, error: Exception) -> StepResult[Any]:
        """Take what the author's `step` raised."""
        ...


_SOURCE = """
def bind(author, session, admit, events, action_class):
    flat = None  # the class of the last observation that needed no copy

    def step(action):
        nonlocal flat
        if session.phase is not LIVE:
            return author.step_by_rules(action)
        try:
            fits = {fits}
        except AttributeError:  # a field was deleted; `admit` names it
            fits = False
        if not fits:
            action = admit(action)
        run = author.step
        try:
            outcome = run(action)
        except Exception as error:
            return author.fail(error)
        except BaseException:
            session.abandon()
            raise
        try:
            kind = type(outcome)
            if kind is tuple:
                observation, reward, terminated, truncated, info = outcome
                kind = type(observation)
            elif kind is flat or (isinstance(outcome, Observation) and is_shallow_immutable(kind)):
                observation, flat = outcome, kind
                reward, info = outcome.reward, outcome.metadata
                terminated, truncated = outcome.done, outcome.truncated
            else:
                reward = None
            is_ordinary = (
                type(reward) is float
                and reward == reward  # the cheapest test for NaN
                and terminated is False
                and truncated is False
                and not events
                and session.transform is None
                and session.check_observation is None
                and (not info or (type(info) is dict and "reward_parts" not in info))
            )
            if is_ordinary:
                if kind is ndarray:
                    observation = observation.copy()
                elif observation is not outcome or info or getrefcount(outcome) > UNSHARED:
                    observation = snapshot(observation)
                info = snapshot_info(info) if info else {{}}
        except Exception:
            is_ordinary = False  # `conclude` meets the same error, and ends the episode
        except BaseException:
            session.abandon()
            raise
        if not is_ordinary:
            return author.conclude(outcome)
        session.last = observation
        session.info = info
        session.step_index = index = session.step_index + 1
        result = new(StepResult)
        result.observation = observation
        result.reward = reward
        result.terminated = False
        result.truncated = False
        result.info = info
        result.end = None
        result.ready = None
        result.episode_id = session.episode_id
        result.step_index = index
        result.task_id = session.task_id
        result._needs = None
        result._events = result._ready_events = ()
        return result

    return step
"""


def compile_step(author: AuthorCalls) -> Callable[[Any], StepResult[Any]]:
    """Return the function that takes one step. See `Env.step`."""
    session = author.session
    if session.interface.possible_agents is not None:
        return author.step_by_rules
    spec = session.interface.action_spec
    bind = _compile(_fits(spec))
    action_class = spec.cls if isinstance(spec, DataclassSpec) else None
    step: Callable[[Any], StepResult[Any]] = bind(
        author, session, session.admit, session.events, action_class
    )
    return step


def _fits(spec: Spec) -> str:
    """Return the source of a test that is true only of actions that `admit` would not change."""
    if isinstance(spec, DataclassSpec):
        test = spec.fields_test("action")
        return "False" if test is None else f"type(action) is action_class and {test}"
    test = spec.exact_test("action")
    if test == "True":
        return "type(action) is not ToolResult"  # of which `admit` refuses every one
    return test or "False"


@lru_cache(maxsize=1024)
def _compile(fits: str) -> Callable[..., Any]:
    scope: dict[str, Any] = {
        "LIVE": Phase.LIVE,
        "UNSHARED": _unshared_refcount(),
        "Observation": Observation,
        "StepResult": StepResult,
        "ToolResult": ToolResult,
        "getrefcount": getrefcount,
        "is_shallow_immutable": is_shallow_immutable,
        "ndarray": np.ndarray,
        "new": object.__new__,
        "snapshot": snapshot,
        "snapshot_info": snapshot_info,
    }
    # The only parts that vary are names of fields and literals of specs.
    exec(compile(_SOURCE.format(fits=fits), f"<step: {fits}>", "exec"), scope)  # noqa: S102
    bind: Callable[..., Any] = scope["bind"]
    return bind


def _unshared_refcount() -> int:
    """Return the reference count of an outcome that nothing but `step` refers to."""
    outcome = object()
    observation = outcome
    return getrefcount(outcome) if observation is outcome else 0

"""The compiled step does what the rules of the session say, and shares nothing with authors."""

from __future__ import annotations

import gc
import math
import weakref
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from comparison import same
from hypothesis import given, settings
from hypothesis import strategies as st

import envweave as ew
from envweave.errors import ActionError
from envweave.session import Session, SyncDriver


@dataclass
class Flat(ew.Observation):
    """Holds nothing that can be changed."""

    at: int = 0


@dataclass
class Deep(ew.Observation):
    """Holds a list, which can be changed."""

    seen: list[int] = field(default_factory=list)


@dataclass
class Push(ew.Action):
    """An action of every kind of field that is tested by a literal."""

    by: Annotated[int, ew.Bounds(0, 3)] = 0
    force: Annotated[float, ew.Bounds(-1, 1)] = 0.0
    way: Literal["left", "right"] = "left"


FLAGS = (False, False, {})


class Interrupted(BaseException):
    """Not an `Exception`, like a `KeyboardInterrupt`."""


class Returns(ew.Environment):
    """Plays a script of what to emit, then to return or raise, over and over."""

    def __init__(self, script: list[tuple[list[Any], Any]], spec: Any) -> None:
        self.script, self.action_spec = script, spec
        self.taken: list[Any] = []
        self.calls = 0

    def reset(self, *, seed: int | None = None) -> Any:
        return np.zeros(2), {"calls": self.calls}

    def step(self, action: Any) -> Any:
        self.taken.append(action)
        emitted, outcome = self.script[self.calls % len(self.script)]
        self.calls += 1
        for event in emitted:
            self.emit(event)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def answer(self, result: ew.ToolResult) -> Any:
        return np.ones(2), 0.5, False, False, {}


observations = st.sampled_from(
    [
        lambda: np.arange(2.0),
        lambda: np.array([[1], [None]], object),
        lambda: "text",
        lambda: {"deep": [1, np.zeros(1)]},
        lambda: Flat(at=3),
        lambda: Deep(seen=[1]),
        lambda: (one for one in ()),  # cannot be copied
        lambda: None,
    ]
)
rewards = st.sampled_from([1.0, 0.0, -2.5, math.nan, math.inf, 1, True, None, np.float32(2), "1"])
flags = st.sampled_from([False, False, False, True, np.bool_(False), np.bool_(True), 0, 1, None])
infos = st.sampled_from(
    [
        {},
        None,
        {"a": 1},
        {"action_mask": np.ones(2, bool)},
        {"reward_parts": {"base": 1.0}},
        {"reward_parts": 3},
        "no dict",
        np.zeros(2),  # has no truth value
    ]
)


@st.composite
def outcomes(draw: st.DrawFn) -> Any:
    kind = draw(st.sampled_from(["five", "five", "flat", "deep", "raise", "other"]))
    if kind == "five":
        parts = draw(st.tuples(observations, rewards, flags, flags, infos))
        return (parts[0](), *parts[1:])
    if kind in ("flat", "deep"):
        made: Any = (Flat if kind == "flat" else Deep)()
        made.reward, made.done, made.truncated = draw(st.tuples(rewards, flags, flags))
        made.metadata = draw(infos)
        if draw(st.integers(0, 9)) == 0:
            del made.__dict__["reward"]
        return made
    if kind == "raise":
        return draw(
            st.sampled_from([ValueError("broken"), ActionError("action: no"), Interrupted("stop")])
        )
    others = [None, 3, (1, 2), np.zeros(2), ew.StepResult("o", 1.0), ew.ResetResult("o")]
    return draw(st.sampled_from(others))


events = st.sampled_from(
    [
        ew.LogEvent("said"),
        ew.ToolCallRequest("call", "search"),
        ew.EpisodeEnd("timeout", "agent"),
        "no event",
    ]
)
scripts = st.lists(
    st.tuples(st.just([]) | st.lists(events, max_size=2), outcomes()), min_size=1, max_size=5
)


def forgetful() -> Push:
    action = Push()
    del action.__dict__["metadata"]
    return action


answer = ew.ToolResult("call")
cases: list[tuple[Any, list[Any]]] = [
    (Annotated[int, ew.Bounds(0, 1)], [0, 1, 2, True, np.int64(1), 1.0, "1", answer]),
    (float, [0.5, 1, math.nan, "x"]),
    (Literal["a", "b"], ["a", "c", 1]),
    (Any, [0, None, "x", answer]),
    (np.ndarray, [np.zeros(2), 1]),
    (
        Push,
        [
            Push(),
            Push(by=2, force=1.0, metadata={"k": 1}),
            Push(by=4),
            Push(force=1),
            Push(way="up"),  # type: ignore[arg-type]
            {"by": 1},
            {"by": 9},
            {"bye": 1},
            {},
            3,
        ],
    ),
]


@settings(max_examples=150, deadline=None)
@given(
    scripts,
    st.sampled_from(cases).flatmap(
        lambda case: st.tuples(
            st.just(case[0]), st.lists(st.sampled_from(case[1]), min_size=1, max_size=12)
        )
    ),
    st.booleans(),
    st.sampled_from([None, None, "transform", "columns"]),
)
def test_the_compiled_step_equals_the_rules(
    script: list[tuple[list[Any], Any]],
    actions: tuple[Any, list[Any]],
    autoreset: bool,
    extra: str | None,
) -> None:
    played = [
        play(SyncDriver(session), compiled=compiled, actions=actions[1])
        for compiled in (True, False)
        for session in [open_session(script, actions[0], extra, autoreset=autoreset)]
    ]

    assert same(*played)


def open_session(script: Any, spec: Any, extra: str | None, *, autoreset: bool) -> Session:
    transform = (lambda observation: observation) if extra == "transform" else None
    session = Session(Returns(script, spec), autoreset=autoreset, transform=transform)
    if extra == "columns":
        session.check_observation = refuse_text
    return session


def refuse_text(observation: Any) -> None:
    if isinstance(observation, str):
        raise ew.errors.BadReturnError("text has no column")


def play(driver: SyncDriver, *, compiled: bool, actions: list[Any]) -> list[Any]:
    """Return what a caller sees of these steps, and what the session knows after each."""
    step = driver.step if compiled else driver._calls.step_by_rules
    session, seen = driver.session, []
    session.resume_from(session.position._replace(prefix="episode"))
    for action in [None, *actions, "reset", *actions, "reset", *actions]:
        try:
            if isinstance(action, str) and action == "reset":
                result = driver.reset(seed=1)
            else:
                result = step(action)
            shown: Any = (type(result), [getattr(result, name) for name in ew.StepResult.__slots__])
        except (Exception, Interrupted) as error:  # noqa: BLE001 - compared
            shown = (type(error), str(error), type(error.__cause__))
        environment: Any = session.environment
        known = session.phase, session.step_index, session.reset_due, session.episode_id
        seen.append((shown, known, session.last, list(session.events), list(environment.taken)))
    return seen


@pytest.mark.parametrize(
    "outcome",
    [
        (np.zeros(2), 1.0, False, False, {"a": 1}),
        ({"deep": [1]}, 1.0, False, False, {"action_mask": np.ones(2)}),
        Flat(at=1, reward=1.0),
        Flat(at=1, reward=1.0, metadata={"a": 1}),
        Deep(seen=[1], reward=1.0),
    ],
    ids=repr,
)
def test_what_an_author_keeps_does_not_change_a_result(outcome):
    env = ew.make(Returns([([], outcome)], int))
    env.reset()
    shown = env.step(1)
    before = repr(shown)

    observation = outcome[0] if isinstance(outcome, tuple) else outcome
    match observation:
        case np.ndarray():
            observation += 1
        case dict():
            observation["deep"].append(2)
        case Flat():
            observation.at, observation.reward = 9, 9.0
            observation.metadata["b"] = 2
        case Deep():
            observation.seen.append(2)
    if isinstance(outcome, tuple):
        outcome[4].update(b=2)
        outcome[4].get("action_mask", np.zeros(1))[:] = 0

    assert repr(shown) == before


def test_an_observation_that_nothing_else_holds_is_passed_on_without_a_copy():
    made = []

    class Fresh(ew.Environment):
        def reset(self) -> Flat:
            return Flat()

        def step(self, action: int) -> Flat:
            observation = Flat(reward=1.0)
            made.append(id(observation))
            return observation

    env = ew.make(Fresh())
    env.reset()

    result = env.step(1)

    assert id(result.observation) == made[0]


def test_an_action_with_a_deleted_field_is_refused_by_name():
    env = ew.make(Returns([([], (np.zeros(2), 1.0, False, False, {}))], Push))
    env.reset()

    with pytest.raises(ActionError, match=r"action\.metadata: this field is missing"):
        env.step(forgetful())

    assert env.step(Push()).step_index == 1


def test_a_replacement_is_stepped_after_a_failure():
    made = []

    def factory() -> Returns:
        outcome = (0, 1.0, *FLAGS) if made else ValueError("broken")
        made.append(Returns([([], outcome)], int))
        return made[-1]

    env = ew.make(factory, autoreset=True)
    env.reset()

    ended, result = env.step(1), env.step(2)

    assert ended.end is not None
    assert (made[0].taken, made[1].taken, result.step_index) == ([1], [2], 1)


def test_an_environment_that_is_dropped_is_freed_at_once():
    environment = Returns([([], (0, 1.0, *FLAGS))], int)
    env = ew.make(environment)
    env.reset()
    env.step(1)
    freed = weakref.ref(environment)
    gc.disable()
    try:
        del env, environment

        assert freed() is None
    finally:
        gc.enable()

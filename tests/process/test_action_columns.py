"""Actions that are dataclasses of numbers travel to workers in shared columns."""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import pytest

import envweave as ew
from envweave.codec import spec_from_hint
from envweave.vector.process.action_columns import action_columns

pytestmark = pytest.mark.slow  # starts worker processes


class Gear(enum.Enum):
    """A choice whose values are members."""

    LOW = "low"
    HIGH = "high"


@dataclass
class Drive(ew.Action):
    """A field of each kind that has a column."""

    steer: Annotated[float, ew.Bounds(-1, 1)] = 0.0
    speed: int = 0
    brake: bool = False
    lane: Literal[-1, 1] = 1
    side: Literal["left", "right"] = "left"
    gear: Gear = Gear.LOW


@dataclass(frozen=True)
class Plain:
    """Not an `Action`, and frozen."""

    by: int


@dataclass
class Counting(ew.Action):
    """Counts how often it is made."""

    made: int = field(default=0)

    def __post_init__(self) -> None:
        self.made += 1


@dataclass
class Worded(ew.Action):
    """Has a field without a column."""

    text: str = ""


@dataclass
class Mixed(ew.Action):
    """Two choices that are equal, and so have no index of their own."""

    choice: Literal[1, True] = 1


@dataclass
class Reduced(ew.Action):
    """Says itself how it is pickled."""

    by: int = 0

    def __reduce__(self) -> Any:
        return Reduced, (self.by,)


class Recorder(ew.Environment):
    """Shows the actions that it was given, by `repr`."""

    def __init__(self, action_type: Any = Drive) -> None:
        self.action_spec = action_type

    def reset(self, *, seed: int | None = None) -> Any:
        return "", {}

    def step(self, action: Any) -> Any:
        return f"{type(action).__module__} {action!r}", 1.0, False, False, {}


ROUND_TRIPS: list[tuple[Any, list[Any]]] = [
    (Drive, [Drive(), Drive(0.5, 2**62, True, -1, "right", Gear.HIGH)]),
    (Plain, [Plain(3), Plain(-1)]),
    (Counting, [Counting(1)]),
]


@pytest.mark.parametrize(("hint", "actions"), ROUND_TRIPS, ids=repr)
def test_what_columns_hold_is_read_back_as_it_was(hint, actions):
    columns = action_columns(spec_from_hint(hint))

    gathered = columns.gather(actions)

    assert gathered is not None
    read = columns.read(gathered)
    assert read == actions
    assert list(map(vars, read)) == list(map(vars, actions))


def with_attribute() -> Drive:
    action = Drive()
    action.extra = 1  # type: ignore[attr-defined]
    return action


@pytest.mark.parametrize(
    "action",
    [
        Drive(speed=2**64),
        Drive(metadata={"who": "me"}),
        with_attribute(),
        Plain(1),
    ],
    ids=repr,
)
def test_an_action_that_columns_cannot_hold_goes_in_a_message(action):
    assert action_columns(spec_from_hint(Drive)).gather([Drive(), action]) is None


@pytest.mark.parametrize("hint", [Worded, Mixed, Reduced, str, Any], ids=repr)
def test_actions_that_are_not_only_numbers_have_no_columns(hint):
    assert list(action_columns(spec_from_hint(hint)).kinds) == []


@pytest.mark.parametrize(
    "actions",
    [
        [Drive(speed=i, gear=Gear.HIGH) for i in range(4)],
        [{"speed": i, "lane": -1, "side": "right"} for i in range(4)],
        [Drive(), {"steer": 1}, Drive(speed=2**70), Drive(metadata={"a": 1})],
        {"speed": np.arange(4), "brake": [True, False, True, False]},
    ],
    ids=["objects", "dicts", "mixed", "columns"],
)
@pytest.mark.parametrize("workers", [None, 2])
def test_authors_get_the_same_actions_in_worker_processes(actions, workers):
    shown = []
    for options in ({"backend": "process", "workers": workers}, {}):
        with ew.make_vector(Recorder, num_envs=4, **options) as venv:
            venv.reset()
            steps = [venv.step(actions) for _ in range(2)]
            shown.append([step[i].observation for step in steps for i in range(4)])

    assert shown[0] == shown[1]


def test_metadata_that_cannot_be_sent_is_still_refused():
    with ew.make_vector(Recorder, num_envs=2, backend="process") as venv:
        venv.reset()

        with pytest.raises(ew.errors.ActionError, match="cannot be sent to a worker process"):
            venv.step([Drive(), Drive(metadata={"a": threading.Lock()})])

        assert venv.step([Drive(), Drive()]).reward.tolist() == [1.0, 1.0]

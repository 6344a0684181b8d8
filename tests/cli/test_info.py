"""`envweave info`."""

from __future__ import annotations

import json
import re

import pytest

RICH = '''
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Literal

import numpy as np

import envweave as ew


class Gear(Enum):
    LOW = "low"
    HIGH = "high"


@dataclass
class Drive(ew.Action):
    force: Annotated[float, ew.Bounds(-1, 1)]
    gear: Gear
    note: str | None = None
    path: list[int] | None = None


@dataclass
class Road(ew.Observation):
    view: Annotated[np.ndarray, ew.Bounds(0, 255, shape=(8, 8), dtype="uint8")]
    speed: Annotated[float, ew.Bounds(0)]
    side: Literal["left", "right"] = "left"


class RoadEnv(ew.Environment):
    """Drive along a road.

    It is long,
    and winding.
    """

    deterministic = False
    tasks = ew.Tasks(
        {"train": [ew.Task("a"), ew.Task("b")], "test": [ew.Task("c", split="test")]}
    )

    def __init__(self, lanes: int, rain: bool = False) -> None:
        print("made with", lanes)
        self.closed = False

    async def reset(self, *, task: ew.Task, seed: int | None = None) -> Road:
        return Road(np.zeros((8, 8), np.uint8), 0.0)

    async def step(self, action: Drive) -> Road:
        return Road(np.zeros((8, 8), np.uint8), 0.0, reward=1.0, done=True)

    async def close(self) -> None:
        print("closed")


class Untyped:
    def reset(self):
        return 0, {}

    def step(self, action):
        return 0, float("nan"), True, False, {}
'''


def test_an_environment_is_described(envweave, here):
    (here / "road_env.py").write_text(RICH)

    ran = envweave("info", "pkg://road_env:RoadEnv", "--arg", "lanes=2")

    assert ran.code == 0
    for text in (
        "Drive along a road. It is long, and winding.",
        "class road_env:RoadEnv",
        "keyword type default",
        "lanes int",
        "rain bool False",
        "reset takes seed, task",
        "agents one",
        "tasks train (2), test (1)",
        "deterministic no",
        "async yes",
        "force float -1 to 1",
        "gear choice 'low', 'high'",
        "note str or None any",
        "path list of int or None any",
        "view array 8×8 uint8 0 to 255",
        "speed float at least 0",
        "side choice 'left', 'right'",
        "made with 2",
        "closed",
    ):
        assert text in ran.text
    assert "metadata" not in ran.text


def test_the_json_has_the_schemas_and_nothing_else_on_stdout(envweave, here):
    (here / "road_env.py").write_text(RICH)

    ran = envweave("info", "pkg://road_env:RoadEnv", "--arg", "lanes=2", "--json")

    report = json.loads(ran.stdout)
    assert report.pop("action_schema")["properties"]["force"] == {
        "type": "number",
        "minimum": -1,
        "maximum": 1,
    }
    assert report.pop("observation_schema")["title"] == "Road"
    assert report == {
        "id": "pkg://road_env:RoadEnv",
        "description": "Drive along a road.",
        "docstring": "Drive along a road.\n\nIt is long,\nand winding.",
        "class": "road_env:RoadEnv",
        "factory": "road_env:RoadEnv",
        "signature": "lanes: int, rain: bool = False",
        "kwargs": {},
        "max_episode_steps": None,
        "reset_takes": ["seed", "task"],
        "agents": None,
        "tasks": {"train": 2, "test": 1},
        "deterministic": False,
        "async": True,
    }
    assert "made with 2" in ran.stderr


def test_types_are_short_and_the_sections_of_the_docstring_are_omitted(envweave):
    ran = envweave("info", "coding-v0")

    assert "limits Limits | Mapping[str, Any] | None None" in ran.text
    assert "profile Literal['python', 'shell'] 'python'" in ran.text
    assert "collections.abc" not in ran.stdout
    assert "Args:" not in ran.stdout


def test_a_keyword_that_is_missing_is_named(envweave, here):
    (here / "road_env.py").write_text(RICH)

    ran = envweave("info", "pkg://road_env:RoadEnv")

    assert ran.code == 2
    assert "'lanes'" in ran.stderr


def test_an_unknown_keyword_is_refused(envweave):
    ran = envweave("info", "counter-v0", "--arg", "done_att=5")

    assert ran.code == 2
    assert "Did you mean 'done_at'?" in ran.stderr


def test_agents_with_the_same_spec_are_shown_once(envweave):
    ran = envweave("info", "tictactoe-v0")

    assert "agents x, o" in ran.text
    assert "Action of each agent" in ran.text
    assert ran.text.count("cell int 0 to 8") == 1


def test_the_json_names_the_agents(envweave):
    ran = envweave("info", "tictactoe-v0", "--json")

    report = json.loads(ran.stdout)
    assert report["agents"] == ["x", "o"]
    assert set(report["action_schema"]["properties"]) == {"x", "o"}


def test_an_untyped_environment_takes_anything(envweave, here):
    (here / "road_env.py").write_text(RICH)

    ran = envweave("info", "pkg://road_env:Untyped")

    assert ran.code == 0
    assert "(itself) anything any" in ran.text


def test_a_gymnasium_environment_is_described_by_the_class_inside_its_wrappers(envweave):
    pytest.importorskip("gymnasium")

    ran = envweave("info", "gym://CartPole-v1")

    assert ran.code == 0
    assert "class gymnasium.envs.classic_control.cartpole:CartPoleEnv" in ran.text
    assert "more lines; all with --json)" in ran.text
    assert "(itself) int 0 to 1" in ran.text
    assert "[0] -4.8 to 4.8, [1] any" in ran.text


def test_a_missing_module_is_named(envweave):
    ran = envweave("info", "pkg://no_such_module:Env")

    assert ran.code == 2
    assert "'no_such_module' cannot be imported" in ran.stderr


@pytest.mark.parametrize(
    ("env_class", "rows"),
    [
        (
            "Dataclasses",
            ["Wait or Move or Say", "Wait no fields", "Move.dx int -1 to 1", "Say.words str"],
        ),
        ("Structs", ["Open or Close", "Open.door int 1 to 3", "Close.door int", "Close.loudly"]),
        ("TypedDicts", ["Take or Drop", "Take.what str", "Drop.what str", "Drop.where int"]),
        ("Inside", ["inner Wait or Move", "inner(Wait) no fields", "inner(Move).dx int -1 to 1"]),
    ],
)
def test_each_member_of_a_union_is_shown_with_its_fields(envweave, env_class, rows):
    ran = envweave("info", f"pkg://environments.typed:{env_class}")

    shown = " ".join(re.sub(r"[^\w.() -]", " ", ran.text).split())
    for row in rows:
        assert row in shown


def test_limits_are_described(envweave):
    ran = envweave("info", "pkg://environments.typed:Dataclasses")

    assert "a length of between 1 and 40" in ran.text

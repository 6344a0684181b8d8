"""OpenEnv's classes of environments, made by envweave where both are installed."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.slow  # starts programs of OpenEnv

ACTIONS: dict[str, Any] = {
    "echo": {"message": "hello"},
    "talk": {"text": "hello", "tags": ["a"]},
    "grid": {"way": "north", "paces": 2},
    "shop": {"order": {"kind": "buy", "item": "egg", "count": 3}},
    "planner": {"steps": [1, 2], "due": "2026-05-01"},
    "garden": {"tree": {"name": "oak", "children": [{"name": "twig"}]}},
    "slow": {},
    "quiz": {"answer": 4},
    "kitchen": {"tool_name": "cook", "arguments": {"dish": "egg"}},
    "bracketed": {},
}


@pytest.mark.parametrize("name", ACTIONS)
def test_an_episode_is_played_with_dicts_as_actions(both: Any, name: str) -> None:
    first, result, state = both("play", name=name, actions=[ACTIONS[name]])

    assert first["done"] is False
    assert isinstance(result, dict), result
    assert (state["episode_id"], state["step_count"]) == ("one", 1)


def test_observations_are_those_of_their_server(both: Any) -> None:
    _, moved, _ = both("play", name="grid", actions=[ACTIONS["grid"]])
    task, verdict, state = both("play", name="quiz", actions=[{"answer": 4}])
    _, cooked, _ = both("play", name="kitchen", actions=[ACTIONS["kitchen"]])

    assert (moved["class"], moved["observation"]["place"]) == ("Seen", {"x": 0, "y": 2})
    assert (task["class"], task["info"]) == ("Task", {"level": 1, "seed": 3})
    assert (verdict["class"], verdict["reward"]) == ("Verdict", 1.0)
    assert state["class"] == "State"
    assert cooked["class"] == "CallToolObservation"
    assert cooked["observation"]["result"]["data"] == "egg, cooked"


@pytest.mark.parametrize(
    ("name", "action", "message"),
    [
        ("talk", {"txet": "x"}, "ActionError: action.txet: unknown field. Did you mean 'text'?"),
        ("talk", {"text": ""}, "ActionError: action.text: '' is refused: String should have at"),
        ("grid", {"way": "up"}, "ActionError: action.way: 'up' is refused: Input should be 'nor"),
        (
            "shop",
            {"order": {"kind": "buy", "item": "egg", "cuont": 1}},
            "ActionError: action.order.cuont: unknown field. Did you mean 'count'?",
        ),
        (
            "untyped",
            {"x": 1},
            "ActionError: action: the hints of Untyped.step() do not name the class",
        ),
    ],
)
def test_an_action_refused_by_their_model_is_an_action_error_and_the_episode_continues(
    both: Any, name: str, action: Any, message: str
) -> None:
    good = [] if name == "untyped" else [ACTIONS[name]]

    _, refused, *rest, _ = both("play", name=name, actions=[action, *good])

    assert refused.startswith(message)
    assert all(isinstance(one, dict) for one in rest)


def test_an_environment_without_hints_takes_objects(both: Any) -> None:
    assert both("play_object")["class"] == "Felt"


def test_options_are_keywords_of_their_reset_and_a_wrong_one_is_refused(both: Any) -> None:
    first, _ = both("play", name="bracketed", actions=[], options={"level": 3})
    anything, _ = both("play", name="grid", actions=[], options={"level": 3})

    assert first["observation"]["feeling"] == 3
    assert anything["class"] == "Seen"
    with pytest.raises(AssertionError, match=r"takes no 'leevl'\. Did you mean 'level'\?"):
        both("play", name="bracketed", actions=[], options={"leevl": 3})


@pytest.mark.slow  # a process that imports OpenEnv
@pytest.mark.parametrize("backend", ["process", "http"])
@pytest.mark.parametrize("name", ["grid", "quiz", "kitchen", "slow"])
def test_other_backends_show_the_same_objects(both: Any, name: str, backend: str) -> None:
    actions = [ACTIONS[name]]

    there = both("play", name=name, actions=actions, backend=backend)

    assert there == both("play", name=name, actions=actions)


@pytest.mark.parametrize("name", sorted(ACTIONS.keys() - {"echo", "bracketed"}))
def test_every_promise_is_kept_that_can_be_checked(both: Any, name: str) -> None:
    assert both("check", name=name) == []


def test_the_command_checks_and_runs_them_by_their_path(both: Any) -> None:
    checked = both("run_command", arguments=["check", "pkg://openenv_environments:Grid"])
    ran = both(
        "run_command", arguments=["run", "pkg://openenv_environments:Shop", "--episodes", "2"]
    )
    shown = both("run_command", arguments=["info", "pkg://openenv_environments:Grid"])

    assert (checked["code"], ran["code"], shown["code"]) == (0, 0, 0)
    assert "0 broken" in checked["printed"]
    assert "place.x" in shown["printed"]


def test_a_registered_class_has_an_id(both: Any) -> None:
    assert both("play_registered")["observation"]["place"] == {"x": 0, "y": 2}


def test_a_vector_has_columns_or_where_classes_differ_a_list_of_objects(both: Any) -> None:
    grid = both("vector", name="grid", actions=[ACTIONS["grid"]] * 3)
    quiz = both("vector", name="quiz", actions=[ACTIONS["quiz"]] * 3)

    assert grid["columns"][1]["place"] == {"x": [0, 0, 0], "y": [2, 2, 2]}
    assert grid["reward"] == [0.5] * 3
    assert quiz["columns"] == [["Task"] * 3, ["Verdict"] * 3]


def test_their_own_client_plays_a_class_that_envweave_serves(both: Any) -> None:
    calls = [["reset", {"seed": 3}], ["step", ACTIONS["grid"]], ["state", None]]

    _, result, state = both("serve_to_their_client", name="grid", calls=calls)

    assert result["observation"]["place"] == {"x": 0, "y": 2}
    assert (result["reward"], result["done"]) == (0.5, False)
    assert state["step_count"] == 1


def test_concurrent_sessions_of_an_unsafe_class_cause_one_warning(
    both: Any,
) -> None:
    (warning,) = both("warn")

    assert warning.startswith("There are several Lonely in this process")

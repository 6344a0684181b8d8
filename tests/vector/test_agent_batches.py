"""Several agents in a vector: slots, who takes part, who is asked, and the rewards."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import envweave as ew
from envweave.errors import ActionError, ResetFailedError, ResetNeededError
from envweave.testing import ScriptedAction, ScriptedAgents, ScriptedObservation

NAN = math.nan
MODES = ["serial", "threads", "async"]


@pytest.fixture
def make_vector() -> Iterator[Callable[..., ew.VectorEnv]]:
    """`ew.make_vector`, with everything closed afterwards."""
    with contextlib.ExitStack() as opened:
        yield lambda *args, **options: opened.enter_context(ew.make_vector(*args, **options))


def scripted(*script: dict[str, Any], **options: Any) -> Any:
    return lambda: ScriptedAgents(script=script, **options)


def same(column: Any, expected: list[list[float]]) -> bool:
    return np.array_equal(column, np.array(expected), equal_nan=True)


def test_slots_are_in_the_order_of_possible_agents() -> None:
    venv = ew.make_vector("tictactoe-v0", num_envs=2)

    batch = venv.reset(seed=0)

    assert venv.possible_agents == batch.possible_agents == ("x", "o")
    assert list(batch.current) == ["x", "o"]
    assert batch.alive.tolist() == [[True, True]] * 2
    assert batch.to_act.tolist() == [[True, False]] * 2


def test_every_column_of_a_step_is_one_of_a_reset() -> None:
    names = {name for name in dir(ew.AgentStepBatch) if not name.startswith("_")}
    batch = ew.make_vector("tictactoe-v0", num_envs=2).reset(seed=0)

    assert {name for name in names if name not in dir(batch)} <= {"idle", "tick"}


def test_with_one_agent_there_are_no_slots() -> None:
    venv = ew.make_vector("counter-v0", num_envs=2)

    assert venv.possible_agents is None
    assert isinstance(venv.reset(), ew.ResetBatch)


def test_columns_of_agents_with_one_spec_stack_into_one_array() -> None:
    venv = ew.make_vector("tictactoe-v0", num_envs=3)

    batch = venv.reset(seed=0)

    boards = np.stack([seen["board"] for seen in batch.current.values()], axis=1)
    assert boards.shape == (3, 2, 3, 3)
    assert batch.current["o"]["mark"].tolist() == [-1, -1, -1]


@pytest.mark.parametrize("mode", MODES)
def test_the_columns_of_an_agent_that_left_are_blank_after_its_last_step(
    make_vector: Any, mode: str
) -> None:
    script = ({"leave": ["a"], "rewards": {"a": 2.0, "b": 1.0}}, {}, {})
    venv = make_vector(scripted(*script), num_envs=2, mode=mode)
    venv.reset(seed=0)

    left = venv.step([{"a": {"text": "bye"}, "b": {"text": "hi"}}] * 2)
    after = venv.step([{"b": {"text": "hi"}}] * 2)

    assert left.alive.tolist() == left.to_act.tolist() == [[False, True]] * 2
    assert left.terminated.tolist() == [[True, False]] * 2
    assert left.bootstrap.tolist() == [[False, True]] * 2
    assert left.successor["a"]["at"].tolist() == [1, 1]
    assert left.successor["a"]["text"] == ["bye", "bye"]
    assert after.current["a"]["at"].tolist() == [0, 0]
    assert after.current["a"]["text"] == [None, None]
    assert same(after.reward, [[NAN, NAN]] * 2)
    assert after.bootstrap.tolist() == [[False, True]] * 2
    assert not after.done.any()


def test_an_agent_that_joins_is_asked_but_nothing_is_settled() -> None:
    script = ({"join": ["c"], "rewards": {"a": 1.0, "b": 1.0, "c": 5.0}}, {})
    venv = ew.make_vector(scripted(*script, possible_agents=("a", "b", "c")), num_envs=1)

    first = venv.reset(seed=0)
    batch = venv.step({"a": [{"text": ""}], "b": [{"text": ""}]})

    assert first.alive.tolist() == [[True, True, False]]
    assert first.current["c"]["noise"].tolist() == [0.0]
    assert batch.alive.tolist() == batch.to_act.tolist() == [[True, True, True]]
    assert batch.settled.tolist() == [[True, True, False]]


def test_after_an_autoreset_current_and_successor_differ() -> None:
    venv = ew.make_vector(scripted({"rewards": {"a": 3.0}}), num_envs=2, autoreset=True)
    venv.reset(seed=0)

    batch = venv.step([{"a": {}, "b": {}}] * 2)

    assert batch.done.tolist() == [True, True]
    assert batch.successor["a"]["at"].tolist() == [1, 1]
    assert batch.current["a"]["at"].tolist() == [0, 0]
    assert batch.terminated.tolist() == [[True, True]] * 2
    assert batch.alive.tolist() == batch.to_act.tolist() == [[True, True]] * 2
    assert same(batch.earned, [[3.0, NAN]] * 2)
    assert not batch.needs_reset.any()


def test_at_an_end_only_agents_that_took_part_have_ended() -> None:
    script = ({"leave": ["a"]}, {"cut": True})
    venv = ew.make_vector(scripted(*script, possible_agents=("a", "b", "c")), num_envs=1)
    venv.reset(seed=0)
    venv.step([{"a": {}, "b": {}}])

    batch = venv.step([{"b": {}}])

    assert batch.truncated.tolist() == [[False, True, False]]
    assert batch.terminated.tolist() == [[False, False, False]]
    assert batch.bootstrap.tolist() == [[False, True, False]]
    assert batch.needs_reset.tolist() == [True]
    assert not batch.alive.any()


def test_in_a_turn_based_game_an_action_is_settled_when_its_agent_is_asked_again() -> None:
    script = (
        {"rewards": {"a": 1.0}, "act": ["b"]},
        {"rewards": {"a": 10.0, "b": 2.0}, "act": ["a"]},
        {"rewards": {"b": 20.0}},
    )
    venv = ew.make_vector(scripted(*script, first=["a"]), num_envs=1)
    venv.reset(seed=0)

    batches = [venv.step([{agent: {}}]) for agent in ("a", "b", "a")]

    assert same(np.vstack([b.reward for b in batches]), [[1, NAN], [10, 2], [NAN, 20]])
    assert [b.settled[0].tolist() for b in batches] == [
        [False, False],
        [True, False],
        [True, True],
    ]
    assert same(np.vstack([b.earned for b in batches]), [[NAN, NAN], [11, NAN], [NAN, 22]])


@pytest.mark.parametrize("mode", MODES)
def test_a_failure_ends_one_episode_and_settles_nothing(make_vector: Any, mode: str) -> None:
    class Fragile(ScriptedAgents):
        def step(self, actions: dict[str, ScriptedAction]) -> dict[str, ScriptedObservation]:
            if actions["a"].text == "break":
                raise ValueError("broken")
            return super().step(actions)

    venv = make_vector(Fragile, num_envs=2, autoreset=True, mode=mode)
    venv.reset(seed=0)

    batch = venv.step([{"a": {"text": "break"}, "b": {}}, {"a": {}, "b": {}}])

    assert batch.valid.tolist() == [False, True]
    assert batch.done.tolist() == [True, False]
    assert np.isnan(batch.reward[0]).all()
    assert batch.reward[1].tolist()[0] == 1.0
    assert batch.settled.tolist() == [[False, False], [True, True]]
    assert batch.bootstrap.tolist() == [[False, False], [True, True]]
    assert batch.successor["a"]["at"].tolist() == [0, 1]
    assert batch[0].end.cause.startswith("ValueError: broken")


def test_an_all_flag_ends_the_episode_for_every_agent() -> None:
    class Gate(ew.MultiAgentEnvironment):
        possible_agents = ("a", "b")

        def reset(self) -> Any:
            return {"a": 0.0, "b": 0.0}, {}

        def step(self, actions: dict[str, int]) -> Any:
            return {"a": 1.0}, {}, {}, {"__all__": True}, {}

    venv = ew.make_vector(Gate, num_envs=1)
    venv.reset()

    batch = venv.step({"a": [0], "b": [0]})

    assert batch.done.tolist() == [True]
    assert batch.truncated.tolist() == [[True, True]]
    assert batch.successor["b"].tolist() == [0.0]


def test_a_partial_reset_shows_the_status_of_the_others() -> None:
    venv = ew.make_vector("tictactoe-v0", num_envs=2)
    venv.reset(seed=0)
    venv.step([{"x": {"cell": 4}}] * 2)

    batch = venv.reset(ids=[1])

    assert isinstance(batch, ew.AgentResetBatch)
    assert batch.began.tolist() == [False, True]
    assert batch.to_act.tolist() == [[False, True], [True, False]]
    assert batch.current["o"]["board"][:, 1, 1].tolist() == [1, 0]
    assert batch.action_mask["o"][0].tolist() == [True] * 4 + [False] + [True] * 4
    assert batch.step_index.tolist() == [1, 0]


def test_where_a_reset_failed_no_agent_takes_part() -> None:
    class Once(ScriptedAgents):
        resets = 0

        def reset(self, *, seed: int | None = None) -> Any:
            self.resets += 1
            if seed == 13:
                raise OSError("no more")
            return super().reset(seed=seed)

    venv = ew.make_vector(Once, num_envs=2)
    venv.reset(seed=0)
    with pytest.raises(ResetFailedError):
        venv.reset(ids=[0], seed=13)

    batch = venv.reset(ids=[1])

    assert batch.alive.tolist() == batch.to_act.tolist() == [[False, False], [True, True]]
    assert batch.needs_reset.tolist() == [True, False]


def test_actions_of_agents_that_are_not_asked_are_ignored_in_columns() -> None:
    venv = ew.make_vector("tictactoe-v0", num_envs=2)
    venv.reset(seed=0)

    venv.step({"x": np.array([0, 8]), "o": np.array([0, 8])})
    batch = venv.step({"x": [None, None], "o": {"cell": [1, 2]}})

    assert batch.current["x"]["board"].reshape(2, 9).tolist() == [
        [1, -1, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, -1, 0, 0, 0, 0, 0, 1],
    ]


def test_one_array_has_a_column_for_each_agent() -> None:
    venv = ew.make_vector("harvest-v0", num_envs=2, num_agents=3)
    venv.reset(seed=0)

    batch = venv.step(np.array([[0, 1, 2], [2, 1, 0]]))

    assert batch.reward.tolist() == [[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        ([{"x": {"cell": 0}}, {"o": {"cell": 0}}], r"actions\[1\]\['o'\]: it is not .* turn"),
        ([{"x": {"cell": 0}}, {}], r"actions\[1\]\['x'\]: this agent's action is missing"),
        ([{"x": {"cell": 0}}], "actions: got 1 for 2 environments"),
        ({"x": [{"cell": 0}, {"cell": 9}]}, r"actions\[1\]\['x'\].cell: 9 is not between"),
        ({"x": [{"cell": 0}, None]}, r"actions\[1\]\['x'\]: None"),
        ({"x": [{"cell": 0}]}, r"actions\['x'\]: got 1 for 2 environments"),
        ({"o": [None, None]}, r"actions\[0\]\['x'\]: this agent's action is missing"),
        ({"z": [None, None]}, r"actions\['z'\]: unknown agent"),
        ({"x": {"cell": 3}}, r"actions\['x'\].cell: a dict of columns .* got 3"),
        (np.zeros(2), r"must begin with \(2, 2\), .* got \(2,\)"),
        ("xo", "must be a list, .* got str"),
    ],
)
def test_a_refused_action_is_named_by_its_index(actions: Any, words: str) -> None:
    venv = ew.make_vector("tictactoe-v0", num_envs=2)
    venv.reset(seed=0)

    with pytest.raises(ActionError, match=words):
        venv.step(actions)

    assert venv.state()[0].step_count == 0


def test_recv_returns_the_rows_that_are_ready(make_vector: Any) -> None:
    venv = make_vector("tictactoe-v0", num_envs=3, mode="threads")
    venv.reset(seed=0)

    venv.send({"x": np.array([4, 5])}, ids=[2, 0])
    batch = venv.drain()
    venv.send([{"o": {"cell": 0}}], ids=[0])
    later = venv.recv()

    assert sorted(batch.ids.tolist()) == [0, 2]
    assert batch.to_act.tolist() == [[False, True]] * 2
    assert later.ids.tolist() == [0]
    assert later.current["x"]["board"][0].reshape(9)[[0, 5]].tolist() == [-1, 1]
    with pytest.raises(ActionError, match=r"actions\[1\]\['x'\]: this agent's action is missing"):
        venv.step([{"x": {"cell": 1}}, {}, {}])


def test_a_step_before_the_first_reset_is_refused() -> None:
    venv = ew.make_vector("tictactoe-v0", num_envs=2)

    with pytest.raises(ResetNeededError, match="before the first reset"):
        venv.step({"x": [0, 0]})

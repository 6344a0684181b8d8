from __future__ import annotations

import random

import numpy as np
import pytest

import envweave as ew
from envweave.examples import LineWorldAction


def walk(env, seed, choose):
    """Run an episode, and return its results."""
    results = [env.reset(seed=seed)]
    while not results[-1].done:
        results.append(env.step(choose(results[-1].observation)))
    return results


def towards_the_goal(observation):
    return LineWorldAction(move=observation.goal)


def away_from_the_goal(observation):
    return LineWorldAction(move=-observation.goal)


def test_walking_to_the_goal_earns_one_less_the_cost_of_the_steps():
    with ew.make("lineworld-v0") as env:
        results = walk(env, 3, towards_the_goal)

    last, steps = results[-1], len(results) - 1
    assert (last.terminated, last.truncated) == (True, False)
    assert last.metrics == {"success": 1.0}
    assert sum(result.reward for result in results[1:]) == pytest.approx(1 - 0.01 * steps)


def test_walking_to_the_other_end_terminates_without_success():
    with ew.make("lineworld-v0") as env:
        last = walk(env, 3, away_from_the_goal)[-1]

    assert (last.terminated, last.truncated) == (True, False)
    assert last.reward == pytest.approx(-1.01)
    assert last.metrics == {"success": 0.0}


def test_pacing_to_and_fro_is_truncated_at_the_limit():
    moves = iter([1, -1] * 20)

    with ew.make("lineworld-v0", max_steps=6) as env:
        last = walk(env, 3, lambda _: {"move": next(moves)})[-1]

    assert (last.terminated, last.truncated, last.step_index) == (False, True, 6)
    assert last.metrics == {"success": 0.0}


def test_seeds_put_the_goal_on_both_sides_and_vary_the_start():
    with ew.make("lineworld-v0") as env:
        starts = [env.reset(seed=seed).observation for seed in range(40)]

    assert {start.goal for start in starts} == {-1, 1}
    assert len({start.position for start in starts}) > 4
    assert all(abs(start.position) < 0.7 for start in starts)


def test_the_same_seed_gives_the_same_episode():
    with ew.make("lineworld-v0") as first, ew.make("lineworld-v0") as second:
        one, other = (walk(env, 11, towards_the_goal) for env in (first, second))

    assert [result.observation for result in one] == [result.observation for result in other]


def test_global_randomness_is_neither_used_nor_touched():
    random.seed(5)
    expected = random.random()
    random.seed(5)

    with ew.make("lineworld-v0") as env:
        walk(env, 0, towards_the_goal)

    assert random.random() == expected


def test_a_random_policy_succeeds_in_clearly_less_than_half_of_the_episodes():
    coin = random.Random(0)

    with ew.make("lineworld-v0") as env:
        successes = [
            walk(env, seed, lambda _: {"move": coin.choice((-1, 1))})[-1].metrics["success"]
            for seed in range(300)
        ]

    assert 0.15 < np.mean(successes) < 0.4


@pytest.mark.parametrize("move", [0, 2, "left", True, 1.0])
def test_a_move_other_than_one_cell_is_refused_and_changes_nothing(move):
    with ew.make("lineworld-v0") as env:
        before = env.reset(seed=0).observation

        with pytest.raises(ew.errors.ActionError, match=r"action\.move: .* is not one of -1, 1"):
            env.step({"move": move})

        assert env.step({"move": 1}).observation.position > before.position


def test_a_vector_shows_numpy_columns():
    with ew.make_vector("lineworld-v0", num_envs=3, autoreset=True) as venv:
        current = venv.reset(seed=0).current

    assert {name: column.dtype.kind for name, column in current.items()} == {
        "position": "f",
        "goal": "i",
    }
    assert all(column.shape == (3,) for column in current.values())


def test_the_state_has_the_positions_and_the_step_count():
    with ew.make("lineworld-v0", size=9) as env:
        goal = env.reset(seed=0).observation.goal
        before = env.state()
        env.step({"move": 1})
        after = env.state()

    assert before.goal_place == (0 if goal == -1 else 8)
    assert (after.place, after.step_count) == (before.place + 1, 1)


@pytest.mark.parametrize("size", [3, 4, 15, 40])
def test_observations_fit_their_spec_at_any_size(size):
    with ew.make("lineworld-v0", size=size) as env:
        for seed in range(10):
            for result in walk(env, seed, towards_the_goal):
                assert env.observation_spec.contains(result.observation)


@pytest.mark.parametrize("wrong", [{"size": 2}, {"max_steps": 0}])
def test_a_line_that_is_too_short_is_refused_by_name(wrong):
    with pytest.raises(ew.errors.OptionError, match=next(iter(wrong))):
        ew.make("lineworld-v0", **wrong)

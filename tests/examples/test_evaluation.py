from __future__ import annotations

import envweave as ew
from envweave.examples.training import evaluate


def test_evaluation_counts_whole_episodes_and_each_seed_once():
    with ew.make_vector("lineworld-v0", num_envs=3, autoreset=True) as venv:
        best = evaluate(venv, lambda current: current["goal"], episodes=7)
        worst = evaluate(venv, lambda current: -current["goal"], episodes=7)

    assert (best.success, worst.success, best.episodes) == (1.0, 0.0, 7)
    assert worst.mean_return < -1 < 0.8 < best.mean_return


def test_evaluation_does_not_depend_on_how_many_environments_are_stepped_together():
    reached = []
    for num_envs in (1, 4):
        with ew.make_vector("lineworld-v0", num_envs=num_envs, autoreset=True) as venv:
            reached.append(evaluate(venv, lambda current: current["goal"], episodes=6))

    assert reached[0] == reached[1]

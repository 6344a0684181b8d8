from __future__ import annotations

import numpy as np
import pytest

from envweave.examples.train_lineworld_pg import ActorCritic, Network, TrajectoryBatch


def rollout_of_one_step(*, reward, bootstrap, done, valid):
    """A step of every kind from the same place, which chose 0."""
    rows = len(reward)
    return TrajectoryBatch(
        seen=[np.ones((rows, 1))],
        chosen=[np.zeros(rows, np.int64)],
        reward=[np.array(reward, np.float64)],
        successor=[np.zeros((rows, 1))],
        bootstrap=[np.array(bootstrap)],
        done=[np.array(done)],
        valid=[np.array(valid)],
    )


def test_a_network_learns_what_no_straight_line_fits():
    rng = np.random.default_rng(0)
    network = Network(2, 8, 1, rng)
    inputs = rng.normal(size=(32, 2))
    wanted = (inputs[:, :1] * inputs[:, 1:]) + 0.5
    first = float(((network(inputs) - wanted) ** 2).mean())

    for _ in range(1500):
        network.descend(inputs, 2 * (network(inputs) - wanted) / len(inputs), 0.02)

    assert float(((network(inputs) - wanted) ** 2).mean()) < first / 50


def test_a_choice_that_earns_more_becomes_likelier():
    rng = np.random.default_rng(0)
    learner = ActorCritic(1, 2, rng, learning_rate=0.05, gamma=0.9)
    here = np.ones((2, 1))
    before = learner.probabilities(here)[0, 0]

    for _ in range(20):
        learner.update(
            TrajectoryBatch(
                seen=[here],
                chosen=[np.array([0, 1])],
                reward=[np.array([1.0, 0.0])],
                successor=[here],
                bootstrap=[np.array([False, False])],
                done=[np.array([True, True])],
                valid=[np.array([True, True])],
            )
        )

    assert before == pytest.approx(0.5)
    assert learner.probabilities(here)[0, 0] > 0.7


def test_invalid_steps_and_their_nan_do_not_affect_training():
    learner = ActorCritic(1, 2, np.random.default_rng(0), learning_rate=0.05, gamma=0.9)

    update = learner.update(
        rollout_of_one_step(
            reward=[1.0, np.nan],
            bootstrap=[False, False],
            done=[True, True],
            valid=[True, False],
        )
    )

    assert update.value_error == pytest.approx(1.0)
    assert np.isfinite(learner.probabilities(np.ones((1, 1)))).all()


def test_values_bootstrap_at_truncation_and_not_at_termination():
    """One place, reward 1, γ = 0.9: 10 if only limits end it, 1 if the task ends every step."""
    learnt = {}
    for name, bootstrap in (("truncated", True), ("terminated", False)):
        learner = ActorCritic(1, 2, np.random.default_rng(0), learning_rate=0.05, gamma=0.9)
        here = np.ones((1, 1))
        for _ in range(700):
            rollout = rollout_of_one_step(
                reward=[1.0], bootstrap=[bootstrap], done=[True], valid=[True]
            )
            rollout.successor = [here]
            learner.update(rollout)
        learnt[name] = float(learner.value(here)[0])

    assert learnt["truncated"] == pytest.approx(10, abs=0.2)
    assert learnt["terminated"] == pytest.approx(1, abs=0.05)

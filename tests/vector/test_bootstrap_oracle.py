"""Values learnt through `current`, `successor` and `bootstrap` are the true ones.

Reward 1 a step for ever, cut after ten steps by a limit; γ = 0.9, so every state is worth
1 / (1 − γ) = 10. The state after a reset is worth something else, so a learner that takes
the next episode's first observation for the successor is found out as well. A learner that
merges the two flags into `done` believes that the tenth step is followed by nothing, and
learns 1 + 0.9 + … + 0.9⁹ = 6.51 for the first state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import envweave as ew

GAMMA = 0.9
LIMIT = 10


class Endless(ew.Environment):
    """A walk along states 1, 2, 3, … with reward 1 a step; state 0 stands only at the start."""

    def reset(self, *, seed: int | None = None) -> Any:
        self.at = 0
        return self.at, {}

    def step(self, action: int) -> Any:
        self.at += 1
        return self.at, 1.0, False, False, {}


WAYS: list[dict[str, Any]] = [
    {"mode": "serial"},
    {"mode": "threads"},
    {"mode": "async"},
    {"backend": "process"},
    {"backend": "process", "workers": 2},
]


def learn(*, merged: bool, sweeps: int = 4000, **way: Any) -> np.ndarray[Any, Any]:
    venv = ew.make_vector(Endless, num_envs=8, autoreset=True, max_episode_steps=LIMIT, **way)
    values = np.zeros(LIMIT + 1)
    values[LIMIT] = 1 / (1 - GAMMA)  # not learned beyond the limit; the true value
    if merged:
        values[LIMIT] = 0.0
    batch: Any = venv.reset(seed=0)
    for _ in range(sweeps):
        seen = batch.current
        batch = venv.step(np.zeros(8, int))
        carries_on = ~batch.done if merged else batch.bootstrap
        target = batch.reward + GAMMA * carries_on * values[batch.successor]
        np.add.at(values, seen, 0.1 * (target - values[seen]) / 8)
    venv.close()
    return values


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_values_learned_with_bootstrap_are_correct(way: dict[str, Any]) -> None:
    values = learn(merged=False, **way)

    assert values[:LIMIT] == pytest.approx(np.full(LIMIT, 10.0), abs=0.05)


def test_merging_the_flags_gives_the_wrong_value() -> None:
    values = learn(merged=True)

    assert values[0] == pytest.approx(6.51, abs=0.05)


def test_a_truncated_row_bootstraps_from_the_final_observation() -> None:
    venv = ew.make_vector(Endless, num_envs=1, autoreset=True, max_episode_steps=LIMIT)
    venv.reset()
    for _ in range(LIMIT):
        batch = venv.step([0])

    assert (batch.truncated[0], batch.terminated[0], batch.bootstrap[0]) == (True, False, True)
    assert (batch.successor[0], batch.current[0]) == (LIMIT, 0)

"""By turns, `settled`, `earned`, `successor` and `bootstrap` lead to values that are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import envweave as ew

GAMMA = 0.5
AGENTS = ("left", "right")


class Rounds(ew.MultiAgentEnvironment):
    """Two agents by turns. Entering costs 5; after that each of an agent's turns earns it 1.

    Half of it comes at once and half when the other has moved, for ever: a turn is worth
    1 + GAMMA + GAMMA² + … = 2. Episodes are cut off by a limit of steps.
    """

    possible_agents = AGENTS

    def reset(self) -> Any:
        self.turns = dict.fromkeys(AGENTS, 0)
        self.mover = 0
        return {agent: np.zeros(1) for agent in AGENTS}, {}

    def to_act(self) -> list[str]:
        return [AGENTS[self.mover]]

    def step(self, actions: dict[str, int]) -> Any:
        (agent,) = actions
        other = AGENTS[1 - self.mover]
        self.turns[agent] += 1
        self.mover = 1 - self.mover
        earned = {agent: -5.5 if self.turns[agent] == 1 else 0.5, other: 0.5}
        shown = {one: np.array([float(self.turns[one] > 0)]) for one in AGENTS}
        return shown, earned, {}, {}, {}


@pytest.mark.parametrize("mode", ["serial", "threads", "async"])
def test_values_learned_from_settled_turns_are_correct(mode: str) -> None:
    values = np.zeros((2, 2))  # by agent, and by whether it has entered
    with ew.make_vector(Rounds, num_envs=3, autoreset=True, max_episode_steps=7, mode=mode) as venv:
        batch: Any = venv.reset()
        acted_on = np.zeros((3, 2), int)
        for _ in range(200):
            seen = np.stack(list(batch.current.values()), axis=1)[..., 0].astype(int)
            moving = batch.to_act
            acted_on[moving] = seen[moving]
            batch = venv.step(np.zeros((3, 2), int))
            after = np.stack(list(batch.successor.values()), axis=1)[..., 0].astype(int)
            target = batch.earned + GAMMA * batch.bootstrap * values[[0, 1], after]
            # The limit cuts off what the last mover's turn earns when the other has moved.
            cut = batch.done[:, None] & moving
            for i, slot in np.argwhere(batch.settled & ~cut):
                place = acted_on[i, slot]
                values[slot, place] += 0.3 * (target[i, slot] - values[slot, place])

    assert np.allclose(values[:, 1], 2.0, atol=1e-3)
    assert np.allclose(values[:, 0], -5.0 + GAMMA * 2.0, atol=1e-3)

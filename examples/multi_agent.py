"""Two agents play tic-tac-toe by turns: `result.needs` says who acts, and what is legal."""

import numpy as np

import envweave as ew

rng = np.random.default_rng(1)


def random_player(need):
    return {"cell": int(rng.choice(np.flatnonzero(need.action_mask)))}


def first_free_cell(need):
    return {"cell": int(np.flatnonzero(need.action_mask)[0])}


players = {"x": random_player, "o": first_free_cell}
wins = {"x": 0, "o": 0, "draw": 0}
with ew.make("tictactoe-v0") as env:
    for _ in range(100):
        result = env.reset()
        while not result.done:
            needs = result.needs  # one agent by turns; in other games several at once
            result = env.step({need.agent_id: players[need.agent_id](need) for need in needs})
        winners = [agent for agent, reward in result.reward.items() if reward > 0]
        wins[winners[0] if winners else "draw"] += 1

    for row in result.observation["x"].board:
        print(" ".join({1: "x", -1: "o", 0: "."}[int(cell)] for cell in row))
print(wins)

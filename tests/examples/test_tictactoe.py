from __future__ import annotations

import numpy as np
import pytest

import envweave as ew

X_WINS = [0, 3, 1, 4, 2]
O_WINS = [0, 3, 1, 4, 8, 5]
DRAW = [0, 1, 2, 4, 3, 5, 7, 6, 8]


@pytest.fixture
def env():
    with ew.make("tictactoe-v0") as made:
        yield made


def play(env, cells):
    """Let the players take these cells by turns, and return all results."""
    results = [env.reset(seed=0)]
    for cell in cells:
        (need,) = results[-1].needs
        results.append(env.step({need.agent_id: {"cell": cell}}))
    return results


def carried(results):
    """What the requests of an episode carried to each agent."""
    totals = {"x": 0.0, "o": 0.0}
    for result in results:
        for need in result.needs:
            totals[need.agent_id] += need.reward or 0.0
    for agent, reward in results[-1].end.rewards.items():
        totals[agent] += reward or 0.0
    return totals


def test_requests_name_exactly_the_player_to_move(env):
    results = play(env, DRAW)

    asked = [[need.agent_id for need in result.needs] for result in results]
    assert asked == [["x"], ["o"]] * 4 + [["x"], []]


def test_the_other_player_is_refused_and_the_game_continues(env):
    env.reset(seed=0)

    with pytest.raises(ew.errors.ActionError, match=r"not this agent's turn.*'x'"):
        env.step({"o": {"cell": 0}})

    assert not env.step({"x": {"cell": 0}}).done


@pytest.mark.parametrize(
    ("cells", "rewards"),
    [(X_WINS, {"x": 1, "o": -1}), (O_WINS, {"x": -1, "o": 1}), (DRAW, {"x": 0, "o": 0})],
)
def test_the_rewards_that_requests_carry_sum_to_what_each_player_earned(env, cells, rewards):
    results = play(env, cells)

    earned = {a: sum(result.reward[a] for result in results[1:]) for a in ("x", "o")}
    assert results[-1].end.reason == "terminated"
    assert earned == carried(results) == rewards


@pytest.mark.parametrize(
    "line",
    [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)],
)
def test_every_line_of_three_wins(env, line):
    spare = [cell for cell in range(9) if cell not in line]

    last = play(env, [line[0], spare[0], line[1], spare[2], line[2]])[-1]

    assert last.done
    assert last.reward == {"x": 1.0, "o": -1.0}
    assert last.info["x"]["metrics"] == {"won": 1.0, "illegal": 0.0}


def test_a_line_completed_with_the_last_free_cell_is_not_a_draw(env):
    last = play(env, [0, 1, 2, 3, 4, 5, 7, 6, 8])[-1]

    assert last.reward == {"x": 1.0, "o": -1.0}


def test_taking_a_taken_cell_loses_and_is_blamed_on_the_agent(env):
    last = play(env, [4, 4])[-1]

    assert last.reward == {"x": 1.0, "o": -1.0}
    assert (last.end.reason, last.end.blame) == ("terminated", "agent")
    assert last.end.cause == "'o' chose cell 4, which is occupied"
    assert last.valid
    assert last.info["o"]["metrics"] == {"won": 0.0, "illegal": 1.0}


@pytest.mark.parametrize("cell", [9, -1, "x", None, 1.5])
def test_an_invalid_cell_is_refused_by_name_and_the_game_continues(env, cell):
    env.reset(seed=0)

    with pytest.raises(ew.errors.ActionError, match=r"action\['x'\]\.cell"):
        env.step({"x": {"cell": cell}})

    assert not env.step({"x": {"cell": 0}}).done


def test_the_mask_allows_the_free_cells_to_the_player_to_move_only(env):
    result = play(env, [4, 0])[-1]

    (need,) = result.needs
    assert need.action_mask.dtype == np.int8
    assert need.action_mask.tolist() == [0, 1, 1, 1, 0, 1, 1, 1, 1]
    assert not result.info["o"]["action_mask"].any()


def test_both_players_see_one_board_and_know_their_own_mark(env):
    seen = play(env, [4, 0])[-1].observation

    expected = [[-1, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert seen["x"].board.tolist() == seen["o"].board.tolist() == expected
    assert (seen["x"].mark, seen["o"].mark) == (1, -1)
    assert all(env.observation_spec["x"].contains(one) for one in seen.values())


def test_a_board_that_was_shown_does_not_change_later(env):
    results = play(env, [4, 0])

    assert not results[0].observation["x"].board.any()


def test_playing_by_the_mask_never_breaks_a_rule(env):
    rng = np.random.default_rng(0)

    for seed in range(30):
        result = env.reset(seed=seed)
        while not result.done:
            (need,) = result.needs
            cell = int(rng.choice(np.flatnonzero(need.action_mask)))
            result = env.step({need.agent_id: {"cell": cell}})

        assert result.end.blame is None
        assert sum(result.reward.values()) == 0

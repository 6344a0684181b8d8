from __future__ import annotations

import pytest

import envweave as ew
from envweave.examples.train_selfplay_tictactoe import (
    ActionValues,
    SelfPlayConfig,
    main,
    minimax,
    train,
    turned,
)
from envweave.examples.training import RunHistory, read_run_log

EMPTY = (0,) * 9
PNG = b"\x89PNG\r\n\x1a\n"


def without_time(log):
    return [{key: value for key, value in line.items() if key != "time_s"} for line in log]


def test_minimax_draws_the_empty_board_and_wins_where_it_can():
    assert minimax(EMPTY)[0] == 0
    assert minimax((1, 1, 0, -1, -1, 0, 0, 0, 0)) == (1, (2,))
    assert minimax((-1, -1, 0, 0, 1, 0, 0, 0, 0))[1] == (2,)


def test_a_board_in_any_position_is_one_board_to_an_agent():
    agent = ActionValues()
    agent.learn((1, 0, 0, 0, -1, 0, 0, 0, 0), 8, target=1.0, step=1.0)

    assert turned((1, 0, 0, 0, -1, 0, 0, 0, 0))[0] == turned((0, 0, 0, 0, -1, 0, 0, 0, 1))[0]
    assert agent.best((0, 0, 0, 0, -1, 0, 0, 0, 1)) == 0
    assert agent.best((0, 0, 1, 0, -1, 0, 0, 0, 0)) == 6


@pytest.mark.slow  # trains
@pytest.mark.timeout(500)
def test_the_agents_learn_to_hold_a_perfect_player_and_with_the_sign_flipped_to_lose(tmp_path):
    reached = {}
    for sign in (1, -1):
        config = SelfPlayConfig(
            episodes=6_000,
            reward_sign=sign,
            evaluation_episodes=50,
            checkpoint_every=1_000,
            run_dir=tmp_path / f"run{sign}",
        )
        reached[sign] = RunHistory.read(train(config)).evaluations

    assert reached[1]["random"]["success"] < 0.25
    assert reached[1]["trained"]["success"] > 0.45
    assert reached[-1]["trained"]["success"] < 0.1
    against = reached[1]["trained"]["against"]["random"]
    assert against["won"] > 0.6
    assert against["lost"] < 0.15


@pytest.mark.slow  # trains
def test_a_resumed_run_has_the_log_of_one_that_was_never_interrupted(tmp_path):
    tiny = {"num_envs": 8, "evaluation_episodes": 8, "checkpoint_every": 2, "episodes": 48}
    whole = train(SelfPlayConfig(**tiny, run_dir=tmp_path / "whole"))
    parts = tmp_path / "parts"

    def stop(finished, *_):
        if finished >= 24:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(SelfPlayConfig(**tiny, run_dir=parts), stop)
    train(SelfPlayConfig(**tiny, run_dir=parts, resume=True))

    assert without_time(read_run_log(parts)) == without_time(read_run_log(whole))


@pytest.mark.slow  # trains
def test_the_command_writes_the_log_and_the_picture(tmp_path, capsys):
    options = ["--num-envs", "8", "--episodes", "32", "--evaluation-episodes", "8"]

    code = main([*options, "--checkpoint-every", "2", "--run-dir", str(tmp_path / "run")])

    assert code == 0
    assert (tmp_path / "run/metrics.png").read_bytes().startswith(PNG)
    assert "trained policy" in capsys.readouterr().out


def test_with_record_every_game_is_in_the_directory_of_the_run(tmp_path):
    config = SelfPlayConfig(
        num_envs=4, episodes=8, evaluation_episodes=4, record=True, run_dir=tmp_path / "run"
    )

    run_dir = train(config)

    games = ew.load(run_dir)
    finished = [one for one in games.summaries if one.end.reason == "terminated"]
    assert len(finished) >= 8
    assert games.runs[0].env_id == "tictactoe-v0"

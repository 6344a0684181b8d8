"""What runs in the environment of tests/venvs/families.txt: every family, by released packages."""

from __future__ import annotations

import pickle
import random
import socket
import sys

import numpy as np
import pytest

import envweave as ew
from envweave.adapters.openspiel import GameMove
from envweave.adapters.reasoning_gym import ReasoningAction
from envweave.errors import (
    ActionError,
    EnvNotFoundError,
    MissingExtraError,
    OptionError,
    StartupError,
    TaskError,
)
from envweave.testing import RandomPolicy, audit_environment, check_environment

IDS = [
    "rg://chain_sum",
    "textarena://TicTacToe-v0",
    "textarena://GuessTheNumber-v0",
    "openspiel://kuhn_poker",
    "openspiel://goofspiel",
    "openspiel://2048",
    "gym://MiniGrid-Empty-5x5-v0",
]


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Some games look for word lists in the network; here nothing leaves the machine."""
    real = socket.socket.connect

    def connect(self, address):
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "localhost"):
            raise OSError("no network in tests")
        return real(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)


@pytest.mark.parametrize("env_id", IDS)
def test_a_family_keeps_every_promise(env_id):
    outcomes = check_environment(env_id, max_steps=300)

    assert [one for one in outcomes if not one.ok] == []


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("backend", ["inproc", "process"])
def test_a_vector_of_64_plays_the_same_on_both_backends(env_id, backend):
    found = play_vector(env_id, backend)

    with ew.make(env_id) as env:
        choose = RandomPolicy(env.action_spec, 5)
        result = env.reset(seed=105)
        assert repr(result.observation) == found[0]
        result = env.step(choose(result))
        assert result.step_index == 1


def play_vector(env_id, backend):
    with ew.make_vector(env_id, num_envs=64, backend=backend, autoreset=True) as venv:
        batch = venv.reset(seed=100)
        shown = [repr(batch[5].observation)]
        policies = [RandomPolicy(venv.action_spec, i) for i in range(64)]
        results = [batch[i] for i in range(64)]
        ended = 0
        for _ in range(5):
            batch = venv.step([policies[i](results[i]) for i in range(64)])
            assert batch.valid.all()
            results = [batch[i] for i in range(64)]
            ended += int(batch.done.sum())
    if "MiniGrid" not in env_id and "2048" not in env_id and "goofspiel" not in env_id:
        assert ended
    return shown


@pytest.mark.parametrize("env_id", IDS)
def test_a_served_family_plays_as_at_home(env_id):
    episodes = []
    for backend in ("inproc", "http"):
        with ew.make(env_id, backend=backend) as env:
            choose = RandomPolicy(env.action_spec, 3)
            result = env.reset(seed=8)
            rewards = []
            for _ in range(4):
                if result.done:
                    break
                result = env.step(choose(result))
                rewards.append(result.reward)
            episodes.append((rewards, result.done, result.task_id))

    assert episodes[0] == episodes[1]


# reasoning-gym


def test_the_answer_of_a_question_is_private_on_every_way_out():
    with ew.make("rg://chain_sum", backend="http") as env:
        result = env.reset(seed=4)
        task = env.tasks.get(result.task_id)
        with pytest.raises(TaskError):
            task.private["answer"]
        answer = ew.make("rg://chain_sum")
        shown = [repr(result.observation), repr(env.state()), repr(task), str(task.data)]
        result = env.step({"text": "no idea"})
        shown += [repr(result.observation), repr(result.info)]
        answer.close()
    own = private_task("rg://chain_sum", result.task_id)
    right = own.private["answer"]
    assert all(f" {right}" not in text and f"'{right}'" not in text for text in shown)


def private_task(env_id, task_id, **keywords):
    from envweave.registry import build

    return build(ew.spec(env_id), keywords).tasks.get(task_id)


def test_a_question_is_that_of_the_library_for_its_seed_and_index():
    import reasoning_gym

    with ew.make("rg://leg_counting", seed=7) as env:
        task = env.tasks.at("test", 3)
        shown = env.reset(task=task).observation.prompt
    data = task.data
    entry = reasoning_gym.create_dataset("leg_counting", seed=data["seed"], size=10)[data["index"]]

    assert shown.startswith(entry["question"])
    assert private_task("rg://leg_counting", task.id, seed=7).private["answer"] == entry["answer"]


def test_no_question_is_in_both_splits():
    with ew.make("rg://coin_flip") as env:
        questions = {
            split: {env.reset(task=env.tasks.at(split, i)).observation.prompt for i in range(60)}
            for split in ("train", "test")
        }

    assert questions["train"].isdisjoint(questions["test"])


def test_partial_scores_are_those_of_the_dataset_and_the_solution_earns_1():
    import reasoning_gym

    dataset = reasoning_gym.create_dataset("spell_backward", seed=0)
    with ew.make("rg://spell_backward") as env:
        task = private_task("rg://spell_backward", "train-0")
        entry = task.private["entry"].values
        for text in ("", "xyz", entry["answer"], f"thinking <answer>{entry['answer']}</answer>"):
            env.reset(task="train-0")
            graded = env.step(ReasoningAction(text)).reward
            given = entry["answer"] if "answer>" in text else text
            assert graded == pytest.approx(dataset.score_answer(given, entry))


def test_text_that_breaks_a_scorer_earns_nothing_and_says_so():
    with ew.make("rg://prime_factorization") as env:
        env.reset(seed=0)
        result = env.step({"text": "I don't know"})

    assert result.reward == 0.0
    assert result.end.valid
    assert "ValueError" in result.info["scorer_error"]


def test_levels_of_a_curriculum_are_splits_and_keywords():
    with ew.make("rg://chain_sum", curriculum=True) as env:
        last = env.tasks.splits[-1]
        assert last.startswith("test-level")
        easy = env.reset(task="train-level0-3").observation.prompt
        hard = env.reset(task=env.tasks.at(last.replace("test", "train"), 3)).observation.prompt
    with ew.make("rg://chain_sum", difficulty=0) as env:
        assert env.reset(task="train-3").observation.prompt == easy

    assert len(hard) > len(easy)


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"difficulty": 99}, "has the levels 0 to"),
        ({"min_term": 2}, "Did you mean 'min_terms'"),
        ({"min_terms": 0}, "min_terms must be positive"),
        ({"seed": -1}, "seed must be an integer"),
    ],
)
def test_wrong_settings_of_a_dataset_are_refused(keywords, said):
    with pytest.raises(OptionError, match=said):
        ew.make("rg://chain_sum", **keywords)


def test_a_composite_dataset_takes_its_parts_by_name():
    parts = ["chain_sum", {"name": "leg_counting", "weight": 2}]
    with ew.make("rg://composite", datasets=parts) as env:
        prompts = [env.reset(task=env.tasks.at("train", i)).observation.prompt for i in range(20)]

    assert len({prompt.split()[0] for prompt in prompts}) > 1


def test_datasets_that_hold_a_list_are_endless_too():
    with ew.make("rg://list_functions") as env:
        one = env.tasks.at("train", 10_000)
        assert env.reset(task=one).observation.prompt == env.reset(task=one).observation.prompt


# TextArena


def test_games_neither_share_nor_disturb_random_numbers():
    def play(between):
        random.seed(1)
        with (
            ew.make("textarena://GuessTheNumber-v0") as env,
            ew.make("textarena://GuessTheNumber-v0") as other,
        ):
            env.reset(seed=5)
            before = random.getstate()
            if between:
                other.reset(seed=9)
                other.step({"text": "[3]"})
                assert random.getstate() == before
            return [env.step({"text": f"[{guess}]"}).observation.prompt for guess in (10, 5)]

    assert play(between=False) == play(between=True)


def test_players_see_what_is_new_or_the_whole_conversation():
    shown = {}
    for observation in ("new", "full"):
        with ew.make("textarena://TicTacToe-v0", observation=observation) as env:
            env.reset(seed=0)
            env.step({"player_0": {"text": "[4]"}})
            result = env.step({"player_1": {"text": "[0]"}})
            (need,) = result.needs
            assert need.agent_id == "player_0"
            shown[observation] = need.observation.prompt
    assert "You are Player 0" in shown["full"]
    assert "You are Player 0" not in shown["new"]
    assert len(shown["new"]) < len(shown["full"])


def test_a_won_game_pays_at_its_end_and_an_invalid_move_is_the_games_matter():
    with ew.make("textarena://TicTacToe-v0") as env:
        env.reset(seed=0)
        for cell, player in ((0, 0), (3, 1), (1, 0), (4, 1), (2, 0)):
            result = env.step({f"player_{player}": {"text": f"[{cell}]"}})
        assert result.reward == {"player_0": 1.0, "player_1": -1.0}

        env.reset(seed=0)
        again = env.step({"player_0": {"text": "nonsense"}})
        assert [need.agent_id for need in again.needs] == ["player_0"]
        lost = env.step({"player_0": {"text": "nonsense"}})
        assert lost.reward == {"player_0": -1.0, "player_1": 1.0}
        assert lost.info["player_0"]["metrics"]["invalid_move"] == 1.0


def test_what_a_game_lacks_is_named():
    with pytest.raises(MissingExtraError, match=r"nltk\.downloader words"):
        ew.make("textarena://Wordle-v0")
    with pytest.raises(OptionError, match="num_players=3"):
        ew.make("textarena://TicTacToe-v0", num_players=3)
    with pytest.raises(EnvNotFoundError, match="textarena://TicTacToe-v0"):
        ew.make("textarena://TicTacToe-v00")
    if sys.version_info < (3, 12):
        with pytest.raises(StartupError, match="newer Python"):
            ew.make("textarena://Chess-v0")


# OpenSpiel


def test_legal_actions_are_masks_and_others_are_refused_without_harm():
    with ew.make("openspiel://tic_tac_toe") as env:
        env.reset(seed=0)
        result = env.step({"player_0": 4})
        (need,) = result.needs
        assert need.action_mask.tolist() == [1, 1, 1, 1, 0, 1, 1, 1, 1]
        with pytest.raises(ActionError, match="not a legal action"):
            env.step({"player_1": 4})
        assert env.step({"player_1": 0}).step_index == 2


def test_players_act_at_once_where_the_game_has_it():
    with ew.make("openspiel://matrix_rps") as env:
        result = env.reset(seed=0)
        assert [need.agent_id for need in result.needs] == ["player_0", "player_1"]
        result = env.step({"player_0": 0, "player_1": 2})

    assert result.done
    assert result.reward == {"player_0": 1.0, "player_1": -1.0}


def test_chance_is_drawn_by_the_seed():
    deals = []
    for seed in range(12):
        with ew.make("openspiel://kuhn_poker") as env:
            deals.append(env.reset(seed=seed).observation["player_0"].tolist())
            assert env.reset(seed=seed).observation["player_0"].tolist() == deals[-1]

    assert len({tuple(deal) for deal in deals}) == 3


def test_a_game_is_played_as_text():
    with ew.make("openspiel://kuhn_poker(players=3)", form="text") as env:
        assert env.possible_agents == ("player_0", "player_1", "player_2")
        (need,) = env.reset(seed=0).needs
        assert need.observation.prompt.endswith("Legal moves: Pass, Bet")
        with pytest.raises(ActionError, match="Did you mean 'Bet'"):
            env.step({need.agent_id: GameMove("Bett")})
        assert not env.step({need.agent_id: GameMove("Bet")}).done


def test_a_snapshot_continues_a_game_in_another_environment():
    from envweave.adapters.openspiel import from_openspiel, load_game

    def play_on(env, rng):
        earned = []
        while True:
            (player,) = env.to_act()
            mask = env._running.see(int(player[-1]))[1]["action_mask"]
            _, rewards, over, _, _ = env.step({player: int(rng.choice(np.flatnonzero(mask)))})
            earned.append(rewards)
            if all(over.values()):
                return earned

    first = from_openspiel(load_game("leduc_poker", {}))
    first.reset(seed=3)
    first.step({"player_0": 1})
    kept = pickle.loads(pickle.dumps(first.snapshot()))
    second = from_openspiel(load_game("leduc_poker", {}))
    second.restore(kept)

    assert second.state == first.state
    assert play_on(first, np.random.default_rng(0)) == play_on(second, np.random.default_rng(0))
    with pytest.raises(OptionError, match="this environment plays kuhn_poker"):
        from_openspiel(load_game("kuhn_poker", {})).restore(kept)


@pytest.mark.parametrize(
    ("env_id", "keywords", "error", "said"),
    [
        ("openspiel://kuhn_pokr", {}, EnvNotFoundError, "openspiel://kuhn_poker"),
        ("openspiel://kuhn_poker", {"player": 3}, OptionError, "Did you mean 'players'"),
        ("openspiel://kuhn_poker", {"players": 99}, OptionError, "cannot be loaded"),
        ("openspiel://kuhn_poker", {"form": "picture"}, OptionError, "form must be"),
        ("openspiel://tic_tac_toe", {"view": "information_state"}, None, ""),
        ("openspiel://coin_game", {"form": "tensor"}, OptionError, "It has: "),
        ("openspiel://mfg_crowd_modelling", {}, OptionError, "mean-field"),
    ],
)
def test_wrong_games_and_parameters_are_refused(env_id, keywords, error, said):
    if error is None:
        ew.make(env_id, **keywords).close()
        return
    with pytest.raises(error, match=said):
        ew.make(env_id, **keywords)


# MiniGrid


def test_minigrid_is_found_by_its_own_id_and_shows_a_mission():
    with ew.make("gym://MiniGrid-Empty-5x5-v0") as env:
        seen = env.reset(seed=0).observation
        assert seen["mission"] == "get to the green goal square"
        assert seen["image"].shape == (7, 7, 3)
        schema = env.observation_spec.json_schema()
        assert schema["properties"]["mission"]["type"] == "string"
        for action in (2, 2, 1, 2, 2):
            result = env.step(action)

    assert result.terminated
    assert result.reward == pytest.approx(0.955)


def test_a_misspelled_minigrid_id_is_answered_with_the_nearest():
    with pytest.raises(EnvNotFoundError, match="gym://MiniGrid-Empty-5x5-v0"):
        ew.make("gym://MiniGrid-Emty-5x5-v0")


# What is there, and what an audit finds


def test_every_scheme_lists_what_it_offers():
    from envweave.cli.inspect_plugins import inspect_content

    counts = {one: inspect_content(one) for one in ("rg", "textarena", "openspiel", "gym")}

    assert all(one.error is None for one in counts.values())
    assert {name: len(one.ids) >= 100 for name, one in counts.items()} == dict.fromkeys(
        counts, True
    )
    assert "gym://MiniGrid-Empty-5x5-v0" in counts["gym"].ids
    for one in counts.values():
        ew.spec(one.ids[0])


def test_an_audit_finds_a_dataset_that_pays_for_any_text():
    report = audit_environment("rg://game_of_life_halting")

    verdicts = {one.check: one.status for one in report.verdicts}
    assert verdicts["solvable"] == "ok"
    assert verdicts["baseline"] == "fail"
    assert verdicts["private data"] == "ok"
    assert not report.ok

"""The package's own environments have snapshots, from which others of their kind continue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import envweave as ew
from envweave.codec import to_plain
from envweave.envs.echo_env import EchoAction
from envweave.envs.echo_env.environment import EchoEnvironment
from envweave.envs.gsm8k_env.environment import GSM8KAction, GSM8KChoiceEnv, GSM8KEnv
from envweave.envs.search_env.environment import SearchEnvironment
from envweave.examples.codefix import CodeFixAction, CodeFixEnv
from envweave.examples.counter import CounterAction, CounterEnv
from envweave.examples.harvest import HarvestAction, HarvestEnv
from envweave.examples.lineworld import LineWorldAction, LineWorldEnv
from envweave.examples.tictactoe import TicTacToeAction, TicTacToeEnv
from envweave.examples.traffic_light import TrafficLightAction, TrafficLightEnv


def harvest(*takes: int) -> dict[str, HarvestAction]:
    return {f"farmer_{i}": HarvestAction(take) for i, take in enumerate(takes)}


@dataclass
class Play:
    """Steps before a snapshot, and steps after it."""

    make: Callable[[], Any]
    before: Sequence[Any]
    after: Sequence[Any]


SEARCH = partial(SearchEnvironment, 20, 6, shuffle=True)
PLAYS = {
    "counter": Play(partial(CounterEnv, 9), [CounterAction(2)], [CounterAction(1)] * 2),
    "lineworld": Play(LineWorldEnv, [LineWorldAction(1)], [LineWorldAction(-1)] * 2),
    "tictactoe": Play(
        TicTacToeEnv,
        [{"x": TicTacToeAction(0)}],
        [{"o": TicTacToeAction(4)}, {"x": TicTacToeAction(1)}],
    ),
    "harvest": Play(partial(HarvestEnv, 2), [harvest(1, 2)], [harvest(5, 0), harvest(2, 2)]),
    "trafficlight": Play(
        TrafficLightEnv, [TrafficLightAction("go")], [TrafficLightAction("stop")] * 2
    ),
    "codefix": Play(CodeFixEnv, [], [CodeFixAction("+")]),
    "echo": Play(EchoEnvironment, [EchoAction("a")], [EchoAction("bc")]),
    "gsm8k": Play(GSM8KEnv, [], [GSM8KAction("#### 5")]),
    "gsm8k-choice": Play(GSM8KChoiceEnv, [], [GSM8KAction("A")]),
    "search": Play(SEARCH, [0, 1], [2, 3, 0]),
}


@pytest.mark.parametrize("name", list(PLAYS))
def test_an_episode_continues_from_a_snapshot_as_often_as_one_likes(name: str) -> None:
    play = PLAYS[name]
    env, other = play.make(), play.make()
    task = {} if env.tasks is None else {"task": next(env.tasks.split("train"))}
    env.reset(seed=4, **task)
    for action in play.before:
        env.step(action)
    snapshot = env.snapshot()

    seen = [shown(env, play.after)]
    for one in (other, env, other, play.make()):
        one.restore(snapshot)
        seen.append(shown(one, play.after))

    assert all(one == seen[0] for one in seen)


def shown(env: ew.Environment, actions: Sequence[Any]) -> list[Any]:
    """Take the actions; return what they show, and the state and the solution that follow."""
    solved = env.solution()
    return [solved, *(to_plain(env.step(action)) for action in actions), to_plain(env.state)]


def test_snapshots_leave_out_the_dataset() -> None:
    questions, queries = GSM8KEnv(), SEARCH()
    questions.reset(task=next(questions.tasks.split("train")))
    queries.reset(seed=1)

    assert len(questions.snapshot()) == 2
    assert all(type(one).__name__ == "Query" for one in queries.snapshot()[0])

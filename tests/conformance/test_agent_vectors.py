"""A vector of several agents plays what single environments play, on every mode and backend."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from comparison import same
from environments.multi_agent import AgentsWithPid
from servers import served

import envweave as ew
from envweave.testing import RandomPolicy

N, STEPS = 3, 40
PETTINGZOO = ["pettingzoo://classic/rps_v2", "pettingzoo://classic/tictactoe_v3"]


@pytest.fixture(params=["serial", "threads", "async", "process", "remote"])
def mode(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize("env_id", ["tictactoe-v0", "harvest-v0", *PETTINGZOO])
def test_a_vector_plays_the_episodes_of_single_environments(env_id: str, mode: str) -> None:
    if env_id in PETTINGZOO:
        pytest.importorskip("pettingzoo")
    played = play_vector(env_id, mode)

    alone = [play_alone(env_id, seed) for seed in range(N)]

    for one, other in zip(played, alone, strict=True):
        assert len(one) == len(other)
        for in_vector, by_itself in zip(one, other, strict=True):
            assert_same(in_vector, by_itself)


@pytest.mark.slow  # starts worker processes
def test_a_killed_worker_ends_its_episodes_as_lost_and_the_rest_continue() -> None:
    actions = [{"a": {}, "b": {}}] * 4
    with ew.make_vector(AgentsWithPid, num_envs=4, autoreset=True, backend="process") as venv:
        venv.reset(seed=0)
        homes = [state.pid for state in venv.state()]
        victim = next(pid for pid in homes if pid != os.getpid())
        os.kill(victim, signal.SIGKILL)

        batch: Any = venv.step(actions)
        later: Any = venv.step(actions)

    lost = [pid == victim for pid in homes]
    assert batch.done.tolist() == lost
    assert [row.end.reason for row in batch if row.end] == ["lost"] * sum(lost)
    assert batch.settled.tolist() == [[not gone] * 2 for gone in lost]
    assert batch.truncated.tolist() == [[gone] * 2 for gone in lost]
    assert batch.to_act.all()
    assert later.valid.all()


@contextmanager
def vector(env_id: str, mode: str) -> Iterator[ew.VectorEnv]:
    if mode == "remote":
        with (
            served(env_id) as url,
            ew.make_vector(
                env_id, num_envs=N, autoreset=True, backend="http", base_url=url
            ) as venv,
        ):
            yield venv
        return
    place = {"backend": "process"} if mode == "process" else {"mode": mode}
    with ew.make_vector(env_id, num_envs=N, autoreset=True, **place) as venv:
        yield venv


def play_vector(env_id: str, mode: str) -> list[list[ew.StepResult[Any]]]:
    with vector(env_id, mode) as venv:
        policies = [RandomPolicy(venv.action_spec, seed) for seed in range(N)]
        batch: Any = venv.reset(seed=0)
        played = [[row] for row in batch]
        for _ in range(STEPS):
            batch = venv.step([policy(row) for policy, row in zip(policies, batch, strict=True)])
            assert_columns(batch)
            for rows, row in zip(played, batch, strict=True):
                rows.append(row)
    return played


def play_alone(env_id: str, seed: int) -> list[ew.StepResult[Any]]:
    with ew.make(env_id, autoreset=True) as env:
        policy = RandomPolicy(env.action_spec, seed)
        result: Any = env.reset(seed=seed)
        played = [result]
        for _ in range(STEPS):
            result = env.step(policy(result))
            played.append(result)
    return played


def assert_same(one: ew.StepResult[Any], other: ew.StepResult[Any]) -> None:
    for name in ("observation", "reward", "terminated", "truncated", "info", "end", "current"):
        assert same(getattr(one, name), getattr(other, name)), name
    assert [need.agent_id for need in one.needs] == [need.agent_id for need in other.needs]


def assert_columns(batch: Any) -> None:
    """The columns say what the rows say."""
    for i, row in enumerate(batch):
        asked = [need.agent_id for need in row.needs]
        to_act = [batch.possible_agents[slot] for slot in batch.to_act[i].nonzero()[0]]
        assert sorted(asked) == sorted(to_act)
        for slot, agent in enumerate(batch.possible_agents):
            reward = row.reward.get(agent)
            assert same(batch.reward[i, slot], float("nan") if reward is None else reward)
            if agent in row.current:
                assert_cell(batch.current[agent], i, row.current[agent])
            if agent in row.observation:
                assert_cell(batch.successor[agent], i, row.observation[agent])


def assert_cell(columns: Any, i: int, seen: Any) -> None:
    if isinstance(columns, dict):
        for name, column in columns.items():
            assert_cell(column, i, seen[name] if isinstance(seen, dict) else getattr(seen, name))
    else:
        assert (columns[i] == seen).all() if hasattr(seen, "shape") else columns[i] == seen

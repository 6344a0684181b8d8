"""A vector of several agents plays the episodes of single environments, on every mode."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from comparison import same
from environments.multi_agent import Expected, RandomAgents
from hypothesis import given, settings
from hypothesis import strategies as st

import envweave as ew
from envweave.errors import ResetFailedError, ResetNeededError

AGENTS = RandomAgents.possible_agents


@pytest.mark.slow  # starts worker processes
@settings(max_examples=60, deadline=None)
@given(
    case=st.integers(0, 10_000),
    n=st.integers(1, 4),
    autoreset=st.booleans(),
    mode=st.sampled_from(["serial", "serial", "threads", "async"]),
)
def test_a_vector_plays_the_episodes_of_single_environments(
    case: int, n: int, autoreset: bool, mode: str
) -> None:
    with ew.make_vector(
        RandomAgents, num_envs=n, autoreset=autoreset, mode=mode, case=case
    ) as venv:
        play_both(venv, case, n, autoreset=autoreset)


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize("case", [1, 2, 3])
def test_worker_processes_play_the_same_episodes(case: int) -> None:
    with ew.make_vector(
        RandomAgents, num_envs=3, autoreset=True, backend="process", case=case
    ) as venv:
        play_both(venv, case, 3, autoreset=True)


def play_both(venv: Any, case: int, n: int, *, autoreset: bool) -> None:
    caller = random.Random(case)
    singles = [ew.make(lambda: RandomAgents(case), autoreset=autoreset) for _ in range(n)]
    with pytest.raises(ResetNeededError):
        venv.step([{}] * n)
    first = venv.reset(seed=case)
    rows: list[Any] = [env.reset(seed=case + i) for i, env in enumerate(singles)]
    # Single environments know no columns; from here on both refuse what does not fit them.
    for env in singles:
        env._transport.session.check_observation = venv._layout.check
    expected_rows = [Expected(AGENTS) for _ in range(n)]
    for i in range(n):
        assert same(first[i].observation, rows[i].observation)
        expected_rows[i].begin(rows[i].observation)
    assert_stands(first, range(n), rows, singles, expected_rows)

    for turn in range(25):
        idle = [i for i in range(n) if rows[i].done and rows[i].ready is None]
        for _ in range(60):
            if not idle:
                break
            with pytest.raises(ResetNeededError):
                venv.step([{}] * n)
            idle = reset_both(venv, singles, rows, expected_rows, idle)
        chosen = list(range(n)) if turn % 2 else caller.sample(range(n), caller.randint(1, n))
        actions = {i: draw(caller, rows[i]) for i in chosen}
        form = in_columns(actions) if turn % 3 else list(actions.values())
        if turn % 2:
            batch = venv.step(form)
        else:
            venv.send(form, ids=chosen)
            batch = venv.drain()
        for i in chosen:
            before = singles[i].agents
            if isinstance(actions[i], dict):
                for agent in actions[i]:
                    expected_rows[i].acts[agent] = expected_rows[i].acts.get(agent, 0) + 1
            rows[i] = singles[i].step(actions[i])
            expected_rows[i].seen = {
                a: one for a, one in expected_rows[i].seen.items() if a in before
            }
            expected_rows[i].seen.update(rows[i].observation)
        assert_moved(batch, rows, expected_rows)
        for i in chosen:
            if rows[i].ready is not None:
                expected_rows[i].begin(rows[i].current)
        assert_stands(batch, batch.ids.tolist(), rows, singles, expected_rows)


def draw(caller: random.Random, row: ew.StepResult[Any]) -> Any:
    calls = [] if row.done and row.ready is None else row.tool_calls
    if calls and not row.needs:
        return ew.ToolResult(calls[-1].call_id, caller.randint(0, 2))
    return {need.agent_id: caller.randint(0, 2) for need in row.needs}


def in_columns(actions: dict[int, Any]) -> Any:
    """The same actions as columns by agent, with nothing for agents that are not asked."""
    if any(isinstance(one, ew.ToolResult) for one in actions.values()):
        return list(actions.values())
    return {agent: [one.get(agent) for one in actions.values()] for agent in AGENTS}


def assert_moved(batch: Any, rows: list[Any], expected_rows: list[Expected]) -> None:
    ids = batch.ids.tolist()
    for k, i in enumerate(ids):
        row, expected_row = rows[i], expected_rows[i]
        assert_same_result(batch[k], row)
        for slot, agent in enumerate(AGENTS):
            assert_cell(batch.successor[agent], k, expected_row.cell(agent, expected_row.seen))
            assert same(batch.reward[k, slot], nan_for_none(row.reward.get(agent)))
            present = agent in expected_row.seen
            for name in ("terminated", "truncated"):
                assert getattr(batch, name)[k, slot] == (present and ended(row, agent, name))
            assert batch.bootstrap[k, slot] == (
                row.valid and present and not batch.terminated[k, slot]
            )
        if not row.valid:
            assert not batch.settled[k].any()
        expected_row.count(row, batch.earned[k], batch.settled[k])
    assert batch.done.tolist() == [rows[i].done for i in ids]
    assert batch.valid.tolist() == [rows[i].valid for i in ids]
    assert batch.step_index.tolist() == [rows[i].step_index for i in ids]
    assert batch.needs_reset.tolist() == [rows[i].done and rows[i].ready is None for i in ids]
    gone = ~batch.alive & ~batch.done[:, None]
    assert not (gone & batch.to_act).any()


def ended(row: ew.StepResult[Any], agent: str, name: str) -> bool:
    """Whether a step ended an agent's part: its own flag, or else its episode's end."""
    flags = {
        event.agent_id: getattr(event, name)
        for event in row.events
        if isinstance(event, ew.AgentEnd)
    }
    if row.done:
        flags = dict.fromkeys(AGENTS, (row.end.reason == "terminated") == (name == "terminated"))
    return bool((flags | getattr(row, name)).get(agent, False))


def assert_stands(
    batch: Any, ids: Any, rows: list[Any], singles: list[Any], expected_rows: list[Expected]
) -> None:
    for k, i in enumerate(ids):
        for slot, agent in enumerate(AGENTS):
            asked = {need.agent_id: need for need in rows[i].needs}
            assert batch.alive[k, slot] == (agent in singles[i].agents)
            assert batch.to_act[k, slot] == (agent in asked)
            assert_cell(
                batch.current[agent], k, expected_rows[i].cell(agent, expected_rows[i].seen)
            )
            masks = batch.action_mask[agent]
            mask = asked[agent].action_mask if agent in asked else None
            if masks is None:
                assert mask is None
            else:
                assert same(masks[k], np.ones(2, bool) if mask is None else mask.astype(bool))


def assert_cell(columns: Any, row: int, expected: Any) -> None:
    if isinstance(columns, dict):
        for name, value in expected.items():
            assert_cell(columns[name], row, value)
    else:
        held = columns[row]
        assert np.array_equal(held, expected) if isinstance(held, np.ndarray) else held == expected


def assert_same_result(one: ew.StepResult[Any], other: ew.StepResult[Any]) -> None:
    for name in ("observation", "reward", "terminated", "truncated", "info", "end"):
        assert same(getattr(one, name), getattr(other, name)), name
    assert same(one.current, other.current)
    assert [type(r) for r in one.requests] == [type(r) for r in other.requests]
    assert [(n.agent_id, n.reward) for n in one.needs] == [
        (n.agent_id, n.reward) for n in other.needs
    ]


def nan_for_none(reward: Any) -> float:
    return float("nan") if reward is None else reward


def reset_both(
    venv: Any, singles: list[Any], rows: list[Any], expected_rows: list[Expected], idle: list[int]
) -> list[int]:
    failing = []
    for i in idle:
        outcomes: list[Any] = []
        for reset in (lambda i=i: venv.reset(ids=[i]), singles[i].reset):
            try:
                outcomes.append(reset())
            except ResetFailedError as error:
                outcomes.append(error)
        if isinstance(outcomes[0], ResetFailedError):
            assert isinstance(outcomes[1], ResetFailedError)
            failing.append(i)
            continue
        rows[i] = outcomes[1]
        expected_rows[i].begin(rows[i].observation)
        assert same(outcomes[0][i].observation, rows[i].observation)
        live = [k for k in range(len(rows)) if not (rows[k].done and rows[k].ready is None)]
        assert not outcomes[0].alive[[k for k in range(len(rows)) if k not in live]].any()
        assert_stands(_Rows(outcomes[0], live), live, rows, singles, expected_rows)
    return failing


class _Rows:
    """Some rows of a batch of all environments."""

    def __init__(self, batch: Any, rows: list[int]) -> None:
        self.alive, self.to_act = batch.alive[rows], batch.to_act[rows]
        self.current = {a: _take(columns, rows) for a, columns in batch.current.items()}
        self.action_mask = {
            a: None if m is None else [m[i] for i in rows] for a, m in batch.action_mask.items()
        }


def _take(columns: Any, rows: list[int]) -> Any:
    if isinstance(columns, dict):
        return {name: _take(column, rows) for name, column in columns.items()}
    return [columns[i] for i in rows]

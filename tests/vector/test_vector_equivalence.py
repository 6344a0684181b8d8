"""A vector works by column, and plays the same episodes as single environments."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from comparison import same
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import served

import envweave as ew
from envweave.errors import ActionError, ResetFailedError, ResetNeededError, ToolCallOpenError


@dataclass
class Seen(ew.Observation):
    cells: np.ndarray
    at: int = 0
    words: list[str] = field(default_factory=list)


class RandomEnv(ew.Environment):
    """Random lengths, flags, refusals, exceptions, nonsense, odd scalars, one buffer, tools."""

    def __init__(self, case: int, form: str) -> None:
        self.case, self.form = case, form
        self.buffer = np.zeros(4, np.float32)
        self.kept: Any = None
        self.resets = 0

    def _plan(self, seed: int | None) -> None:
        """Draw what this object is like, by its first seed: a replacement's is the stream's."""
        self.plan = random.Random(f"{self.case} {seed}")
        self.in_place = self.plan.random() < 0.5
        faults = ("raise", "short", "shape", "none", "odd", "flag", "reward", "reset", "log")
        others = ("end", "tool", "parts", "refuse")
        self.p = {name: self.plan.random() ** 3 * 0.2 for name in (*faults, *others)}

    def reset(self, *, seed: int | None = None) -> Any:
        self.resets += 1
        if self.resets == 1:
            self._plan(seed)
        # The first reset of all works; that of a replacement need not.
        if seed not in range(self.case, self.case + 5) and self.plan.random() < self.p["reset"]:
            raise OSError(f"reset {self.resets}")
        self.rng, self.at = random.Random(seed), 0
        self.length = self.rng.randint(1, 12)
        self.buffer[:] = self.rng.random()
        observation = self._show()
        if self.form != "observation":
            return observation, {"n": self.length}
        observation.reward, observation.done, observation.truncated = None, False, False
        observation.metadata = {"n": self.length}
        return observation

    def step(self, action: int) -> Any:
        chance = self.plan.random
        if chance() < self.p["refuse"]:
            raise ActionError(f"not after {self.at} steps")
        self.at += 1
        self.buffer *= 0.5
        self.buffer += action
        if chance() < self.p["log"]:
            self.emit(ew.LogEvent(f"at {self.at}"))
        if chance() < self.p["raise"]:
            raise ValueError(f"step {self.at}")
        if chance() < self.p["short"]:
            return self.buffer, 1.0
        if chance() < self.p["tool"]:
            self.emit(ew.ToolCallRequest(f"call-{self.at}", "ask"))
        if chance() < self.p["end"]:
            self.emit(ew.EpisodeEnd("timeout", self.plan.choice(["agent", "environment"])))
        over, how = self.at >= self.length, self.rng.randint(0, 2)
        terminated, truncated = over and how != 1, over and how != 0
        reward: Any = None if chance() < self.p["none"] else float(action) + self.rng.random()
        info: Any = {"t": self.at} if chance() < 0.3 else {}
        if chance() < self.p["parts"]:
            info["reward_parts"] = {"a": reward}
        if chance() < self.p["odd"]:
            terminated, truncated = np.bool_(terminated), np.bool_(truncated)
            reward = None if reward is None else np.float32(reward)
        if chance() < self.p["flag"]:
            terminated = self.plan.choice(["yes", None, 2, 1, 0, np.array([1, 2])])
        if chance() < self.p["reward"]:
            reward = self.plan.choice(["1.5", b"2", 1 + 2j, True, np.float64(3), 4, [1]])
        observation = self._show()
        if chance() < self.p["shape"]:
            observation = self._odd()
        return self._return(observation, reward, terminated, truncated, info)

    def answer(self, result: ew.ToolResult) -> Any:
        return self._return(self._show(), 0.5, False, False, {"answered": result.value})

    def _show(self) -> Any:
        cells = self.buffer if self.in_place else self.buffer.copy()
        if self.form == "tuple":
            return cells
        if self.kept is None or not self.in_place:
            self.kept = Seen(self.buffer.copy(), words=["w"])
        else:
            self.kept.cells[:] = self.buffer
        self.kept.at = self.at
        return self.kept

    def _odd(self) -> Any:
        if self.form == "tuple":
            odd = [np.zeros(4), np.zeros((4, 1), np.float32), np.zeros(3, np.float32), "text", None]
            return self.plan.choice(odd)
        return Seen(np.zeros(3, np.float32))

    def _return(
        self, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any
    ) -> Any:
        if self.form == "observation" and isinstance(observation, Seen):
            observation.reward, observation.done = reward, terminated
            observation.truncated, observation.metadata = truncated, info
            return observation
        if self.form == "result":
            result = ew.StepResult(observation, reward, info=info)
            result.terminated, result.truncated = terminated, truncated
            return result
        return observation, reward, terminated, truncated, info


def assert_same(left: ew.StepResult[Any], right: ew.StepResult[Any]) -> None:
    for name in ("observation", "reward", "terminated", "truncated", "info", "step_index"):
        one, other = getattr(left, name), getattr(right, name)
        if name == "reward" and other is None:
            assert one is None or math.isnan(one)
            continue
        assert same(one, other), (name, one, other)
    assert (left.done, left.valid, left.end) == (right.done, right.valid, right.end)
    assert same(left.current, right.current)
    assert [type(r) for r in left.requests] == [type(r) for r in right.requests]
    for one, other in zip(left.needs, right.needs, strict=True):
        assert same(one.observation, other.observation)
        assert same(one.reward, other.reward)


@pytest.mark.slow  # starts worker processes
@settings(max_examples=120, deadline=None)
@given(
    case=st.integers(0, 10_000),
    n=st.integers(1, 5),
    form=st.sampled_from(["tuple", "observation", "result"]),
    autoreset=st.booleans(),
    mode=st.sampled_from(["serial", "serial", "threads", "async"]),
)
def test_a_vector_plays_the_episodes_of_single_environments(
    case: int, n: int, form: str, autoreset: bool, mode: str
) -> None:
    play(case, n, form, autoreset, mode=mode)


@pytest.mark.slow  # starts worker processes
@settings(max_examples=5, deadline=None)
@given(
    case=st.integers(0, 10_000),
    n=st.integers(2, 5),
    form=st.sampled_from(["tuple", "observation", "result"]),
    autoreset=st.booleans(),
    workers=st.sampled_from([None, 2]),
)
def test_a_vector_in_worker_processes_plays_the_same_episodes(
    case: int, n: int, form: str, autoreset: bool, workers: int | None
) -> None:
    play(case, n, form, autoreset, backend="process", workers=workers)


class WildSeen(RandomEnv):
    """The same, whose callers elsewhere can know what it shows."""

    def step(self, action: int) -> Seen:
        return super().step(action)


@pytest.mark.slow  # starts worker processes
@settings(max_examples=12, deadline=None)
@given(
    case=st.integers(0, 10_000),
    n=st.integers(1, 5),
    form=st.sampled_from(["tuple", "observation", "result"]),
    autoreset=st.booleans(),
    encoding=st.sampled_from(["msgpack", "json"]),
)
def test_a_vector_at_a_server_plays_the_same_episodes(
    case: int, n: int, form: str, autoreset: bool, encoding: str
) -> None:
    kind = RandomEnv if form == "tuple" else WildSeen
    with served(kind, case=case, form=form) as url:
        how = {"backend": "http", "base_url": url, "encoding": encoding}
        venv = ew.make_vector(kind, num_envs=n, autoreset=autoreset, **how)
        play_on(venv, case, n, form, autoreset)


def play(case: int, n: int, form: str, autoreset: bool, **options: Any) -> None:
    how = {"autoreset": autoreset, "case": case, "form": form}
    play_on(ew.make_vector(RandomEnv, num_envs=n, **options, **how), case, n, form, autoreset)


def play_on(venv: ew.VectorEnv, case: int, n: int, form: str, autoreset: bool) -> None:
    caller = random.Random(case)
    singles = [ew.make(RandomEnv, autoreset=autoreset, case=case, form=form) for _ in range(n)]
    with pytest.raises(ResetNeededError):
        venv.step([0] * n)
    first = venv.reset(seed=case)
    rows: list[Any] = [env.reset(seed=case + i) for i, env in enumerate(singles)]
    # Single environments know no columns; from here on both refuse what does not fit them.
    for env in singles:
        env._transport.session.check_observation = venv._layout.check
    for i in range(n):
        assert same(first[i].observation, rows[i].observation)
        assert first[i].info == rows[i].info
    kept: list[tuple[Any, list[Any]]] = []
    for turn in range(30):
        actions = [_action(caller, row) for row in rows]
        waiting = any(isinstance(action, ew.ToolResult) for action in actions)
        if turn % 7 == 3:
            wrong = ["x" if not isinstance(a, ew.ToolResult) else a for a in actions]
            with pytest.raises((ActionError, ToolCallOpenError)):
                venv.step(wrong if not waiting else [0] * n)
        batch = venv.step(np.array(actions) if turn % 2 and not waiting else actions)
        rows = [_step(env, action) for env, action in zip(singles, actions, strict=True)]
        for i in range(n):
            assert_same(batch[i], rows[i])
        assert batch.valid.tolist() == [row.valid for row in rows]
        assert batch.refused.tolist() == [row.refused is not None for row in rows]
        assert batch.done.tolist() == [row.done for row in rows]
        assert batch.bootstrap.tolist() == [row.valid and not row.terminated for row in rows]
        assert batch.step_index.tolist() == [row.step_index for row in rows]
        assert len(set(batch.episode_id)) == n
        kept.append((batch, [row.observation for row in rows]))
        idle = np.flatnonzero(batch.needs_reset).tolist()
        assert idle == [i for i, row in enumerate(rows) if row.done and row.ready is None]
        for _ in range(50):
            if not idle:
                break
            with pytest.raises(ResetNeededError):
                venv.step([0] * n)
            idle = _reset_both(venv, singles, rows, idle)
        assert [s.step_count for s in venv.state()] == [e.state().step_count for e in singles]
    for batch, observations in kept:  # nothing that was handed out has changed
        for i, observation in enumerate(observations):
            assert same(batch[i].observation, observation)
    venv.close()


def _step(env: ew.Env, action: Any) -> ew.StepResult[Any]:
    try:
        return env.step(action)
    except ActionError as error:
        return env._transport.session.refused(error)


def _action(caller: random.Random, row: ew.StepResult[Any]) -> Any:
    drawn = caller.randint(0, 2)
    calls = [] if row.done else row.tool_calls
    return ew.ToolResult(calls[0].call_id, drawn) if calls else drawn


def _reset_both(venv: Any, singles: list[Any], rows: list[Any], idle: list[int]) -> list[int]:
    left = []
    for i in idle:
        outcomes: list[Any] = []
        for reset in (lambda i=i: venv.reset(ids=[i])[i], singles[i].reset):
            try:
                outcomes.append(reset())
            except ResetFailedError as error:
                outcomes.append(error)
        if isinstance(outcomes[0], ResetFailedError):
            assert isinstance(outcomes[1], ResetFailedError)
            left.append(i)
        else:
            assert same(outcomes[0].observation, outcomes[1].observation)
            rows[i] = outcomes[1]
    return left

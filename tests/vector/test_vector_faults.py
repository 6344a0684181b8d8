"""A failure affects one row of a vector: it is reported, replaced, and the others continue."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import Any, ClassVar

import numpy as np
import pytest

import envweave as ew
from envweave.environment import Environment
from envweave.errors import DefinitionError, ResetFailedError, ResetNeededError
from envweave.registry import EnvSpec, MakeOptions, load_plugin
from envweave.session import episode_seed


class Frail(ew.Environment):
    """Shows its number and its step; breaks or waits at the actions below."""

    made: ClassVar[int] = 0
    closed: ClassVar[list[int]] = []
    most: ClassVar[float] = math.inf

    def __init__(self) -> None:
        if Frail.made >= self.most:
            raise OSError("out of machines")
        self.number = Frail.made
        Frail.made += 1
        self.at = 0

    def reset(self, *, seed: int | None = None) -> Any:
        self.at = 0
        return np.array([self.number, 0]), {}

    def step(self, action: int) -> Any:
        self.at += 1
        if action == RAISE:
            raise OSError("no more")
        return np.array([self.number, self.at]), 1.0, action == END, False, {}

    @property
    def state(self) -> ew.State:
        return ew.State(step_count=100 * self.number + self.at)

    def close(self) -> Any:
        Frail.closed.append(self.number)


RAISE, END, HANG, STUBBORN, ROUNDS = 1, 2, 3, 4, 5


class AsyncFrail(Frail):
    async def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)

    async def step(self, action: int) -> Any:  # type: ignore[override]
        if action == HANG:
            await asyncio.sleep(3600)
        if action == ROUNDS:
            for _ in range(20):
                await asyncio.sleep(0)
        while action == STUBBORN:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue
        return super().step(action)

    async def close(self) -> Any:
        super().close()


WAYS = [("serial", Frail), ("threads", Frail), ("threads", AsyncFrail), ("async", Frail)]
WAYS += [("async", AsyncFrail)]
ways = pytest.mark.parametrize(("mode", "kind"), WAYS)
waiting = pytest.mark.parametrize("mode", ["async", "threads"])


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Frail.made, Frail.closed, Frail.most = 0, [], math.inf


@ways
def test_with_autoreset_a_failed_row_continues_with_a_new_environment(mode: str, kind: Any) -> None:
    with ew.make_vector(kind, num_envs=3, mode=mode, autoreset=True) as venv:
        venv.reset(seed=7)
        venv.step([0, 0, 0])

        batch = venv.step([0, RAISE, 0])

        assert batch.valid.tolist() == [True, False, True]
        assert batch.successor.tolist() == [[0, 2], [1, 1], [2, 2]]
        assert batch.current.tolist() == [[0, 2], [3, 0], [2, 2]]
        ready = batch[1].ready
        assert ready.initial_info["seed"] == episode_seed(8, 1)
        assert venv.step([0, 0, 0]).successor.tolist() == [[0, 3], [3, 1], [2, 3]]
        assert [state.step_count for state in venv.state()] == [3, 301, 203]
        assert Frail.closed == [1]
    assert sorted(Frail.closed) == [0, 1, 2, 3]


@ways
def test_without_autoreset_the_reset_of_a_failed_row_makes_a_new_environment(
    mode: str, kind: Any
) -> None:
    with ew.make_vector(kind, num_envs=3, mode=mode) as venv:
        venv.reset(seed=7)
        venv.step([RAISE, 0, 0])

        began = venv.reset(ids=[0])

        assert began[0].observation.tolist() == [3, 0]
        assert began[0].info["seed"] == episode_seed(7, 1)
        assert venv.step([0, 0, 0]).successor.tolist() == [[3, 1], [1, 2], [2, 2]]


@ways
def test_each_row_has_the_episodes_of_a_vector_that_never_failed(mode: str, kind: Any) -> None:
    def starts(fault: int) -> list[Any]:
        with ew.make_vector(kind, num_envs=2, mode=mode, autoreset=True) as venv:
            first = venv.reset(seed=7)
            rounds = [[fault, END], [END, fault], [fault, fault]]
            began = [one.ready for actions in rounds for one in venv.step(actions)]
            prefixes = [episode_id.partition("-")[0] for episode_id in first.episode_id]
        return [
            (prefixes.index(prefix), k, ready.initial_info["seed"])
            for ready in began
            for prefix, _, k in [ready.episode_id.partition("-")]
        ]

    assert starts(RAISE) == starts(END)


@ways
def test_a_factory_that_fails_idles_one_row_until_a_reset_of_it_works(mode: str, kind: Any) -> None:
    with ew.make_vector(kind, num_envs=2, mode=mode, autoreset=True) as venv:
        venv.reset(seed=7)
        Frail.most = 2

        batch = venv.step([0, RAISE])

        assert batch.needs_reset.tolist() == [False, True]
        assert "out of machines" in batch[1].info["reset_error"]
        with pytest.raises(ResetNeededError, match=r"Environment 1: .*out of machines"):
            venv.step([0, 0])
        with pytest.raises(ResetFailedError, match=r"Environment 1: .*out of machines"):
            venv.reset(ids=[1])
        venv.send([0], ids=[0])
        assert venv.recv().valid.tolist() == [True]
        Frail.most = math.inf
        assert venv.reset(ids=[1])[1].info["seed"] == episode_seed(8, 3)
        assert venv.step([0, 0]).successor.tolist() == [[0, 3], [2, 1]]


@ways
def test_several_failures_in_a_row_and_at_once_are_each_replaced(mode: str, kind: Any) -> None:
    with ew.make_vector(kind, num_envs=3, mode=mode, autoreset=True) as venv:
        venv.reset()

        for _ in range(4):
            batch = venv.step([RAISE, RAISE, 0])

        assert batch.valid.tolist() == [False, False, True]
        assert batch.step_index.tolist() == [1, 1, 4]
    assert sorted(Frail.closed) == list(range(3 + 8))


@waiting
def test_a_row_past_its_deadline_ends_as_a_timeout_and_is_replaced(mode: str) -> None:
    options = {"mode": mode, "autoreset": True, "timeout_s": 0.05}
    with ew.make_vector(AsyncFrail, num_envs=3, **options) as venv:
        venv.reset(seed=7)

        batch = venv.step([0, HANG, 0])

        assert batch.valid.tolist() == [True, False, True]
        assert (batch[1].end.reason, batch[1].end.blame) == ("timeout", "environment")
        assert "timeout_s=0.05" in batch[1].end.cause
        assert batch[1].ready.initial_info["seed"] == episode_seed(8, 1)
        assert venv.step([0, 0, 0]).successor.tolist() == [[0, 2], [3, 1], [2, 2]]


@pytest.mark.slow  # waits for a deadline
@waiting
def test_code_that_ignores_its_deadline_delays_neither_step_nor_close(
    mode: str,
) -> None:
    options = {"mode": mode, "autoreset": True, "timeout_s": 0.02}
    with ew.make_vector(AsyncFrail, num_envs=2, **options) as venv:
        venv.reset()

        venv.send([STUBBORN, 0])
        first = venv.recv()
        second = venv.drain()

        assert (first.ids.tolist(), first.valid.tolist()) == ([1], [True])
        assert second[0].end.reason == "timeout"
        assert venv.step([0, 0]).valid.tolist() == [True, True]
    assert sorted(Frail.closed) == [0, 1, 2]


def test_time_between_calls_does_not_count_against_the_deadline() -> None:
    with ew.make_vector(AsyncFrail, num_envs=2, timeout_s=0.2) as venv:
        venv.reset()
        venv.send([ROUNDS, 0])
        venv.recv()

        threading.Event().wait(0.25)  # a caller's own work, longer than the deadline

        assert venv.drain().valid.tolist() == [True]


@ways
def test_a_start_up_failure_names_its_environment_once_and_closes_the_others(
    mode: str, kind: Any
) -> None:
    Frail.most = 3

    with pytest.raises(DefinitionError) as caught:
        ew.make_vector(kind, num_envs=8, mode=mode)

    message = str(caught.value)
    assert message.startswith(f"Environment 3 of 8: Making {kind.__qualname__!r} failed: OSError:")
    assert message.count("out of machines") == 1
    assert Frail.closed == [0, 1, 2]


def test_a_wrap_function_gets_each_environment_with_its_index_and_the_replacements() -> None:
    given: list[tuple[int, int]] = []

    def wrap(index: int, environment: Environment) -> Environment:
        assert isinstance(environment, Frail)
        given.append((index, environment.number))
        return ew.TimeLimit(environment, max_steps=2)

    transport = load_plugin("envweave.backends", "inproc").connect_vector(
        EnvSpec("frail", Frail), {}, MakeOptions(autoreset=True), 2, wrap=wrap
    )
    venv = ew.VectorEnv(transport, 2)
    venv.reset()
    venv.step([0, RAISE])

    batch = venv.step([0, 0])

    assert given == [(0, 0), (1, 1), (1, 2)]
    assert batch.truncated.tolist() == [True, False]
    venv.close()

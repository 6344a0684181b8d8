"""`send` and `recv`: no waiting for the slowest environment."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from processes import Leftovers
from servers import served

import envweave as ew
from envweave.errors import ActionError, BusyError, CallOrderError, OptionError, ResetNeededError
from envweave.examples import CounterAction, CounterEnv, CounterObservation
from envweave.testing import AsyncScriptedEnvironment, ScriptedEnvironment

GATES: dict[int, threading.Event] = {}


class Gated(CounterEnv):
    """Steps by a negative number wait at a gate."""

    def step(self, action: CounterAction) -> CounterObservation:
        if action.delta < 0:
            assert GATES[action.delta].wait(30)
        return super().step(CounterAction(abs(action.delta)))


class AsyncGated(ew.Environment):
    """The same with coroutines: gates are polled, since they belong to another thread."""

    def __init__(self) -> None:
        self.inner = CounterEnv()

    async def reset(self, *, seed: int | None = None) -> CounterObservation:
        return self.inner.reset(seed=seed)

    async def step(self, action: CounterAction) -> CounterObservation:
        while action.delta < 0 and not GATES[action.delta].is_set():
            await asyncio.sleep(0.001)
        return self.inner.step(CounterAction(abs(action.delta)))


@pytest.fixture(params=["threads", "async", "remote"])
def gated(request: pytest.FixtureRequest) -> Any:
    GATES.clear()
    GATES.update({-1: threading.Event(), -2: threading.Event()})
    with ExitStack() as stack:
        place: Any = AsyncGated if request.param == "async" else Gated
        how: dict[str, Any] = {"mode": request.param}
        if request.param == "remote":
            place, how = stack.enter_context(served(Gated)), {}
        venv = ew.make_vector(place, num_envs=4, autoreset=True, **how)
        venv.reset(seed=0)
        yield venv
        for gate in GATES.values():
            gate.set()
        venv.close()


def test_recv_returns_ready_rows_while_a_slow_one_is_in_flight(gated: ew.VectorEnv) -> None:
    gated.send(np.array([1, -1, 2, 1]))

    first = gated.recv(min_ready=3)
    under_way = gated.in_flight
    GATES[-1].set()
    last = gated.recv()

    assert sorted(first.ids.tolist()) == [0, 2, 3]
    assert under_way == 1
    assert last.ids.tolist() == [1]
    assert last.reward.tolist() == [1.0]


def test_fast_environments_can_be_sent_again_meanwhile(gated: ew.VectorEnv) -> None:
    gated.send(np.array([1, -1, 1, 1]))
    ready = gated.recv(min_ready=3)

    gated.send(np.ones(3, int), ids=ready.ids)
    again = gated.recv(min_ready=3)

    assert again.step_index.tolist() == [2, 2, 2]
    with pytest.raises(BusyError, match=r"\[1\] are still in flight"):
        gated.send([{"delta": 1}], ids=[1])


def test_step_and_reset_are_refused_while_rows_are_in_flight(gated: ew.VectorEnv) -> None:
    gated.send(np.array([1, -1, 1, 1]))

    with pytest.raises(BusyError, match=r"recv\(\) or drain\(\) first"):
        gated.step(np.ones(4, int))
    with pytest.raises(BusyError):
        gated.reset()
    with pytest.raises(BusyError, match="all environments are in flight"):
        gated.send(np.ones(4, int))

    GATES[-1].set()
    assert len(gated.drain()) == 4
    assert gated.step(np.ones(4, int)).valid.all()


def test_after_a_timeout_recv_returns_fewer_rows_or_none(gated: ew.VectorEnv) -> None:
    gated.send(np.array([-1, -1, -1, -1]))

    empty = gated.recv(min_ready=4, timeout_s=0.01)

    assert len(empty) == 0
    assert empty.reward.shape == (0,)
    assert gated.in_flight == 4
    GATES[-1].set()
    assert sorted(gated.drain().ids.tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("mode", ["threads", "async"])
def test_polling_with_recv_returns_every_step(mode: str) -> None:
    with ew.make_vector(AsyncScriptedEnvironment, num_envs=2, mode=mode) as venv:
        venv.reset(seed=0)
        venv.send([{}, {}])

        received: list[int] = []
        for _ in range(1_000_000):
            received += venv.recv(timeout_s=0).ids.tolist()
            if venv.in_flight == 0:
                break

    assert sorted(received) == [0, 1]


def test_recv_waits_for_no_more_rows_than_are_in_flight(gated: ew.VectorEnv) -> None:
    gated.send([{"delta": 1}], ids=[2])

    assert gated.recv(min_ready=99).ids.tolist() == [2]


def test_an_invalid_call_is_refused_and_no_row_is_stepped(gated: ew.VectorEnv) -> None:
    with pytest.raises(CallOrderError, match=r"Call send\(\) first"):
        gated.recv()
    with pytest.raises(ActionError, match=r"actions\[1\]\.dleta"):
        gated.send([{"delta": 1}, {"dleta": 1}], ids=[0, 1])
    gated.send([{"delta": 1}], ids=[0])
    with pytest.raises(OptionError, match=r"min_ready must be .* got 0"):
        gated.recv(0)

    assert gated.drain().step_index.tolist() == [1]


@pytest.mark.parametrize("mode", ["serial", "threads", "async"])
def test_an_environment_whose_episode_is_over_cannot_be_sent(mode: str) -> None:
    with ew.make_vector(CounterEnv, num_envs=2, mode=mode) as venv:
        venv.reset()
        venv.send(np.array([3, 1]))
        assert venv.drain().needs_reset.sum() == 1

        with pytest.raises(ResetNeededError, match=r"environments \[0\]"):
            venv.send(np.array([1, 1]))
        venv.reset(ids=[0])
        venv.send(np.array([1, 1]))

        assert sorted(venv.drain().step_index.tolist()) == [1, 2]


@pytest.mark.parametrize("mode", ["serial", "threads", "async"])
def test_step_and_send_recv_may_be_mixed(mode: str) -> None:
    with ew.make_vector(ScriptedEnvironment, num_envs=3, mode=mode, autoreset=True) as venv:
        venv.reset(seed=0)
        venv.step([{}] * 3)
        venv.send([{}], ids=[1])
        venv.recv()

        batch = venv.step([{}] * 3)

        assert batch.step_index.tolist() == [2, 3, 2]
        assert batch.done.tolist() == [False, True, False]
        assert batch.current["at"].tolist() == [2, 0, 2]
        assert [state.step_count for state in venv.state()] == [2, 0, 2]


@pytest.mark.parametrize("mode", ["serial", "threads", "async"])
def test_close_leaves_no_thread_behind(mode: str) -> None:
    left = Leftovers()
    venv = ew.make_vector(CounterEnv, num_envs=8, mode=mode)
    venv.reset()
    venv.send(np.ones(8, int))

    venv.close()
    venv.close()

    assert left.threads() == []


def test_coroutines_run_in_threads_too() -> None:
    with ew.make_vector(AsyncScriptedEnvironment, num_envs=3, mode="threads") as venv:
        venv.reset(seed=0)

        assert venv.step([{}] * 3).reward.tolist() == [1.0, 1.0, 1.0]


def test_an_environment_stays_in_one_thread() -> None:
    class Homebody(CounterEnv):
        def reset(self, *, seed: int | None = None) -> CounterObservation:
            self.home = threading.get_ident()
            return super().reset(seed=seed)

        def step(self, action: CounterAction) -> CounterObservation:
            assert threading.get_ident() == self.home
            return super().step(action)

    with ew.make_vector(Homebody, num_envs=300, mode="threads", autoreset=True) as venv:
        venv.reset()

        assert venv.step(np.full(300, 3)).valid.all()


def test_an_unknown_or_impossible_mode_is_refused() -> None:
    with pytest.raises(OptionError, match="Did you mean 'threads'"):
        ew.make_vector(CounterEnv, num_envs=2, mode="thread")
    with pytest.raises(OptionError, match="mode='async'"):
        ew.make_vector(AsyncScriptedEnvironment, num_envs=2, mode="serial")


class Interrupts(CounterEnv):
    """A step by 9 interrupts the whole process, as Ctrl-C does."""

    def step(self, action: CounterAction) -> CounterObservation:
        if action.delta == 9:
            os.kill(os.getpid(), signal.SIGINT)
            signal.pthread_sigmask(signal.SIG_BLOCK, [])  # returns after the signal was seen
        return super().step(action)


def test_after_an_interrupt_rows_need_a_reset() -> None:
    venv = ew.make_vector(Interrupts, num_envs=3, done_at=100)
    venv.reset(seed=0)

    with pytest.raises(KeyboardInterrupt):
        venv.step(np.array([1, 9, 1]))

    with pytest.raises(ResetNeededError, match=r"\[0, 1, 2\]"):
        venv.step(np.ones(3, int))
    venv.reset(seed=0)
    assert venv.step(np.ones(3, int)).step_index.tolist() == [1, 1, 1]

"""A vector after a call that did not return: nothing hangs, and replies are not mixed up."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any, ClassVar

import numpy as np
import pytest
from processes import Leftovers

import envweave as ew
from envweave.errors import ResetNeededError
from envweave.examples import CounterAction, CounterEnv, CounterObservation


class Numbered(CounterEnv):
    """A counter that knows which of its vector it is: a factory counts them."""

    def __init__(self, number: int) -> None:
        super().__init__(done_at=100)
        self.number = number


class Leaves(Numbered):
    """Environment 1 raises what is no `Exception`: at a step by 9, or at a reset with seed 91."""

    def reset(self, *, seed: int | None = None) -> CounterObservation:
        if seed == 91:
            raise SystemExit(3)
        return super().reset(seed=seed)

    def step(self, action: CounterAction) -> CounterObservation:
        if action.delta == 9:
            raise SystemExit(3)
        return super().step(action)


class AsyncLeaves(ew.Environment):
    """The same with coroutines."""

    def __init__(self, number: int) -> None:
        self.inner = Leaves(number)

    async def reset(self, *, seed: int | None = None) -> CounterObservation:
        await asyncio.sleep(0)
        return self.inner.reset(seed=seed)

    async def step(self, action: CounterAction) -> CounterObservation:
        await asyncio.sleep(0)
        if action.delta == 8:
            raise asyncio.CancelledError("mine")
        return self.inner.step(action)


def numbered(kind: Any, count: int, **options: Any) -> ew.VectorEnv:
    numbers = iter(range(count))
    return ew.make_vector(lambda: kind(next(numbers)), num_envs=count, **options)


@pytest.mark.parametrize(("mode", "kind"), [("threads", Leaves), ("async", AsyncLeaves)])
def test_a_system_exit_in_step_fails_one_row_and_the_others_can_be_received(
    mode: str, kind: Any
) -> None:
    with numbered(kind, 3, mode=mode) as venv:
        venv.reset(seed=0)

        with pytest.raises(SystemExit) as caught:
            venv.step(np.array([1, 9, 2]))

        assert caught.value.__notes__ == ["Raised in environment 1 of the vector."]
        assert venv.in_flight == 2
        rest = venv.drain()
        assert dict(zip(rest.ids.tolist(), rest.reward.tolist(), strict=True)) == {0: 1.0, 2: 2.0}
        with pytest.raises(ResetNeededError, match=r"Environment 1: .*interrupted by SystemExit"):
            venv.step(np.ones(3, int))
        venv.reset(ids=[1])
        assert venv.step(np.ones(3, int)).step_index.tolist() == [2, 1, 2]


@pytest.mark.parametrize(
    ("mode", "kind"), [("serial", Leaves), ("threads", Leaves), ("async", AsyncLeaves)]
)
def test_a_system_exit_in_reset_does_not_hang_the_vector(mode: str, kind: Any) -> None:
    with numbered(kind, 3, mode=mode) as venv:
        venv.reset(seed=0)

        with pytest.raises(SystemExit):
            venv.reset(seed=90)

        with pytest.raises(ResetNeededError, match=r"reset\(\) was interrupted by SystemExit"):
            venv.step(np.ones(3, int))
        venv.reset(seed=0)
        assert venv.step(np.ones(3, int)).step_index.tolist() == [1, 1, 1]


def test_an_unrequested_cancellation_is_the_environments_failure() -> None:
    with numbered(AsyncLeaves, 2) as venv:
        venv.reset(seed=0)

        batch = venv.step(np.array([8, 1]))

        assert batch.valid.tolist() == [False, True]


class Trap:
    """Code that reaches it interrupts the main thread, as Ctrl-C does, and blocks."""

    armed = False
    gate = threading.Event()
    ended: ClassVar[list[str]] = []

    @classmethod
    def arm(cls) -> None:
        cls.armed, cls.gate, cls.ended = True, threading.Event(), []

    @classmethod
    def spring(cls) -> bool:
        was_armed, cls.armed = cls.armed, False
        if was_armed and threading.current_thread() is threading.main_thread():
            # Not now, in the environment's own code, but while the loop turns.
            asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
        elif was_armed:
            os.kill(os.getpid(), signal.SIGINT)
        return was_armed


class Trapped(CounterEnv):
    def __init__(self) -> None:
        super().__init__(done_at=100)

    def reset(self, *, seed: int | None = None) -> CounterObservation:
        if Trap.spring():
            assert Trap.gate.wait(30)
        return super().reset(seed=seed)

    def step(self, action: CounterAction) -> CounterObservation:
        if Trap.spring():
            assert Trap.gate.wait(30)
        return super().step(action)


class AsyncTrapped(ew.Environment):
    def __init__(self) -> None:
        self.inner = CounterEnv(done_at=100)

    async def reset(self, *, seed: int | None = None) -> CounterObservation:
        if Trap.spring():
            try:
                await asyncio.Event().wait()  # for ever, unless cancelled
            finally:
                Trap.ended.append("reset")
        return self.inner.reset(seed=seed)

    async def step(self, action: CounterAction) -> CounterObservation:
        if Trap.spring():
            while not Trap.gate.is_set():
                await asyncio.sleep(0.001)
        return self.inner.step(action)


TRAPPED = [("threads", Trapped), ("async", AsyncTrapped)]


@pytest.mark.parametrize(("mode", "kind"), TRAPPED)
def test_after_an_interrupted_reset_every_call_gets_its_own_reply(mode: str, kind: Any) -> None:
    with ew.make_vector(kind, num_envs=2, mode=mode) as venv:
        venv.reset(seed=0)
        Trap.arm()

        with pytest.raises(KeyboardInterrupt):
            venv.reset(seed=10)

        with pytest.raises(ResetNeededError, match=r"reset\(\) was interrupted by Keyboard"):
            venv.step(np.ones(2, int))
        Trap.gate.set()
        again = venv.reset(seed=20)
        batch = venv.step(np.array([1, 2]))
        assert [info["seed"] for info in again.infos] == [20, 21]
        assert (batch.step_index.tolist(), batch.reward.tolist()) == ([1, 1], [1.0, 2.0])
        assert [state.step_count for state in venv.state()] == [1, 1]
        assert Trap.ended == (["reset"] if mode == "async" else [])


@pytest.mark.parametrize(("mode", "kind"), TRAPPED)
def test_an_interrupted_step_continues_and_can_be_received(mode: str, kind: Any) -> None:
    with ew.make_vector(kind, num_envs=2, mode=mode) as venv:
        venv.reset(seed=0)
        Trap.arm()

        with pytest.raises(KeyboardInterrupt):
            venv.step(np.array([1, 2]))

        assert venv.in_flight == 2
        Trap.gate.set()
        batch = venv.drain()
        assert dict(zip(batch.ids.tolist(), batch.reward.tolist(), strict=True)) == {0: 1.0, 1: 2.0}
        assert venv.step(np.ones(2, int)).step_index.tolist() == [2, 2]


@pytest.mark.parametrize(("mode", "kind"), TRAPPED)
def test_an_interrupted_wait_loses_no_step(mode: str, kind: Any) -> None:
    with ew.make_vector(kind, num_envs=3, mode=mode) as venv:
        venv.reset(seed=0)
        venv.send(np.array([1, 1]), ids=[0, 1])
        venv.drain()
        Trap.arm()
        venv.send(np.array([1, 2, 3]))

        with pytest.raises(KeyboardInterrupt):
            venv.drain()

        assert venv.in_flight == 3
        Trap.gate.set()
        assert sorted(venv.drain().reward.tolist()) == [1.0, 2.0, 3.0]


class InterruptedOnce(Numbered):
    """Environment 1 is interrupted in a step by 9."""

    def step(self, action: CounterAction) -> CounterObservation:
        if self.number == 1 and action.delta == 9:
            raise KeyboardInterrupt
        return super().step(action)


def test_a_serial_vector_interrupted_in_recv_has_nothing_in_flight() -> None:
    venv = numbered(InterruptedOnce, 3)
    venv.reset(seed=0)
    venv.send(np.array([1, 9]), ids=[0, 1])

    with pytest.raises(KeyboardInterrupt):
        venv.recv()

    assert venv.in_flight == 0
    with pytest.raises(ResetNeededError, match=r"\[0, 1\].*recv\(\) was interrupted"):
        venv.step(np.ones(3, int))
    venv.reset(ids=[0, 1])
    assert venv.step(np.ones(3, int)).step_index.tolist() == [1, 1, 1]


class ClosesBadly(Numbered):
    closed: ClassVar[list[int]] = []

    def close(self) -> None:
        ClosesBadly.closed.append(self.number)
        if self.number == 0:
            raise KeyboardInterrupt
        if self.number == 1:
            raise OSError("socket")


class AsyncClosesBadly(AsyncLeaves):
    async def close(self) -> None:
        ClosesBadly(self.inner.number).close()


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize(
    ("mode", "kind"),
    [("serial", ClosesBadly), ("threads", ClosesBadly), ("async", AsyncClosesBadly)],
)
def test_every_environment_is_closed_even_if_one_raises(mode: str, kind: Any) -> None:
    ClosesBadly.closed = []
    left = Leftovers()
    venv = numbered(kind, 3, mode=mode)

    with pytest.raises((KeyboardInterrupt, OSError)):
        venv.close()
    venv.close()

    assert sorted(ClosesBadly.closed) == [0, 1, 2]
    assert left.threads() == []

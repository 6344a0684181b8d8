"""Sync and async environments and callers."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import ClassVar

import pytest
from processes import Leftovers

import envweave as ew
from envweave.errors import BusyError, ClosedError, ResetNeededError
from envweave.examples import CounterAction, CounterEnv, CounterObservation
from envweave.testing import AsyncScriptedEnvironment


class SlowCounter(ew.Environment):
    """Waits inside a step until it is let go."""

    def __init__(self) -> None:
        self.entered, self.go = asyncio.Event(), asyncio.Event()

    async def reset(self) -> CounterObservation:
        return CounterObservation(0)

    async def step(self, action: CounterAction) -> CounterObservation:
        self.entered.set()
        await self.go.wait()
        return CounterObservation(action.delta, reward=1.0)


def test_an_async_environment_serves_a_sync_caller() -> None:
    with ew.make(AsyncScriptedEnvironment()) as env:
        env.reset()

        assert [env.step({}).reward for _ in range(3)] == [1.0, 2.0, 3.0]


def test_an_async_environment_serves_a_sync_caller_inside_a_running_loop() -> None:
    async def notebook_cell() -> list[float]:
        with ew.make(AsyncScriptedEnvironment()) as env:
            env.reset()
            return [env.step({}).reward for _ in range(3)]

    left = Leftovers()

    rewards = asyncio.run(notebook_cell())

    assert rewards == [1.0, 2.0, 3.0]
    assert left.threads() == []


def test_an_environment_made_outside_a_loop_may_be_stepped_inside_one() -> None:
    env = ew.make(AsyncScriptedEnvironment())
    env.reset()
    first = env.step({}).reward

    async def cell() -> float:
        return env.step({}).reward

    second = asyncio.run(cell())
    third = env.step({}).reward
    env.close()

    assert [first, second, third] == [1.0, 2.0, 3.0]


def test_an_async_caller_drives_environments_of_either_colour() -> None:
    async def drive(environment: ew.Environment, action: dict[str, int]) -> float:
        async with ew.make_async(environment) as env:
            await env.reset(seed=1)
            result = await env.step(action)
            assert (await env.state()).step_count == 1
            return result.reward

    async def both() -> list[float]:
        return [
            await drive(AsyncScriptedEnvironment(), {}),
            await drive(CounterEnv(), {"delta": 1}),
        ]

    assert asyncio.run(both()) == [1.0, 1.0]


def test_the_async_close_of_the_author_runs_once() -> None:
    environment = AsyncScriptedEnvironment()
    with ew.make(environment) as env:
        env.reset()
    env.close()

    assert environment.closed == 1


def test_the_async_close_of_a_foreign_object_is_awaited() -> None:
    class Foreign:
        closed = 0

        async def reset(self) -> tuple[int, dict[str, int]]:
            return 0, {}

        async def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, int]]:
            return action, 1.0, False, False, {}

        async def close(self) -> None:
            self.closed += 1

    foreign = Foreign()
    with ew.make(foreign) as env:
        env.reset()

    assert foreign.closed == 1


def test_a_concurrent_call_is_refused_without_side_effects() -> None:
    async def scenario() -> float:
        environment = SlowCounter()
        async with ew.make_async(environment) as env:
            await env.reset()
            first = asyncio.create_task(env.step({"delta": 1}))
            await environment.entered.wait()
            with pytest.raises(BusyError, match=r"step\(\) is still under way"):
                await env.step({"delta": 2})
            environment.go.set()
            return (await first).observation.value

    assert asyncio.run(scenario()) == 1


def test_a_cancelled_step_ends_the_episode_for_want_of_knowledge() -> None:
    async def scenario() -> None:
        environment = SlowCounter()
        async with ew.make_async(environment) as env:
            await env.reset()
            step = asyncio.create_task(env.step({"delta": 1}))
            await environment.entered.wait()
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step

            with pytest.raises(ResetNeededError, match="interrupted"):
                await env.step({"delta": 1})
            await env.reset()

    asyncio.run(scenario())


def test_tasks_an_environment_left_running_are_cancelled_by_close() -> None:
    class Spawns(SlowCounter):
        async def reset(self) -> CounterObservation:
            self.background = asyncio.ensure_future(asyncio.sleep(3600))
            return CounterObservation(0)

    environment = Spawns()
    env = ew.make(environment)
    env.reset()

    env.close()

    assert environment.background.cancelled()


def test_close_waits_for_the_call_under_way_and_nothing_opens_again() -> None:
    class Logs(SlowCounter):
        log: ClassVar[list[str]] = []

        async def reset(self) -> CounterObservation:
            self.log.append("reset")
            return CounterObservation(0)

        async def step(self, action: CounterAction) -> CounterObservation:
            self.entered.set()
            await self.go.wait()
            self.log.append("step")
            return CounterObservation(action.delta, reward=1.0, done=True)

        async def close(self) -> None:
            self.log.append("close")

    async def scenario() -> None:
        environment = Logs()
        env = ew.make_async(environment, autoreset=True)
        await env.reset()
        step = asyncio.create_task(env.step({"delta": 1}))
        await environment.entered.wait()
        closing = asyncio.create_task(env.close())
        await asyncio.sleep(0)
        environment.go.set()
        await closing
        assert (await step).observation.value == 1
        with pytest.raises(ClosedError):
            await env.step({"delta": 1})

    asyncio.run(scenario())

    assert Logs.log == ["reset", "step", "close"]


def test_a_cancellation_inside_the_environment_is_its_own_error() -> None:
    class Cancels(SlowCounter):
        async def step(self, action: CounterAction) -> CounterObservation:
            raise asyncio.CancelledError

    with ew.make(Cancels()) as env:
        env.reset()

        result = env.step({"delta": 1})

    assert (result.end.reason, result.end.blame) == ("error", "environment")
    assert "was cancelled" in result.end.cause


def test_an_interrupt_of_a_sync_caller_cancels_the_step_and_leaves_it_usable() -> None:
    class Interrupted(SlowCounter):
        async def step(self, action: CounterAction) -> CounterObservation:
            if action.delta == 9:  # from another thread, so that it meets a loop that waits
                threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
                await asyncio.sleep(30)
            return CounterObservation(action.delta, reward=1.0)

    with ew.make(Interrupted()) as env:
        env.reset()

        with pytest.raises(KeyboardInterrupt):
            env.step({"delta": 9})

        with pytest.raises(ResetNeededError, match="interrupted"):
            env.step({"delta": 1})
        env.reset()
        assert env.step({"delta": 1}).reward == 1.0


def test_a_stop_left_over_from_an_interrupted_run_does_not_reach_the_next_call() -> None:
    class Waits(SlowCounter):
        async def step(self, action: CounterAction) -> CounterObservation:
            for _ in range(3):  # a step that one turn of the loop does not finish
                await asyncio.sleep(0)
            return CounterObservation(action.delta, reward=1.0)

    with ew.make(Waits()) as env:
        env.reset()
        env._transport._loop._loop.stop()  # as a Ctrl-C between two callbacks leaves it

        result = env.step({"delta": 1})

    assert result.reward == 1.0

"""Reading the state while steps, resets and other readers run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import envweave as ew

SLOW = "class Slow:\n    def __repr__(self): return look()\nslow = Slow()\nx = 7"


class Gate:
    """A tool that says when it was called, and waits until it may go on."""

    def __init__(self) -> None:
        self.entered, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def look(self) -> str:
        self.entered.set()
        await asyncio.wait_for(self.may_go_on.wait(), 20)
        return "seen"


@pytest.fixture(params=["sandbox", "inproc"])
def play(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Return what runs a coroutine with an environment, after a reset, and the gate in it."""

    async def run(scene: Callable[[Any, Gate], Awaitable[None]]) -> None:
        gate = Gate()
        made = ew.create_codeact_env(executor=request.param, tools=[gate.look])
        async with ew.make_async(made) as env:
            await env.reset()
            await scene(env, gate)

    return lambda scene: asyncio.run(run(scene))


async def begin(call: Awaitable[Any], gate: Gate) -> asyncio.Task[Any]:
    """Begin a call, and come back when it is at the gate."""
    task = asyncio.ensure_future(call)
    await asyncio.wait_for(gate.entered.wait(), 20)
    return task


def value_of(result: Any) -> Any:
    assert result.valid, result
    return result.observation.execution_result.return_value


def test_a_step_waits_until_the_state_is_read(play: Callable[..., None]) -> None:
    async def scene(env: Any, gate: Gate) -> None:
        await env.step({"code": SLOW})

        looking = await begin(env.state(), gate)
        stepping = asyncio.ensure_future(env.step({"code": "x"}))
        await asyncio.sleep(0)
        gate.may_go_on.set()
        state, result = await asyncio.gather(looking, stepping)

        assert "slow" in state.variables
        assert value_of(result) == 7

    play(scene)


def test_a_reset_waits_until_the_state_is_read(play: Callable[..., None]) -> None:
    async def scene(env: Any, gate: Gate) -> None:
        await env.step({"code": SLOW})

        looking = await begin(env.state(), gate)
        resetting = asyncio.ensure_future(env.reset())
        await asyncio.sleep(0)
        gate.may_go_on.set()
        state, _ = await asyncio.gather(looking, resetting)

        assert "slow" in state.variables
        assert value_of(await env.step({"code": "1"})) == 1

    play(scene)


def test_reading_the_state_during_a_step_does_not_wait(play: Callable[..., None]) -> None:
    async def scene(env: Any, gate: Gate) -> None:
        stepping = await begin(env.step({"code": "x = look()\nx"}), gate)
        state = await asyncio.wait_for(env.state(), 20)
        gate.may_go_on.set()

        assert state.variables == {}
        assert value_of(await stepping) == "seen"

    play(scene)


def test_the_state_can_be_read_concurrently(play: Callable[..., None]) -> None:
    async def scene(env: Any, gate: Gate) -> None:
        await env.step({"code": SLOW})

        first = await begin(env.state(), gate)
        second = asyncio.ensure_future(env.state())
        await asyncio.sleep(0)
        gate.may_go_on.set()
        states = await asyncio.gather(first, second)

        assert all("slow" in state.variables for state in states)

    play(scene)


def test_a_cancelled_read_of_the_state_keeps_the_variables(play: Callable[..., None]) -> None:
    async def scene(env: Any, gate: Gate) -> None:
        await env.step({"code": SLOW})

        looking = await begin(env.state(), gate)
        looking.cancel()
        await asyncio.wait([looking])
        gate.may_go_on.set()

        assert value_of(await env.step({"code": "x"})) == 7

    play(scene)

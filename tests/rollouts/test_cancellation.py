"""However a rollout is left, nothing of it goes on, and the pool can be used again."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
from collections.abc import Callable
from contextlib import aclosing

import pytest
from environments.tasks import Seen, Walk, counted, forward

import envweave as ew
from envweave.errors import ActionError, ToolCallOpenError
from envweave.testing import ScriptedEnvironment


async def ticks(count: int) -> None:
    """Let the event loop run `count` times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def check(pool: ew.Pool) -> None:
    """Nothing runs, and the pool plays as if nothing had happened."""
    assert asyncio.all_tasks() == {asyncio.current_task()}
    episodes = await ew.rollout(pool, forward, episodes=2 * pool.size)
    assert [(e.reward, e.usable) for e in episodes] == [(3.0, True)] * (2 * pool.size)


async def collected(rollout: ew.Rollout) -> list[ew.Episode]:
    return await rollout


async def by_cancelling_the_awaiting_task(rollout: ew.Rollout, steps: int) -> None:
    waiting = asyncio.create_task(collected(rollout))
    await ticks(steps)
    waiting.cancel()
    await asyncio.wait([waiting])


async def by_cancel(rollout: ew.Rollout, steps: int) -> None:
    waiting = asyncio.create_task(collected(rollout))
    await ticks(steps)
    await rollout.cancel()
    assert all(episode.usable for episode in await waiting)


async def by_break(rollout: ew.Rollout, steps: int) -> None:
    async with aclosing(aiter(rollout)) as stream:
        async for _ in stream:
            steps -= 1
            if steps <= 0:
                break


async def by_an_agent_that_raises(rollout: ew.Rollout, steps: int) -> None:
    calls = 0

    def agent(result: ew.StepResult) -> dict:
        nonlocal calls
        calls += 1
        if calls > steps:
            raise LookupError("no idea")
        return {"by": 1}

    rollout._agent = agent
    with pytest.raises(LookupError, match="no idea"):
        await rollout


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize(
    "leave", [by_cancelling_the_awaiting_task, by_cancel, by_break, by_an_agent_that_raises]
)
@pytest.mark.parametrize("seed", range(25))
def test_a_rollout_left_at_any_point_leaves_nothing_running(leave: Callable, seed: int):
    chance = random.Random(seed)
    kind = counted()

    async def dawdles(result: ew.StepResult) -> dict:
        await ticks(chance.randrange(3))
        return {"by": 1}

    async def scenario() -> None:
        async with ew.pool(kind, size=chance.randint(1, 4)) as pool:
            other = asyncio.create_task(collected(ew.rollout(pool, dawdles, episodes=9)))
            rollout = ew.rollout(pool, dawdles, episodes=40)
            await leave(rollout, chance.randint(1, 60) if leave is not by_break else 3)
            assert rollout.faults == []
            assert [episode.reward for episode in await other] == [3.0] * 9
            await check(pool)

    asyncio.run(scenario())

    assert kind.log["made"] == kind.log["closed"]


def test_a_loop_left_with_break_cleans_up():
    kind = counted()

    async def scenario() -> None:
        async with ew.pool(kind, size=3) as pool:
            async for _ in ew.rollout(pool, forward, episodes=1_000):
                break
            await ticks(20)
            await check(pool)

    asyncio.run(scenario())

    assert kind.log == {"made": kind.log["closed"], "closed": kind.log["closed"]}


def test_a_deadline_around_a_rollout_ends_it():
    async def scenario() -> None:
        async with ew.pool(counted(), size=2) as pool:

            async def thinks_for_ever(result: ew.StepResult) -> dict:
                await asyncio.Event().wait()

            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await ew.rollout(pool, thinks_for_ever, episodes=8)
            await check(pool)

    asyncio.run(scenario())


def test_a_cancelled_rollout_gives_what_was_finished():
    async def scenario() -> list[str | None]:
        async with ew.pool(Walk, size=2) as pool:
            stuck = asyncio.Event()

            async def agent(result: ew.StepResult) -> dict:
                if result.task_id == "c":
                    stuck.set()
                    await asyncio.Event().wait()
                return {"by": 1}

            rollout = ew.rollout(pool, agent, tasks=["a", "c", "b"])

            waiting = asyncio.create_task(collected(rollout))
            await stuck.wait()
            await ticks(50)
            await rollout.cancel()
            await rollout.cancel()
            return [episode.task_id for episode in await waiting]

    assert asyncio.run(scenario()) == ["a", "b"]


def test_a_rollout_cancelled_before_it_began_plays_nothing():
    kind = counted()

    async def scenario() -> list[ew.Episode]:
        async with ew.pool(kind, size=2) as pool:
            rollout = ew.rollout(pool, forward, episodes=4)
            await rollout.cancel()
            return await rollout

    assert asyncio.run(scenario()) == []


def test_an_agent_may_cancel_its_own_rollout():
    async def scenario() -> None:
        async with ew.pool(counted(), size=2) as pool:
            calls = 0

            async def agent(result: ew.StepResult) -> dict:
                nonlocal calls
                calls += 1
                if calls == 20:
                    await rollout.cancel()
                return {"by": 1}

            rollout = ew.rollout(pool, agent, episodes=1_000)
            assert 0 < len(await rollout) < 20
            await check(pool)

    asyncio.run(scenario())


def test_an_agent_that_ignores_cancellation_is_awaited_until_its_episode_ends():
    async def scenario() -> None:
        async with ew.pool(counted(), size=2) as pool:
            asked = asyncio.Event()

            async def stubborn(result: ew.StepResult) -> dict:
                asked.set()
                try:
                    await asyncio.sleep(10)
                except asyncio.CancelledError:
                    return {"by": 1}

            rollout = ew.rollout(pool, stubborn, episodes=1, max_steps=1)
            waiting = asyncio.ensure_future(anext(aiter(rollout), None))
            await asked.wait()
            await rollout.cancel()
            await asyncio.wait([waiting])
            await check(pool)

    asyncio.run(scenario())


def test_an_error_of_the_agent_is_raised_with_a_note_where():
    def agent(result: ew.StepResult) -> dict:
        if result.task_id == "b" and result.step_index == 0:
            raise LookupError("no idea")
        return {"by": 1}

    with ew.pool(Walk, size=1) as pool, pytest.raises(LookupError, match="no idea") as caught:
        ew.rollout(pool, agent, tasks=["a", "b"], group_size=2).run()

    (note,) = caught.value.__notes__
    assert note.startswith("Raised by the agent in step 1 of episode ")
    assert "group 1, member 0, task 'b', seed " in note


def test_a_cancellation_inside_the_agent_is_an_error():
    async def agent(result: ew.StepResult) -> dict:
        raise asyncio.CancelledError

    with (
        ew.pool("counter-v0", size=2) as pool,
        pytest.raises(RuntimeError, match="something that the agent awaits was cancelled"),
    ):
        ew.rollout(pool, agent, episodes=4).run()


def test_a_refused_action_ends_the_rollout_with_the_field():
    with ew.pool("counter-v0", size=2) as pool, pytest.raises(ActionError, match="dleta") as caught:
        ew.rollout(pool, lambda result: {"dleta": 1}, episodes=4).run()

    assert "Refused in step 1 of episode" in caught.value.__notes__[0]


def test_an_action_while_a_tool_call_is_open_ends_the_rollout():
    with (
        ew.pool(ScriptedEnvironment, size=1, script=[{"tool": "search"}, {}]) as pool,
        pytest.raises(ToolCallOpenError, match="search"),
    ):
        ew.rollout(pool, lambda result: {}, episodes=1).run()


def test_episodes_finished_before_an_error_are_still_yielded():
    def agent(result: ew.StepResult) -> dict:
        if result.task_id == "c":
            raise LookupError("no idea")
        return {"by": 1}

    with ew.pool(Walk, size=1) as pool:
        episodes = iter(ew.rollout(pool, agent, tasks=list("abc")))
        finished = [next(episodes).task_id, next(episodes).task_id]

        with pytest.raises(LookupError):
            next(episodes)

    assert finished == ["a", "b"]


def test_ctrl_c_in_a_program_without_a_loop_ends_it():
    kind, asked = counted(), itertools.count()

    def agent(result: ew.StepResult) -> dict:
        if next(asked) == 10:
            signal.raise_signal(signal.SIGINT)
        return {"by": 1}

    with ew.pool(kind, size=3) as pool:
        with pytest.raises(KeyboardInterrupt):
            ew.rollout(pool, agent, episodes=100).run()
        again = ew.rollout(pool, forward, episodes=3).run()

    assert [episode.reward for episode in again] == [3.0] * 3
    assert kind.log["made"] == kind.log["closed"]


def test_ctrl_c_in_a_program_with_a_loop_ends_it():
    kind, asked = counted(), itertools.count()

    async def agent(result: ew.StepResult) -> dict:
        if next(asked) == 10:
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()
        return {"by": 1}

    async def scenario() -> None:
        async with ew.pool(kind, size=3) as pool:
            await ew.rollout(pool, agent, episodes=100)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(scenario())

    assert kind.log["made"] == kind.log["closed"] >= 3


def test_a_loop_that_ends_during_a_rollout_leaves_no_warning_and_no_environment():
    kind = counted()

    class Slow(kind):
        async def step(self, action) -> Seen:
            await asyncio.Event().wait()
            return Seen(1)

    async def scenario() -> None:
        async with ew.pool(Slow, size=3) as pool:
            waiting = asyncio.ensure_future(anext(aiter(ew.rollout(pool, forward, episodes=100))))
            await ticks(5)
            waiting.cancel()

    asyncio.run(scenario())

    assert kind.log["made"] == kind.log["closed"]

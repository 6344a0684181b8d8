"""Plain functions behind a server run in threads, and harm no neighbours."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from place_worlds import Worker, fresh, local, opened, reset, step, until

from envweave.errors import (
    ActionError,
    CapacityError,
    ClosedError,
    DeadlineError,
    EnvironmentLostError,
    ResetNeededError,
)
from envweave.registry import ReadyMade
from envweave.server.runtime.base import SessionOptions
from envweave.session import episode_seed


def run(test: Any) -> Any:
    return asyncio.run(asyncio.wait_for(test, 60.0))


def test_calls_of_an_environment_run_in_one_thread_that_is_not_the_loop() -> None:
    async def play() -> set[int]:
        place = local(fresh())
        await place.start()
        (runner,) = await opened(place)
        seen = [await reset(runner), *[await step(runner) for _ in range(20)]]
        await place.close()
        return {result.observation[name] for result in seen for name in ("made_in", "runs_in")}

    threads = run(play())

    assert len(threads) == 1
    assert threads.isdisjoint({threading.get_ident()})


def test_a_step_past_its_deadline_ends_the_episode_and_the_next_takes_the_next_seed() -> None:
    world = fresh()

    async def play() -> tuple[Any, Any, Any]:
        place = local(world)
        await place.start()
        (runner,) = await opened(place)
        first = await reset(runner, seed=7)
        late = await step(runner, "hang", 0.05)
        with pytest.raises(ResetNeededError, match="took longer than timeout_s"):
            await step(runner)
        again = await reset(runner)
        went_on = await step(runner)
        world.held.set()
        await place.close()
        assert went_on.step_index == 1
        return first, late, again

    first, late, again = run(play())

    assert (late.end.reason, late.end.blame) == ("timeout", "environment")
    assert late.end.cause == "step() took longer than timeout_s=0.05"
    assert (late.truncated, late.terminated, late.step_index) == (True, False, 1)
    assert late.observation == first.observation
    assert (first.info["seed"], again.info["seed"]) == (7, episode_seed(7, 1))
    assert again.episode_id == first.episode_id.replace("-0", "-1")


def test_with_autoreset_the_next_episode_begins_in_the_result_that_was_late() -> None:
    world = fresh()

    async def play() -> tuple[Any, Any]:
        place = local(world)
        await place.start()
        (runner,) = await opened(place, autoreset=True)
        await reset(runner, seed=7)
        late = await step(runner, "hang", 0.05)
        after = await step(runner)
        world.held.set()
        await place.close()
        return late, after

    late, after = run(play())

    assert late.end.reason == "timeout"
    assert late.ready.initial_info["seed"] == episode_seed(7, 1)
    assert late.position.k == 1
    assert (after.step_index, after.episode_id) == (1, late.ready.episode_id)


def test_who_shares_a_thread_with_a_call_that_hangs_goes_on_in_another() -> None:
    world = fresh()

    async def play() -> tuple[int, list[Any]]:
        place = local(world, threads=2)
        await place.start()
        runners = await opened(place, 6)
        began = [await reset(runner) for runner in runners]
        hangs, thread = runners[0], began[0].observation["runs_in"]
        mates = [
            runner
            for runner, result in zip(runners, began, strict=True)
            if result.observation["runs_in"] == thread and runner is not hangs
        ]
        hung = asyncio.ensure_future(step(hangs, "hang"))
        await until(world.hung.is_set)
        stepped = await asyncio.gather(*[step(mate) for mate in mates])
        world.held.set()
        await hung
        await place.close()
        return thread, stepped

    thread, stepped = run(play())

    assert len(stepped) >= 2  # of five, if all are quick
    assert all(result.observation["runs_in"] != thread for result in stepped)


def test_who_shares_a_thread_that_was_given_up_goes_on_in_another() -> None:
    world = fresh()

    async def play() -> list[Any]:
        place = local(world, threads=1)
        await place.start()
        runners = await opened(place, 3)
        for runner in runners:
            await reset(runner)
        late = asyncio.ensure_future(step(runners[0], "hang", 0.05))
        await until(world.hung.is_set)
        stepped = await asyncio.gather(*[step(runner) for runner in runners[1:]])
        assert (await late).end.reason == "timeout"
        world.held.set()
        await place.close()
        return stepped

    stepped = run(play())

    assert [result.step_index for result in stepped] == [1, 1]


def test_a_call_that_cannot_be_stopped_counts_as_stuck_until_it_ends_and_is_closed_then() -> None:
    world = fresh()

    async def play() -> tuple[int, int]:
        place = local(world)
        await place.start()
        (runner,) = await opened(place)
        await reset(runner)
        await step(runner, "hang", 0.05)
        stuck = place.health.stuck
        world.held.set()
        await until(lambda: place.health.stuck == 0)
        await until(lambda: world.closed.acquire(blocking=False))
        left = place.health.stuck
        await place.close()
        return stuck, left

    assert run(play()) == (1, 0)


def test_a_reset_past_its_deadline_is_lost_and_the_next_takes_the_seed_after_it() -> None:
    world = fresh()

    async def play() -> int:
        place = local(world)
        await place.start()
        (runner,) = await opened(place)
        await reset(runner, seed=7)
        with pytest.raises(EnvironmentLostError, match="took longer than timeout_s"):
            await reset(runner, 0.05, options={"do": "hang"})
        again = await reset(runner)
        world.held.set()
        await place.close()
        return again.info["seed"]

    assert run(play()) == episode_seed(7, 2)


def test_a_state_past_its_deadline_costs_the_episode_at_the_next_step() -> None:
    world = fresh()

    async def play() -> Any:
        place = local(world)
        await place.start()
        (runner,) = await opened(place)
        await reset(runner, seed=13)
        with pytest.raises(Exception, match="took longer"):
            await runner.call("state", {}, 0.05)
        late = await step(runner)
        world.held.set()
        await place.close()
        return late

    assert run(play()).end.reason == "timeout"


def test_one_object_has_one_session_at_a_time_and_is_closed_with_the_place() -> None:
    world = fresh()

    async def play() -> bool:
        place = local(ReadyMade(world()))
        await place.start()
        (first,) = await opened(place)
        with pytest.raises(CapacityError, match="Serve its class"):
            await place.open(SessionOptions())
        await first.close()
        (second,) = await opened(place)
        await reset(second)
        assert (await step(second)).step_index == 1
        was_closed_before = world.closed.acquire(blocking=False)
        await place.close()
        return was_closed_before

    assert not run(play())
    assert world.closed.acquire(blocking=False)


def test_one_object_that_hangs_is_not_replaced_and_goes_on_when_it_comes_back() -> None:
    world = fresh()

    async def play() -> int:
        place = local(ReadyMade(world()))
        await place.start()
        (runner,) = await opened(place)
        await reset(runner, seed=7)
        assert (await step(runner, "hang", 0.05)).end.reason == "timeout"
        with pytest.raises(EnvironmentLostError, match="Serve its class, or a function"):
            await reset(runner)
        world.held.set()
        await until(lambda: place.health.stuck == 0)
        again = await reset(runner)
        await place.close()
        return again.info["seed"]

    assert run(play()) == episode_seed(7, 1)


def test_code_that_exits_ends_its_episode_and_not_the_server() -> None:
    async def play() -> tuple[Any, Any]:
        place = local(fresh())
        await place.start()
        (runner,) = await opened(place)
        await reset(runner)
        ended = await step(runner, "exit")
        await reset(runner)
        after = await step(runner)
        await place.close()
        return ended, after

    ended, after = run(play())

    assert (ended.end.reason, ended.end.blame) == ("error", "environment")
    assert "SystemExit: 3" in ended.end.cause
    assert after.step_index == 1


def test_an_action_that_is_refused_leaves_the_episode_unharmed() -> None:
    async def play() -> Any:
        place = local(fresh())
        await place.start()
        (runner,) = await opened(place)
        await reset(runner)
        with pytest.raises(ActionError):
            await step(runner, {"no": "text"})
        assert runner.is_live
        result = await step(runner)
        await place.close()
        return result

    assert run(play()).step_index == 1


def test_slow_environments_have_a_thread_each_while_there_are_threads() -> None:
    async def play() -> int:
        place = local(fresh(), threads=6)
        await place.start()
        runners = await opened(place, 1)
        await reset(runners[0])
        for _ in range(4):
            await step(runners[0], "rest")
        runners += await opened(place, 7)
        began = [await reset(runner) for runner in runners]
        await place.close()
        return len({result.observation["runs_in"] for result in began})

    assert run(play()) == 6


class HangsWhenMade(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.obey("hang")


class SlowlyMade(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.obey("rest briefly")


@pytest.mark.slow  # opens many sessions
def test_sessions_that_come_and_go_leave_no_threads_and_no_environments() -> None:
    world = fresh(SlowlyMade)
    before = set(threading.enumerate())

    async def play() -> None:
        place = local(world, threads=8)
        await place.start()
        for _ in range(10):
            runners = await opened(place, 20)
            await asyncio.gather(*[reset(runner) for runner in runners])
            assert len(set(threading.enumerate()) - before) == 8
            await asyncio.gather(*[runner.close() for runner in runners])
            await until(lambda: len(set(threading.enumerate()) - before) <= 2)
        workshop = place._maker._workshop
        assert (workshop._made, workshop._ids) == ({}, set())
        await place.close()

    run(play())

    assert set(threading.enumerate()) <= before
    assert [world.closed.acquire(blocking=False) for _ in range(201)] == [True] * 200 + [False]


def test_a_session_is_closed_in_bounded_time_though_its_call_hangs() -> None:
    world = fresh()

    async def play() -> None:
        place = local(world)
        await place.start()
        (runner,) = await opened(place, timeout_s=0.05)
        await reset(runner)
        hung = asyncio.ensure_future(step(runner, "hang"))
        await until(world.hung.is_set)
        await runner.close()
        with pytest.raises(ClosedError, match="was closed while its step"):
            await hung
        world.held.set()
        await until(lambda: world.closed.acquire(blocking=False))
        await place.close()
        assert place.health.stuck == 0

    run(play())


def test_an_environment_that_nobody_waits_for_any_more_is_closed() -> None:
    world = fresh(HangsWhenMade)

    async def play() -> None:
        place = local(world)
        world.held.set()
        await place.start()
        (first,) = await opened(place)
        world.held.clear()
        world.hung.clear()
        opening = asyncio.ensure_future(place.open(SessionOptions()))
        await until(world.hung.is_set)
        opening.cancel()
        await asyncio.wait([opening])
        world.held.set()
        await until(lambda: world.closed.acquire(blocking=False))
        (second,) = await opened(place)
        assert (await reset(second)).step_index == 0
        assert (await reset(first)).step_index == 0
        await place.close()

    run(play())


def test_an_environment_that_takes_too_long_to_make_holds_up_nobody_else() -> None:
    world = fresh(HangsWhenMade)

    async def play() -> None:
        place = local(world)
        world.held.set()
        await place.start()
        (first,) = await opened(place)
        world.held.clear()
        with pytest.raises(DeadlineError, match="Making 'worker' took longer"):
            await place.open(SessionOptions(timeout_s=0.05))
        assert place.health.stuck == 1
        assert (await reset(first)).step_index == 0
        world.held.set()
        assert (await reset((await opened(place))[0])).step_index == 0
        await until(lambda: place.health.stuck == 0)
        await until(lambda: world.closed.acquire(blocking=False))
        await place.close()

    run(play())

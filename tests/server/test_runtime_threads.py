"""Synchronous environments of a server run in threads and do not affect each other."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from server_runtimes import ScriptedWorker, fresh, local_runtime, open_sessions, reset, step, until

from envweave.errors import (
    ActionError,
    CapacityError,
    ClosedError,
    DeadlineError,
    EnvironmentLostError,
    ResetNeededError,
)
from envweave.registry import ReadyMade
from envweave.session import episode_seed


def run(test: Any) -> Any:
    return asyncio.run(asyncio.wait_for(test, 60.0))


def test_calls_of_an_environment_run_in_one_thread_that_is_not_the_loop() -> None:
    async def play() -> set[int]:
        runtime = local_runtime(fresh())
        await runtime.start()
        (runner,) = await open_sessions(runtime)
        seen = [await reset(runner), *[await step(runner) for _ in range(20)]]
        await runtime.close()
        return {result.observation[name] for result in seen for name in ("made_in", "runs_in")}

    threads = run(play())

    assert len(threads) == 1
    assert threads.isdisjoint({threading.get_ident()})


def test_a_step_past_its_deadline_ends_the_episode_and_the_next_takes_the_next_seed() -> None:
    env_class = fresh()

    async def play() -> tuple[Any, Any, Any]:
        runtime = local_runtime(env_class)
        await runtime.start()
        (runner,) = await open_sessions(runtime)
        first = await reset(runner, seed=7)
        late = await step(runner, "hang", 0.05)
        with pytest.raises(ResetNeededError, match="took longer than timeout_s"):
            await step(runner)
        again = await reset(runner)
        went_on = await step(runner)
        env_class.held.set()
        await runtime.close()
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
    env_class = fresh()

    async def play() -> tuple[Any, Any]:
        runtime = local_runtime(env_class)
        await runtime.start()
        (runner,) = await open_sessions(runtime, autoreset=True)
        await reset(runner, seed=7)
        late = await step(runner, "hang", 0.05)
        after = await step(runner)
        env_class.held.set()
        await runtime.close()
        return late, after

    late, after = run(play())

    assert late.end.reason == "timeout"
    assert late.ready.initial_info["seed"] == episode_seed(7, 1)
    assert late.position.k == 1
    assert (after.step_index, after.episode_id) == (1, late.ready.episode_id)


def test_environments_behind_a_hanging_call_move_to_another_thread() -> None:
    env_class = fresh()

    async def play() -> tuple[int, list[Any]]:
        runtime = local_runtime(env_class, threads=2)
        await runtime.start()
        runners = await open_sessions(runtime, 6)
        began = [await reset(runner) for runner in runners]
        hangs, thread = runners[0], began[0].observation["runs_in"]
        peers = [
            runner
            for runner, result in zip(runners, began, strict=True)
            if result.observation["runs_in"] == thread and runner is not hangs
        ]
        hung = asyncio.ensure_future(step(hangs, "hang"))
        await until(env_class.hung.is_set)
        stepped = await asyncio.gather(*[step(peer) for peer in peers])
        env_class.held.set()
        await hung
        await runtime.close()
        return thread, stepped

    thread, stepped = run(play())

    assert len(stepped) >= 2  # of five, if all are quick
    assert all(result.observation["runs_in"] != thread for result in stepped)


def test_environments_of_an_abandoned_thread_move_to_another() -> None:
    env_class = fresh()

    async def play() -> list[Any]:
        runtime = local_runtime(env_class, threads=1)
        await runtime.start()
        runners = await open_sessions(runtime, 3)
        for runner in runners:
            await reset(runner)
        late = asyncio.ensure_future(step(runners[0], "hang", 0.05))
        await until(env_class.hung.is_set)
        stepped = await asyncio.gather(*[step(runner) for runner in runners[1:]])
        assert (await late).end.reason == "timeout"
        env_class.held.set()
        await runtime.close()
        return stepped

    stepped = run(play())

    assert [result.step_index for result in stepped] == [1, 1]


def test_a_call_that_cannot_be_stopped_counts_as_stuck_until_it_ends_and_is_closed_then() -> None:
    env_class = fresh()

    async def play() -> tuple[int, int]:
        runtime = local_runtime(env_class)
        await runtime.start()
        (runner,) = await open_sessions(runtime)
        await reset(runner)
        await step(runner, "hang", 0.05)
        stuck = runtime.health.stuck
        env_class.held.set()
        await until(lambda: runtime.health.stuck == 0)
        await until(lambda: env_class.closed.acquire(blocking=False))
        left = runtime.health.stuck
        await runtime.close()
        return stuck, left

    assert run(play()) == (1, 0)


def test_a_reset_past_its_deadline_is_lost_and_the_next_takes_the_seed_after_it() -> None:
    env_class = fresh()

    async def play() -> int:
        runtime = local_runtime(env_class)
        await runtime.start()
        (runner,) = await open_sessions(runtime)
        await reset(runner, seed=7)
        with pytest.raises(EnvironmentLostError, match="took longer than timeout_s"):
            await reset(runner, 0.05, options={"do": "hang"})
        again = await reset(runner)
        env_class.held.set()
        await runtime.close()
        return again.info["seed"]

    assert run(play()) == episode_seed(7, 2)


def test_a_state_past_its_deadline_costs_the_episode_at_the_next_step() -> None:
    env_class = fresh()

    async def play() -> Any:
        runtime = local_runtime(env_class)
        await runtime.start()
        (runner,) = await open_sessions(runtime)
        await reset(runner, seed=13)
        with pytest.raises(Exception, match="took longer"):
            await runner.call("state", {}, 0.05)
        late = await step(runner)
        env_class.held.set()
        await runtime.close()
        return late

    assert run(play()).end.reason == "timeout"


def test_a_single_object_has_one_session_at_a_time_and_is_closed_with_the_runtime() -> None:
    env_class = fresh()

    async def play() -> bool:
        runtime = local_runtime(ReadyMade(env_class()))
        await runtime.start()
        (first,) = await open_sessions(runtime)
        with pytest.raises(CapacityError, match="Serve its class"):
            await open_sessions(runtime)
        await first.close()
        (second,) = await open_sessions(runtime)
        await reset(second)
        assert (await step(second)).step_index == 1
        was_closed_before = env_class.closed.acquire(blocking=False)
        await runtime.close()
        return was_closed_before

    assert not run(play())
    assert env_class.closed.acquire(blocking=False)


def test_a_single_object_that_hangs_is_not_replaced_and_continues_when_it_returns() -> None:
    env_class = fresh()

    async def play() -> int:
        runtime = local_runtime(ReadyMade(env_class()))
        await runtime.start()
        (runner,) = await open_sessions(runtime)
        await reset(runner, seed=7)
        assert (await step(runner, "hang", 0.05)).end.reason == "timeout"
        with pytest.raises(EnvironmentLostError, match="Serve its class, or a function"):
            await reset(runner)
        env_class.held.set()
        await until(lambda: runtime.health.stuck == 0)
        again = await reset(runner)
        await runtime.close()
        return again.info["seed"]

    assert run(play()) == episode_seed(7, 1)


def test_code_that_exits_ends_its_episode_and_not_the_server() -> None:
    async def play() -> tuple[Any, Any]:
        runtime = local_runtime(fresh())
        await runtime.start()
        (runner,) = await open_sessions(runtime)
        await reset(runner)
        ended = await step(runner, "exit")
        await reset(runner)
        after = await step(runner)
        await runtime.close()
        return ended, after

    ended, after = run(play())

    assert (ended.end.reason, ended.end.blame) == ("error", "environment")
    assert "SystemExit: 3" in ended.end.cause
    assert after.step_index == 1


def test_an_action_that_is_refused_leaves_the_episode_unharmed() -> None:
    async def play() -> Any:
        runtime = local_runtime(fresh())
        await runtime.start()
        (runner,) = await open_sessions(runtime)
        await reset(runner)
        with pytest.raises(ActionError):
            await step(runner, {"no": "text"})
        assert runner.is_live
        result = await step(runner)
        await runtime.close()
        return result

    assert run(play()).step_index == 1


def test_slow_environments_have_a_thread_each_while_there_are_threads() -> None:
    async def play() -> int:
        runtime = local_runtime(fresh(), threads=6)
        await runtime.start()
        runners = await open_sessions(runtime, 1)
        await reset(runners[0])
        for _ in range(4):
            await step(runners[0], "rest")
        runners += await open_sessions(runtime, 7)
        began = [await reset(runner) for runner in runners]
        await runtime.close()
        return len({result.observation["runs_in"] for result in began})

    assert run(play()) == 6


class HangsWhenMade(ScriptedWorker):
    def __init__(self) -> None:
        super().__init__()
        self.perform("hang")


class SlowlyMade(ScriptedWorker):
    def __init__(self) -> None:
        super().__init__()
        self.perform("rest briefly")


@pytest.mark.slow  # opens many sessions
def test_closed_sessions_leave_no_threads_and_no_environments() -> None:
    env_class = fresh(SlowlyMade)
    before = set(threading.enumerate())

    async def play() -> None:
        runtime = local_runtime(env_class, threads=8)
        await runtime.start()
        for _ in range(10):
            runners = await open_sessions(runtime, 20)
            await asyncio.gather(*[reset(runner) for runner in runners])
            assert len(set(threading.enumerate()) - before) == 8
            await asyncio.gather(*[runner.close() for runner in runners])
            await until(lambda: len(set(threading.enumerate()) - before) <= 2)
        factory = runtime._maker._factory
        assert (factory._made, factory._ids) == ({}, set())
        await runtime.close()

    run(play())

    assert set(threading.enumerate()) <= before
    assert [env_class.closed.acquire(blocking=False) for _ in range(201)] == [True] * 200 + [False]


def test_a_session_is_closed_in_bounded_time_though_its_call_hangs() -> None:
    env_class = fresh()

    async def play() -> None:
        runtime = local_runtime(env_class)
        await runtime.start()
        (runner,) = await open_sessions(runtime, timeout_s=0.05)
        await reset(runner)
        hung = asyncio.ensure_future(step(runner, "hang"))
        await until(env_class.hung.is_set)
        await runner.close()
        with pytest.raises(ClosedError, match="was closed while its step"):
            await hung
        env_class.held.set()
        await until(lambda: env_class.closed.acquire(blocking=False))
        await runtime.close()
        assert runtime.health.stuck == 0

    run(play())


def test_an_environment_that_is_made_too_late_is_closed() -> None:
    env_class = fresh(HangsWhenMade)

    async def play() -> None:
        runtime = local_runtime(env_class)
        env_class.held.set()
        await runtime.start()
        (first,) = await open_sessions(runtime)
        env_class.held.clear()
        env_class.hung.clear()
        opening = asyncio.ensure_future(open_sessions(runtime))
        await until(env_class.hung.is_set)
        opening.cancel()
        await asyncio.wait([opening])
        env_class.held.set()
        await until(lambda: env_class.closed.acquire(blocking=False))
        (second,) = await open_sessions(runtime)
        assert (await reset(second)).step_index == 0
        assert (await reset(first)).step_index == 0
        await runtime.close()

    run(play())


def test_an_environment_that_takes_too_long_to_make_does_not_block_others() -> None:
    env_class = fresh(HangsWhenMade)

    async def play() -> None:
        runtime = local_runtime(env_class)
        env_class.held.set()
        await runtime.start()
        (first,) = await open_sessions(runtime)
        env_class.held.clear()
        with pytest.raises(DeadlineError, match="Making 'worker' took longer"):
            await open_sessions(runtime, timeout_s=0.05)
        assert runtime.health.stuck == 1
        assert (await reset(first)).step_index == 0
        env_class.held.set()
        assert (await reset((await open_sessions(runtime))[0])).step_index == 0
        await until(lambda: runtime.health.stuck == 0)
        await until(lambda: env_class.closed.acquire(blocking=False))
        await runtime.close()

    run(play())

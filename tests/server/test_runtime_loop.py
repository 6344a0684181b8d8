"""Async environments of a server run on its event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest
from server_runtimes import (
    AsyncScriptedWorker,
    ScriptedWorker,
    fresh,
    local_runtime,
    open_sessions,
    reset,
    step,
    until,
)

from envweave.errors import EnvironmentLostError
from envweave.session import episode_seed


def run(test: Any) -> Any:
    return asyncio.run(asyncio.wait_for(test, 60.0))


def test_coroutines_run_on_the_loop_though_they_are_made_in_a_thread() -> None:
    async def play() -> dict[str, Any]:
        runtime = local_runtime(fresh(AsyncScriptedWorker))
        await runtime.start()
        (runner,) = await open_sessions(runtime)
        await reset(runner)
        result = await step(runner)
        await runtime.close()
        return result.observation

    shown = run(play())

    assert shown["runs_in"] == threading.get_ident()
    assert shown["made_in"] != threading.get_ident()


def test_a_coroutine_past_its_deadline_ends_the_episode_and_others_continue() -> None:
    async def play() -> tuple[Any, Any, Any]:
        runtime = local_runtime(fresh(AsyncScriptedWorker))
        await runtime.start()
        hangs, neighbour = await open_sessions(runtime, 2)
        await reset(hangs, seed=7)
        await reset(neighbour)
        late = asyncio.ensure_future(step(hangs, "hang", 0.1))
        stepped = await step(neighbour)
        assert not late.done()
        again = await late and await reset(hangs)
        await runtime.close()
        return late.result(), stepped, again

    late, stepped, again = run(play())

    assert (late.end.reason, late.end.blame) == ("timeout", "environment")
    assert stepped.step_index == 1
    assert again.info["seed"] == episode_seed(7, 1)


def test_a_time_limit_is_for_one_call_only() -> None:
    async def play() -> Any:
        runtime = local_runtime(fresh(AsyncScriptedWorker))
        await runtime.start()
        (runner,) = await open_sessions(runtime, autoreset=True)
        await reset(runner)
        assert (await step(runner, "hang", 0.05)).end.reason == "timeout"
        hung = asyncio.ensure_future(step(runner, "hang"))
        await asyncio.wait([hung], timeout=0.2)
        is_done = hung.done()
        hung.cancel()
        await asyncio.wait([hung])
        await runtime.close()
        return is_done

    assert run(play()) is False


def test_coroutines_that_exit_end_their_episode_and_not_the_server() -> None:
    async def play() -> tuple[Any, Any]:
        runtime = local_runtime(fresh(AsyncScriptedWorker))
        await runtime.start()
        (runner,) = await open_sessions(runtime, autoreset=True)
        await reset(runner, seed=7)
        ended = await step(runner, "exit")
        after = await step(runner)
        await runtime.close()
        return ended, after

    ended, after = run(play())

    assert (ended.end.reason, ended.end.blame) == ("error", "environment")
    assert ended.ready.initial_info["seed"] == episode_seed(7, 1)
    assert after.step_index == 1


class HalfAsync(ScriptedWorker):
    async def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        return ScriptedWorker.reset(self, seed=seed)


def test_a_plain_step_runs_in_a_thread_though_its_reset_is_a_coroutine() -> None:
    env_class = fresh(HalfAsync)

    async def play() -> tuple[Any, Any]:
        runtime = local_runtime(env_class)
        await runtime.start()
        (runner,) = await open_sessions(runtime)
        await reset(runner)
        result = await step(runner)
        late = await step(runner, "hang", 0.05)
        env_class.held.set()
        await until(lambda: runtime.health.stuck == 0)
        await runtime.close()
        return result, late

    result, late = run(play())

    assert result.observation["runs_in"] != threading.get_ident()
    assert late.end.reason == "timeout"


class ExitsInReset(AsyncScriptedWorker):
    async def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        raise SystemExit(4)


def test_a_reset_that_exits_is_lost() -> None:
    async def play() -> None:
        runtime = local_runtime(fresh(ExitsInReset))
        await runtime.start()
        (runner,) = await open_sessions(runtime)
        with pytest.raises(EnvironmentLostError, match="SystemExit: 4"):
            await reset(runner)
        await runtime.close()

    run(play())


def test_a_coroutine_environment_that_failed_is_replaced_by_one_made_in_a_thread() -> None:
    async def play() -> tuple[Any, Any]:
        runtime = local_runtime(fresh(AsyncScriptedWorker))
        await runtime.start()
        (runner,) = await open_sessions(runtime)
        await reset(runner, seed=7)
        failed = await step(runner, "raise")
        again = await reset(runner)
        await runtime.close()
        return failed, again

    failed, again = run(play())

    assert failed.end.reason == "error"
    assert again.observation["made_in"] != threading.get_ident()
    assert again.info["seed"] == episode_seed(7, 1)


class Stubborn(AsyncScriptedWorker):
    async def step(self, action: str) -> Any:  # type: ignore[override]
        while action == "hang" and not type(self).held.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.005)
        return ScriptedWorker.step(self, "go")


def test_a_coroutine_that_cannot_be_cancelled_counts_as_stuck_until_it_ends() -> None:
    env_class = fresh(Stubborn)

    async def play() -> int:
        runtime = local_runtime(env_class)
        await runtime.start()
        (runner,) = await open_sessions(runtime)
        await reset(runner)
        await step(runner, "hang", 0.05)
        await reset(runner)
        stuck = runtime.health.stuck
        env_class.held.set()
        await until(lambda: runtime.health.stuck == 0)
        await runtime.close()
        return stuck

    assert run(play()) == 1

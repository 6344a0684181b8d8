"""Worker processes of a server may crash; only their own sessions are lost."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from server_runtimes import (
    WAIT_S,
    Broken,
    DiesWhenMade,
    ScriptedWorker,
    ShowsProcess,
    open_sessions,
    reset,
    step,
    until,
    worker_runtime,
)

import envweave as ew
from envweave.errors import (
    CapacityError,
    DefinitionError,
    EnvironmentLostError,
    OptionError,
    StateFailedError,
    TaskError,
)
from envweave.registry import ReadyMade
from envweave.session import episode_seed


def run(test: Any) -> Any:
    return asyncio.run(asyncio.wait_for(test, 60.0))


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.slow  # starts server processes
def test_a_segfault_loses_the_sessions_of_one_worker_and_it_is_replaced() -> None:
    async def play() -> None:
        runtime = worker_runtime(ShowsProcess, workers=2)
        await runtime.start()
        runners = await open_sessions(runtime, 4)
        began = [await reset(runner, seed=7) for runner in runners]
        pids = [result.observation["pid"] for result in began]
        assert sorted(pids.count(pid) for pid in pids) == [2, 2, 2, 2]
        assert os.getpid() not in pids
        mate = next(i for i in range(1, 4) if pids[i] == pids[0])
        others = [i for i in range(1, 4) if pids[i] != pids[0]]

        crashed = await step(runners[0], "segfault")

        cause = f"its worker process {pids[0]} was killed by SIGSEGV"
        assert (crashed.end.reason, crashed.end.blame) == ("lost", "infrastructure")
        assert crashed.end.cause == cause
        assert (crashed.step_index, crashed.observation) == (1, began[0].observation)
        assert [(await step(runners[i])).step_index for i in others] == [1, 1]
        assert not runners[mate].is_live
        with pytest.raises(StateFailedError, match="SIGSEGV"):
            await runners[mate].call("state", {}, None)
        assert (await step(runners[mate])).end.cause == cause

        again = [await reset(runners[i]) for i in (0, mate)]

        assert [result.info["seed"] for result in again] == [episode_seed(7, 1)] * 2
        assert again[0].episode_id == began[0].episode_id.replace("-0", "-1")
        await until(lambda: runtime.health.workers == 2)
        assert runtime.health.replaced == 1
        replacement = (await open_sessions(runtime))[0]
        assert (await reset(replacement)).observation["pid"] not in pids
        await runtime.close()
        assert all(map(is_gone, pids))

    run(play())


@pytest.mark.slow  # starts server processes
def test_with_autoreset_the_next_episode_begins_in_another_worker_in_the_same_result() -> None:
    async def play() -> tuple[Any, Any]:
        runtime = worker_runtime(ShowsProcess)
        await runtime.start()
        (runner,) = await open_sessions(runtime, autoreset=True)
        await reset(runner, seed=7)
        lost = await step(runner, "die")
        after = await step(runner)
        await runtime.close()
        return lost, after

    lost, after = run(play())

    assert "was killed by SIGKILL" in lost.end.cause
    assert lost.ready.initial_info["seed"] == episode_seed(7, 1)
    assert (after.step_index, after.episode_id) == (1, lost.ready.episode_id)


@pytest.mark.slow  # starts server processes
def test_a_worker_gives_the_same_results_as_the_servers_own_process(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def play() -> None:
        runtime = worker_runtime(ShowsProcess)
        await runtime.start()
        assert runtime.description.name == "ShowsProcess"
        assert await runtime.tasks("train", 1, 5) == [ew.Task("b", data={"x": 1})]
        assert await runtime.task("a") == ew.Task("a")
        with pytest.raises(TaskError, match="There is no task 'c'"):
            await runtime.task("c")
        (runner,) = await open_sessions(runtime)
        with pytest.raises(OptionError, match="Did you mean 'seed'"):
            await runner.call("reset", {"sede": 1}, None)
        began = await reset(runner, task="b")
        assert (began.task_id, runner.is_live) == ("b", True)
        await step(runner, "print")
        failed = await step(runner, "raise")
        assert (failed.end.reason, runner.is_live) == ("error", False)
        with pytest.raises(EnvironmentLostError, match="SIGKILL"):
            await reset(runner, options={"do": "die"})
        assert (await reset(runner)).step_index == 0
        await runner.close()
        await runner.close()
        await runtime.close()
        await runtime.close()

    run(play())

    printed = capfd.readouterr()
    assert (printed.out, "printed on request" in printed.err) == ("", True)


@pytest.mark.slow  # starts server processes
def test_a_worker_with_a_call_that_cannot_be_stopped_is_replaced_when_it_is_empty() -> None:
    async def play() -> None:
        runtime = worker_runtime(ShowsProcess)
        await runtime.start()
        (runner,) = await open_sessions(runtime)
        pid = (await reset(runner)).observation["pid"]

        late = await step(runner, "hang", 0.05)

        assert late.end.reason == "timeout"
        await until(lambda: runtime.health.stuck == 1)
        await until(lambda: runtime.health.workers == 2)
        assert (await reset(runner)).observation["pid"] == pid
        (other,) = await open_sessions(runtime)
        assert (await reset(other)).observation["pid"] != pid
        await runner.close()
        await until(lambda: is_gone(pid) and runtime.health.workers == 1)
        assert runtime.health.stuck == 0
        await runtime.close()

    run(play())


@pytest.mark.slow  # starts server processes
def test_a_worker_with_too_many_stuck_calls_is_ended_at_once() -> None:
    async def play() -> Any:
        runtime = worker_runtime(ShowsProcess, max_stuck=0)
        await runtime.start()
        (hangs, other) = await open_sessions(runtime, 2)
        await reset(hangs)
        await reset(other)
        await step(hangs, "hang", 0.05)
        await until(lambda: not other.is_live)
        lost = await step(other)
        await runtime.close()
        return lost

    assert "could not be stopped" in run(play()).end.cause


@pytest.mark.slow  # starts server processes
def test_opening_a_session_reports_workers_that_die_at_the_start(
    tmp_path: Path,
) -> None:
    sign = tmp_path / "sign"

    async def play() -> None:
        runtime = worker_runtime(DiesWhenMade, kwargs={"sign": str(sign)})
        await runtime.start()
        (runner,) = await open_sessions(runtime)
        await reset(runner)
        sign.touch()
        await step(runner, "die")
        with pytest.raises(EnvironmentLostError, match=r"could not start.*SIGKILL"):
            await reset(runner)
        with pytest.raises(CapacityError, match=r"no worker process: .*SIGKILL"):
            await open_sessions(runtime)
        sign.unlink()
        await until(lambda: runtime.health.workers == 1)
        assert (await reset(runner)).step_index == 0
        await runtime.close()

    run(play())


def test_environments_that_cannot_be_made_fail_the_start() -> None:
    async def play() -> None:
        runtime = worker_runtime(Broken)
        with pytest.raises(DefinitionError, match="no licence"):
            await runtime.start()

    run(play())


def test_one_object_cannot_be_served_by_workers() -> None:
    with pytest.raises(OptionError, match="Serve its class"):
        worker_runtime(ReadyMade(ScriptedWorker()))


FRONT = """
import asyncio, sys
from envweave.registry import EnvSpec
from envweave.server.options import ServerOptions
from envweave.server.runtime.workers import WorkerRuntime

async def main():
    spec = EnvSpec("counter", "envweave.examples.counter:CounterEnv")
    place = WorkerRuntime(spec, {}, ServerOptions(workers=2))
    await place.start()
    print(*[worker.pid for worker in place._workers], flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.slow  # starts server processes
def test_a_server_that_is_killed_leaves_no_worker() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FRONT], stdout=subprocess.PIPE, text=True
    ) as front:
        assert front.stdout is not None
        pids = [int(pid) for pid in front.stdout.readline().split()]

        front.send_signal(signal.SIGKILL)

        front.wait()
        ends_s = time.monotonic() + WAIT_S
        while not all(map(is_gone, pids)) and time.monotonic() < ends_s:
            time.sleep(0.01)
    assert len(pids) == 2
    assert all(map(is_gone, pids))

"""Messages of a server to its workers, and silent workers."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from typing import Any

import pytest
from server_runtimes import (
    ScriptedWorker,
    ShowsProcess,
    local_runtime,
    open_sessions,
    reset,
    step,
    until,
    worker_runtime,
)

import envweave as ew
from envweave.server.runtime import worker_connection
from envweave.server.runtime.worker_host import RuntimeSessions
from envweave.workers import launch


def run(test: Any) -> Any:
    return asyncio.run(asyncio.wait_for(test, 60.0))


class Blocking(ew.Environment):
    """Blocks its worker's event loop, as no coroutine should."""

    async def reset(self) -> int:
        return os.getpid()

    async def step(self, action: float) -> int:
        time.sleep(action)  # as no coroutine should
        return os.getpid()


class SlowlyMade(ShowsProcess):
    """Takes long to construct once a call was abandoned."""

    def __init__(self) -> None:
        super().__init__()
        if type(self).hung.is_set():
            time.sleep(0.7)


class Counting(ew.Environment):
    """Has tasks whose data is not JSON-like."""

    tasks = ew.Tasks({"train": [ew.Task("a", data={1: "one", (2, 3): object})]})  # type: ignore[dict-item]

    def reset(self, *, task: Any = None) -> int:
        return 0

    def step(self, action: int) -> int:
        return action


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_connection, "OVERDUE_S", 0.0)
    monkeypatch.setattr(worker_connection, "SILENT_S", 0.5)
    monkeypatch.setattr(worker_connection, "CLOSE_S", 0.2)


@pytest.mark.slow  # starts server processes
@pytest.mark.usefixtures("impatient")
def test_a_worker_that_answers_pings_is_kept_although_a_call_is_overdue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[str] = []
    notify = worker_connection.ServerWorker.notify

    def recording(self: Any, method: str, *args: Any, **number: Any) -> None:
        sent.append(method)
        notify(self, method, *args, **number)

    monkeypatch.setattr(worker_connection.ServerWorker, "notify", recording)

    async def play() -> None:
        runtime = worker_runtime(SlowlyMade)
        await runtime.start()
        (slow,) = await open_sessions(runtime, autoreset=True, timeout_s=1.0)
        (mate,) = await open_sessions(runtime)
        pid = (await reset(mate)).observation["pid"]
        await reset(slow)

        late = await step(slow, "hang", 1.0)

        assert "ping" in sent
        assert (late.end.reason, late.ready is not None) == ("timeout", True)
        assert (await step(mate)).observation["pid"] == pid
        assert runtime.health.replaced == 1  # it is to have no more sessions, with one that hangs
        await runtime.close()

    run(play())


@pytest.mark.slow  # starts server processes
@pytest.mark.usefixtures("impatient")
def test_closing_a_session_of_a_worker_with_a_blocked_loop_ends_the_worker() -> None:
    async def play() -> Any:
        runtime = worker_runtime(Blocking)
        await runtime.start()
        (held, other) = await open_sessions(runtime, 2)
        pid = (await reset(held)).observation
        await reset(other)
        stepping = asyncio.ensure_future(step(held, 1000.0))
        await asyncio.sleep(0)

        await asyncio.wait_for(other.close(), 20.0)

        lost = await stepping
        await until(lambda: runtime.health.workers == 1)
        assert (await reset(held)).observation != pid
        await runtime.close()
        return lost

    lost = run(play())

    assert lost.end.reason == "lost"
    assert "was ended" in lost.end.cause


@pytest.mark.slow  # starts server processes
def test_a_worker_is_replaced_once_a_process_can_be_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play() -> None:
        runtime = worker_runtime(ShowsProcess)
        await runtime.start()
        (runner,) = await open_sessions(runtime)
        pid = (await reset(runner)).observation["pid"]
        tried = asyncio.Event()
        popen = launch.subprocess.Popen

        def full(*_: Any, **__: Any) -> Any:
            tried.set()
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(launch.subprocess, "Popen", full)
        os.kill(pid, signal.SIGKILL)
        await asyncio.wait_for(tried.wait(), 20.0)
        with pytest.raises(ew.errors.CapacityError, match="Too many open files"):
            await open_sessions(runtime)
        monkeypatch.setattr(launch.subprocess, "Popen", popen)

        await until(lambda: runtime.health.workers == 1)

        assert (await reset(runner)).step_index == 0
        await runtime.close()

    run(play())


@pytest.mark.slow  # starts server processes
def test_tasks_with_any_data_are_the_same_from_a_worker_as_from_the_servers_own_process() -> None:
    async def play() -> list[Any]:
        runtime = worker_runtime(Counting)
        await runtime.start()
        fetched = [*await runtime.tasks("train", 0, 5), await runtime.task("a")]
        await runtime.close()
        return fetched

    listed, one = run(play())

    assert listed == one
    assert (one.id, one.data[1]) == ("a", "one")


def test_a_worker_forgets_sessions_that_could_not_be_made() -> None:
    class Fragile(ScriptedWorker):
        is_whole = True

        def __init__(self) -> None:
            super().__init__()
            if not Fragile.is_whole:
                raise RuntimeError("no licence")

    async def play() -> RuntimeSessions:
        sessions = RuntimeSessions(lambda _: None)
        sessions._runtime = local_runtime(Fragile)
        await sessions._runtime.start()
        (await open_sessions(sessions._runtime))[0].is_live
        Fragile.is_whole = False
        options = {"autoreset": False, "position": None}
        for number in range(5):
            opening = asyncio.ensure_future(sessions.call("open", number, options, None))
            await asyncio.sleep(0)
            await sessions.call("close", number, {}, None)
            with pytest.raises(ew.errors.DefinitionError):
                await opening
            await sessions.call("close", number, {}, None)
        await sessions._runtime.close()
        return sessions

    sessions = run(play())

    assert not sessions._unwanted
    assert not sessions._opening
    assert not sessions._runners

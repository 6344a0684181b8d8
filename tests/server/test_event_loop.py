"""The server's event loop: it steps environments itself, and outlives a step that hangs."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

import envweave as ew
from envweave.registry import EnvSpec
from envweave.server.app import AppState
from envweave.server.event_loop import SWITCH_S, ServerEventLoop
from envweave.server.listen import listen
from envweave.server.options import ServerOptions
from envweave.server.run import Serving
from envweave.server.runtime.local import LocalRuntime

pytestmark = pytest.mark.slow  # waits for delays of a server

WAIT_S = 20.0


@dataclass
class Do(ew.Action):
    what: str = "step"


@dataclass
class Seen(ew.Observation):
    count: int = 0
    thread: int = 0


class Places(ew.Environment):
    """Shows in which thread it runs. Other tests must not set its gate meanwhile."""

    gate = threading.Event()
    is_in = threading.Event()

    def __init__(self) -> None:
        self.count = 0

    def reset(self, seed: int | None = None) -> Seen:
        self.count = 0
        return Seen(0, threading.get_ident())

    def step(self, action: Do) -> Seen:
        self.count += 1
        if action.what == "hang":
            self.is_in.set()
            assert self.gate.wait(WAIT_S)
        elif action.what == "burn":
            self.is_in.set()
            while not self.gate.is_set():
                pass
        elif action.what == "nap":
            time.sleep(0.003)
        elif action.what == "asyncio":
            asyncio.run(asyncio.sleep(0))
        return Seen(self.count, threading.get_ident())


@contextmanager
def serving(env: Any = Places, **options: Any) -> Iterator[tuple[str, Serving]]:
    """Run a real server in threads of this process."""
    chosen = ServerOptions(**options)
    state = AppState(lambda: LocalRuntime(EnvSpec("places", env), {}, chosen), chosen)
    ready: list[str] = []
    is_ready = threading.Event()

    def on_ready(url: str) -> None:
        ready.append(url)
        is_ready.set()

    server = Serving(state, listen("127.0.0.1", 0), on_ready)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert is_ready.wait(WAIT_S)
        yield ready[0], server
    finally:
        Places.gate.set()
        server.stop()
        thread.join(WAIT_S)
        assert not thread.is_alive()


@pytest.fixture(autouse=True)
def _closed_gate() -> Iterator[None]:
    Places.gate.clear()
    Places.is_in.clear()
    yield
    Places.gate.set()


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    out: list[Any] = []
    thread = threading.Thread(target=lambda: out.append(work()))
    thread.start()
    return thread, out


def eventually(is_so: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + WAIT_S
    while not is_so() and time.monotonic() < until_s:
        time.sleep(0.001)
    return is_so()


def loop_thread_names() -> set[int | None]:
    return {one.ident for one in threading.enumerate() if one.name == "envweave-loop"}


def test_a_quick_step_runs_where_its_frame_is_read() -> None:
    with serving() as (url, _), ew.make(url) as env:
        env.reset()
        used = {env.step(Do()).observation.thread for _ in range(20)}

        assert used <= loop_thread_names()


@pytest.mark.parametrize("how", ["hang", "burn"])
def test_a_step_that_hangs_costs_its_own_thread_only(how: str) -> None:
    with serving() as (url, server), ew.make(url) as stuck, ew.make(url) as other:
        stuck.reset()
        before = other.reset().observation.thread
        thread, out = in_thread(lambda: stuck.step(Do(how)))
        assert Places.is_in.wait(WAIT_S)

        counts = [other.step(Do()).observation for _ in range(50)]
        health = server._state.service.runtime.health
        Places.gate.set()
        thread.join(WAIT_S)

        assert [one.count for one in counts] == list(range(1, 51))
        assert counts[-1].thread != before
        assert (health.moves, health.delayed_s > 0) == (1, True)
        assert out[0].observation.count == 1
        assert stuck.step(Do()).observation.count == 2


def test_metrics_count_what_was_left_behind() -> None:
    with serving() as (url, _), ew.make(url) as env:
        env.reset()
        thread, _out = in_thread(lambda: env.step(Do("hang")))
        assert Places.is_in.wait(WAIT_S)
        time.sleep(0.1)
        with urllib.request.urlopen(f"{url}/metrics") as reply:
            shown = reply.read().decode()
        Places.gate.set()
        thread.join(WAIT_S)

    assert "envweave_loop_moves_total 1.0\n" in shown
    assert "envweave_loop_delay_seconds_total 0.0\n" not in shown


def test_an_environment_stays_in_the_thread_that_it_blocks() -> None:
    with serving() as (url, _), ew.make(url) as env:
        made_in = env.reset().observation.thread
        thread, out = in_thread(lambda: env.step(Do("hang")))
        assert Places.is_in.wait(WAIT_S)
        time.sleep(0.05)
        Places.gate.set()
        thread.join(WAIT_S)

        used = {out[0].observation.thread, *(env.step(Do()).observation.thread for _ in range(9))}

        assert used == {made_in}


def test_environments_that_turn_out_slow_keep_their_thread_and_the_loop_leaves() -> None:
    with serving() as (url, server), ew.make(url) as env:
        made_in = env.reset().observation.thread

        used = {env.step(Do("nap")).observation.thread for _ in range(12)}

        assert used == {made_in}
        loop = server._state.service.runtime._pool.own_loop  # type: ignore[attr-defined] # local
        assert loop.thread.ident != made_in


def test_a_deadline_holds_for_a_step_that_the_loop_runs() -> None:
    with serving() as (url, _), ew.make(url, timeout_s=0.2) as env:
        env.reset()

        result = env.step(Do("hang"))

        assert (result.end.reason, result.truncated) == ("timeout", True)
        Places.gate.set()
        assert env.reset().observation.count == 0


def test_the_authors_code_may_run_an_event_loop() -> None:
    with serving() as (url, _), ew.make(url) as env:
        env.reset()

        assert env.step(Do("asyncio")).observation.count == 1


def test_the_server_stops_while_a_step_hangs() -> None:
    with serving(timeout_s=0.2, drain_s=0.1) as (url, server):
        env = ew.make(url)
        env.reset()
        env.step(Do("hang"))

        server.stop()

        env.close()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_the_switch_interval_is_restored_when_the_call_returns(is_stopped: bool) -> None:
    assert eventually(lambda: sys.getswitchinterval() > SWITCH_S)  # calls of earlier tests
    before = sys.getswitchinterval()

    with serving() as (url, server), ew.make(url) as env:
        env.reset()
        thread, _out = in_thread(lambda: env.step(Do("hang")))
        assert eventually(lambda: sys.getswitchinterval() == SWITCH_S)
        if is_stopped:
            server.stop()
        Places.gate.set()
        thread.join(WAIT_S)

    assert eventually(lambda: sys.getswitchinterval() == before)


class Held:
    """A call that waits until it may continue."""

    since = 0.0

    def __init__(self, during: Callable[[], Any] = lambda: None) -> None:
        self.left: threading.Thread | None = None
        self.served, self.go_on, self.is_finished = threading.Event(), threading.Event(), False
        self._during = during

    def run(self) -> None:
        self.since = time.monotonic()
        self._during()
        assert self.go_on.wait(WAIT_S)

    def finish(self) -> None:
        self.is_finished = True

    def leave_behind(self, thread: threading.Thread) -> None:
        self.left = thread

    def serve_behind(self) -> None:
        self.served.set()


def test_everything_else_on_the_loop_goes_on_in_its_new_thread() -> None:
    """Timers, tasks and callbacks from threads belong to the loop, not to a thread."""

    async def main() -> tuple[Held, list[str]]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ServerEventLoop)
        call, seen = Held(), []
        loop.call_later(0.1, lambda: seen.append("timer"))
        task = asyncio.ensure_future(asyncio.sleep(0.05, "task"))
        threading.Timer(0.05, lambda: loop.call_soon_threadsafe(seen.append, "thread")).start()
        loop.calls.append(call)
        seen.append(await task)
        await asyncio.sleep(0.2)
        call.go_on.set()
        assert await asyncio.to_thread(call.served.wait, WAIT_S)
        return call, seen

    with asyncio.Runner(loop_factory=ServerEventLoop) as runner:
        call, seen = runner.run(main())

    assert call.left is not None
    assert not call.is_finished
    assert sorted(seen) == ["task", "thread", "timer"]


def test_a_call_that_returns_while_another_runs_does_not_take_the_loop_back() -> None:
    async def main() -> tuple[Held, Held]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ServerEventLoop)
        first = Held()
        loop.calls.append(first)
        while first.left is None:
            await asyncio.sleep(0.001)

        def let_the_first_return() -> None:
            first.go_on.set()
            assert first.served.wait(WAIT_S)

        second = Held(let_the_first_return)
        second.go_on.set()
        loop.calls.append(second)
        while not second.is_finished and second.left is None:
            await asyncio.sleep(0.001)
        return first, second

    with asyncio.Runner(loop_factory=ServerEventLoop) as runner:
        first, second = runner.run(main())

    assert not first.is_finished
    assert first.served.is_set()
    assert second.is_finished != (second.left is not None)

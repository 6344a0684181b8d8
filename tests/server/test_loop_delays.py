"""What a call of an author's code may delay on the server's loop, and where it runs afterwards."""

from __future__ import annotations

import gc
import threading
import time
import urllib.request
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from servers import served_by_us

import envweave as ew
from envweave.server.event_loop import ServerEventLoop
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


def compute() -> None:
    """Take longer than `LIMIT_S`, without giving way to other threads."""
    sum(range(20_000_000))


LIMIT_S = 0.1


class Paced(ew.Environment):
    """Takes its time as its actions say. Each test makes a subclass with signals of its own."""

    gate: threading.Event
    is_in: threading.Event
    resets: list[int]
    steps: list[int]
    reset_s = 0.0

    def __init__(self) -> None:
        self.count = 0

    def reset(self, seed: int | None = None, options: Any = None) -> Seen:
        self.count = 0
        time.sleep(self.reset_s)
        if options:
            compute()
        self.resets.append(1)
        return Seen(0, threading.get_ident())

    def step(self, action: Do) -> Seen:
        self.count += 1
        self.steps.append(1)
        if action.what == "compute":
            compute()
        elif action.what == "hang":
            self.is_in.set()
            assert self.gate.wait(WAIT_S)
        elif action.what != "step":
            time.sleep(float(action.what))
        return Seen(self.count, threading.get_ident())


def paced(**changed: Any) -> Any:
    """Return a class with signals of its own."""
    signals = {"gate": threading.Event(), "is_in": threading.Event(), "resets": [], "steps": []}
    return type("Paced", (Paced,), {**signals, **changed})


class Server:
    """A server in threads of this process."""

    def __init__(self, url: str, runtime: LocalRuntime) -> None:
        self.url = url
        self.runtime = runtime

    @property
    def loop(self) -> ServerEventLoop:
        loop = self.runtime._pool.own_loop
        assert loop is not None
        return loop

    @property
    def loop_thread(self) -> int | None:
        return self.loop.thread.ident


@contextmanager
def serving(env: Any, **options: Any) -> Iterator[Server]:
    with served_by_us(env, **options) as (url, runtime):
        try:
            yield Server(url, runtime)
        finally:
            env.gate.set()


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


def metric(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=WAIT_S) as reply:
        lines = reply.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


# Deadlines


def test_a_step_that_ends_past_its_deadline_ends_as_a_timeout() -> None:
    """Also if it was not noticed before it ended."""
    with serving(paced()) as server, ew.make(server.url, timeout_s=LIMIT_S) as env:
        env.reset()

        end = env.step(Do("compute")).end

        assert (end.reason, end.blame) == ("timeout", "environment")
        assert end.cause == f"step() took longer than timeout_s={LIMIT_S:g}"
        env.reset()
        assert [env.step(Do()).observation.count for _ in range(3)] == [1, 2, 3]


def test_in_a_vector_only_the_step_past_its_deadline_is_lost() -> None:
    with (
        serving(paced()) as server,
        ew.make_vector(server.url, num_envs=3, timeout_s=LIMIT_S) as venv,
    ):
        venv.reset()

        late = venv.step([Do(), Do("compute"), Do()])

        assert [late[row].end and late[row].end.reason for row in range(3)] == [
            None,
            "timeout",
            None,
        ]
        venv.reset(ids=[1])
        assert list(venv.step([Do()] * 3).current["count"]) == [2, 1, 2]


def test_a_reset_that_ends_past_its_deadline_fails_and_the_next_one_begins_anew() -> None:
    with serving(paced()) as server, ew.make(server.url, timeout_s=LIMIT_S) as env:
        with pytest.raises(ew.errors.EnvironmentLostError, match="took longer than"):
            env.reset(options={"long": True})

        env.reset()
        assert env.step(Do()).observation.count == 1


# Others wait for a moment only


def test_others_are_answered_between_slow_resets() -> None:
    env_class = paced(reset_s=0.008)
    with serving(env_class) as server, ew.make_vector(server.url, num_envs=128) as venv:
        thread, _ = in_thread(venv.reset)
        assert eventually(lambda: bool(env_class.resets))

        with urllib.request.urlopen(f"{server.url}/health", timeout=WAIT_S) as reply:
            reply.read()
        done = len(env_class.resets)

        thread.join(WAIT_S)
        assert done < 64  # of 128
        assert metric(server.url, "envweave_loop_delay_seconds_total") > 0.005


def test_others_are_answered_in_the_middle_of_a_long_frame() -> None:
    env_class = paced()
    with serving(env_class) as server, ew.make_vector(server.url, num_envs=256) as venv:
        venv.reset()
        thread, out = in_thread(lambda: venv.step([Do("0.0005")] * 256))
        assert eventually(lambda: bool(env_class.steps))

        with urllib.request.urlopen(f"{server.url}/health", timeout=WAIT_S) as reply:
            reply.read()
        done = len(env_class.steps)

        thread.join(WAIT_S)
        assert done < 200  # of 256
        assert list(out[0].current["count"]) == [1] * 256


def test_a_hung_call_elsewhere_does_not_keep_slow_steps_on_the_loop() -> None:
    env_class = paced()
    with (
        serving(env_class) as server,
        ew.make(server.url) as stuck,
        ew.make(server.url) as other,
    ):
        stuck.reset()
        thread, _ = in_thread(lambda: stuck.step(Do("hang")))
        assert env_class.is_in.wait(WAIT_S)
        other.reset()
        assert eventually(lambda: other.step(Do()).observation.thread == server.loop_thread)
        before_s = server.runtime.health.delayed_s

        used = [other.step(Do("0.006")).observation.thread for _ in range(10)]

        assert used[-1] != server.loop_thread
        assert server.runtime.health.delayed_s > before_s
        env_class.gate.set()
        thread.join(WAIT_S)


# The way back


@pytest.mark.parametrize("before", ["0.04", "0.003"])
def test_an_environment_that_is_quick_again_runs_on_the_loop_again(before: str) -> None:
    """It stays in its thread; the loop comes back to it."""
    with serving(paced()) as server, ew.make(server.url) as env:
        made_in = env.reset().observation.thread
        for _ in range(8):
            env.step(Do(before))
        assert made_in != server.loop_thread
        used = set()

        def runs_on_loop() -> bool:
            used.add(thread := env.step(Do()).observation.thread)
            return thread == server.loop_thread

        assert eventually(runs_on_loop)
        assert used == {made_in}


def test_a_loop_that_comes_and_goes_often_keeps_no_stack() -> None:
    with serving(paced()) as server, ew.make(server.url) as env:
        env.reset()
        for _ in range(20):
            for _ in range(7):
                env.step(Do("0.0015"))
            assert eventually(lambda: env.step(Do()).observation.thread == server.loop_thread)

        assert env.step(Do()).observation.count > 140


def test_a_vector_split_by_a_slow_step_is_together_again() -> None:
    with serving(paced()) as server, ew.make_vector(server.url, num_envs=8) as venv:
        venv.reset()
        venv.step([Do("0.1") if row == 3 else Do() for row in range(8)])

        def is_together() -> bool:
            return set(venv.step([Do()] * 8).current["thread"]) == {server.loop_thread}

        assert eventually(is_together)


def test_environments_of_a_fresh_server_are_together_whatever_the_first_one_took() -> None:
    env_class = paced()

    class SlowAtFirst(env_class):  # type: ignore[misc, valid-type]
        made = 0

        def __init__(self) -> None:
            super().__init__()
            type(self).made += 1
            time.sleep(0.005 if self.made < 4 else 0.0)

    with serving(SlowAtFirst) as server, ew.make_vector(server.url, num_envs=8) as venv:
        venv.reset()

        used = set(venv.step([Do()] * 8).current["thread"])

        assert len(used) == 1


def test_a_finished_call_keeps_no_environment_alive() -> None:
    env_class = paced()
    made: list[weakref.ref[Any]] = []

    class Watched(env_class):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            made.append(weakref.ref(self))

    with serving(Watched) as server:
        with ew.make(server.url) as env:
            env.reset()
            env.step(Do("0.05"))

        def is_freed() -> bool:
            gc.collect()
            return made[0]() is None

        assert eventually(is_freed)


# Threads that are held up


def test_sessions_begin_while_steps_of_others_block_every_thread() -> None:
    env_class = paced()
    with serving(env_class, threads=2, max_sessions=64) as server, ExitStack() as stack:
        envs = [stack.enter_context(ew.make(server.url)) for _ in range(12)]
        for env in envs:
            env.reset()

        steps = [in_thread(lambda env=env: env.step(Do("0.2")).observation) for env in envs]
        late = stack.enter_context(ew.make(server.url))
        late.reset()
        done = [out[0].count for _, out in steps if out]

        assert len(done) < 12  # it did not wait for all of them
        for thread, _ in steps:
            thread.join(WAIT_S)
        assert [out[0].count for _, out in steps] == [1] * 12
        assert len({out[0].thread for _, out in steps}) <= 4  # two, and those of the loop

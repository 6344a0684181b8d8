"""Runtimes of a server's sessions, and environments to run in them without a server."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import envweave as ew
from envweave.registry import EnvSpec
from envweave.server.options import ServerOptions
from envweave.server.runtime.base import Health, Runtime, SessionOptions, SessionRuntime
from envweave.server.runtime.local import LocalRuntime
from envweave.server.runtime.workers import WorkerRuntime
from envweave.server.sessions import SessionTable
from envweave.wire.description import Description
from envweave.wire.messages import Call, Reply

WAIT_S = 20.0
"""How long to wait for what must happen."""


class ScriptedWorker(ew.Environment):
    """Does what its actions say, and shows the seed of its episode and the thread it runs in."""

    held = threading.Event()  # what hangs, hangs until then
    hung = threading.Event()  # something has begun to hang
    closed = threading.Semaphore(0)

    def __init__(self) -> None:
        self.made_in = threading.get_ident()
        self.seed: int | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.seed = seed
        if options is not None:
            self.perform(options["do"])
        return self.shown(), {}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.perform(action)
        return self.shown(), 1.0, action == "end", False, {}

    def shown(self) -> dict[str, Any]:
        return {"made_in": self.made_in, "runs_in": threading.get_ident(), "seed": self.seed}

    def perform(self, order: str) -> None:
        if order == "hang":
            type(self).hung.set()
            type(self).held.wait(WAIT_S)
        elif order == "rest":
            time.sleep(0.02)
        elif order == "rest briefly":
            time.sleep(0.003)
        elif order == "print":
            print("printed on request", flush=True)
        elif order == "raise":
            raise RuntimeError("on request")
        elif order == "exit":
            sys.exit(3)
        elif order == "segfault":
            ctypes.string_at(0)
        elif order == "die":
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def state(self) -> ew.State:
        if self.seed == 13:
            self.perform("hang")
        return ew.State()

    def close(self) -> None:
        type(self).closed.release()


class AsyncScriptedWorker(ScriptedWorker):
    """The same in coroutines."""

    async def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        return ScriptedWorker.reset(self, seed=seed)

    async def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # type: ignore[override]
        if action == "hang":
            await asyncio.sleep(WAIT_S)
        return ScriptedWorker.step(self, action)


class ShowsProcess(ScriptedWorker):
    """Shows which process it runs in."""

    tasks = ew.Tasks({"train": [ew.Task("a"), ew.Task("b", data={"x": 1})]})

    def reset(self, *, task: Any = None, seed: int | None = None, options: Any = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed, options=options)

    def shown(self) -> dict[str, Any]:
        return {**super().shown(), "pid": os.getpid()}


class DiesWhenMade(ShowsProcess):
    """Ends its process when it is made, once a file is there."""

    def __init__(self, sign: str) -> None:
        super().__init__()
        if Path(sign).exists():
            self.perform("die")


class Broken(ScriptedWorker):
    def __init__(self) -> None:
        raise RuntimeError("no licence")


def fresh(base: type[ScriptedWorker] = ScriptedWorker) -> Any:
    """Return a class with signals of its own."""
    signals = {
        "held": threading.Event(),
        "hung": threading.Event(),
        "closed": threading.Semaphore(0),
    }
    return type(base.__name__, (base,), signals)


def local_runtime(factory: Any, **options: Any) -> LocalRuntime:
    return LocalRuntime(EnvSpec("worker", factory), {}, ServerOptions(**options))


def worker_runtime(
    factory: Any, workers: int = 1, kwargs: Any = None, **options: Any
) -> WorkerRuntime:
    spec = EnvSpec("worker", factory)
    return WorkerRuntime(spec, kwargs or {}, ServerOptions(workers=workers, **options))


async def open_sessions(
    runtime: Runtime, count: int = 1, **session_options: Any
) -> list[SessionRuntime]:
    return [await runtime.open(SessionOptions(**session_options)) for _ in range(count)]


async def reset(runner: SessionRuntime, timeout_s: float | None = None, **wanted: Any) -> Any:
    return await asyncio.wait_for(runner.call("reset", wanted, timeout_s), WAIT_S)


async def step(runner: SessionRuntime, action: Any = "go", timeout_s: float | None = None) -> Any:
    params: Mapping[str, Any] = {"action": action}
    return await asyncio.wait_for(runner.call("step", params, timeout_s), WAIT_S)


async def until(claim: Callable[[], bool]) -> None:
    """Return when the claim is true; that it becomes so within `WAIT_S` is part of the test."""
    async with asyncio.timeout(WAIT_S):
        while not claim():
            await asyncio.sleep(0.002)


class CountingRunner:
    """Counts its calls. `step` of `{"action": "wait"}` goes on when `go_on` is set."""

    def __init__(self, runtime: CountingRuntime) -> None:
        self._runtime = runtime
        self.steps = 0
        self.is_live = False
        self.is_closed = False
        self.resets_itself = True
        self.go_on = asyncio.Event()

    async def call(self, method: str, params: Mapping[str, Any], timeout_s: float | None) -> Any:
        if method == "reset":
            self.is_live = True
        if method == "step":
            self.steps += 1
            if params["action"] == "wait":
                await self.go_on.wait()
            if params["action"] == "end":
                self.is_live = False
        return {"method": method, "steps": self.steps, "timeout_s": timeout_s}

    def stop_resetting(self) -> None:
        self.resets_itself = False

    async def close(self) -> None:
        self.is_closed = True


class CountingRuntime:
    """Runs `CountingRunner`s."""

    description = Description(
        name="Counting",
        env_id="counting",
        version="0",
        action={},
        observation={},
        state={},
        reset_takes=[],
    )
    health = Health()
    is_one_object = False

    def __init__(self) -> None:
        self.runners: list[CountingRunner] = []
        self.fails = False
        self.may_open = asyncio.Event()  # cleared, it lets them wait
        self.may_open.set()

    async def start(self) -> None: ...

    async def open(self, session_options: SessionOptions) -> CountingRunner:
        if self.fails:
            raise RuntimeError("no more")
        await self.may_open.wait()
        self.runners.append(CountingRunner(self))
        return self.runners[-1]

    async def tasks(self, split: str, start: int, count: int) -> list[Any]:
        return []

    async def task(self, task_id: str) -> Any:
        return None

    async def close(self) -> None: ...


class Caller:
    """Calls one session of a table, counting as a client does."""

    def __init__(self, table: SessionTable, name: str, connection: object | None = None) -> None:
        self.table = table
        self.name = name
        self.connection = connection
        self.number = 0

    async def __call__(self, method: str, *, again: int = 0, **params: Any) -> Reply:
        if not again:
            self.number += 1
        call = Call(id=again or self.number, session=self.name, method=method, params=params)
        return await self.table.call(call, self.connection)


def counting_table(**options: Any) -> tuple[SessionTable, CountingRuntime]:
    runtime = CountingRuntime()
    return SessionTable(runtime, ServerOptions(**options)), runtime


def run(work: Coroutine[Any, Any, None]) -> None:
    async def within() -> None:
        async with asyncio.timeout(20):
            await work

    asyncio.run(within())


def code(reply: Reply) -> str | None:
    return None if reply.fault is None else reply.fault.code

"""Environments that a server's places run, and how to play them without a server."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import envweave as ew
from envweave.registry import EnvSpec
from envweave.server.options import ServerOptions
from envweave.server.runtime.base import Runtime, SessionOptions, SessionRuntime
from envweave.server.runtime.local import LocalRuntime

WAIT_S = 20.0
"""How long to wait for what must happen."""


class Worker(ew.Environment):
    """Does as it is told, and shows the seed of its episode and the thread it runs in."""

    held = threading.Event()  # what hangs, hangs until then
    hung = threading.Event()  # something has begun to hang
    closed = threading.Semaphore(0)

    def __init__(self) -> None:
        self.made_in = threading.get_ident()
        self.seed: int | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.seed = seed
        if options is not None:
            self.obey(options["do"])
        return self.shown(), {}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.obey(action)
        return self.shown(), 1.0, action == "end", False, {}

    def shown(self) -> dict[str, Any]:
        return {"made_in": self.made_in, "runs_in": threading.get_ident(), "seed": self.seed}

    def obey(self, order: str) -> None:
        if order == "hang":
            type(self).hung.set()
            type(self).held.wait(WAIT_S)
        elif order == "rest":
            time.sleep(0.02)
        elif order == "rest briefly":
            time.sleep(0.003)
        elif order == "print":
            print("told to print", flush=True)
        elif order == "raise":
            raise RuntimeError("told to")
        elif order == "exit":
            sys.exit(3)
        elif order == "segfault":
            ctypes.string_at(0)
        elif order == "die":
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def state(self) -> ew.State:
        if self.seed == 13:
            self.obey("hang")
        return ew.State()

    def close(self) -> None:
        type(self).closed.release()


class AsyncWorker(Worker):
    """The same in coroutines."""

    async def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        return Worker.reset(self, seed=seed)

    async def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # type: ignore[override]
        if action == "hang":
            await asyncio.sleep(WAIT_S)
        return Worker.step(self, action)


class ByProcess(Worker):
    """Shows which process it runs in."""

    tasks = ew.Tasks({"train": [ew.Task("a"), ew.Task("b", data={"x": 1})]})

    def reset(self, *, task: Any = None, seed: int | None = None, options: Any = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed, options=options)

    def shown(self) -> dict[str, Any]:
        return {**super().shown(), "pid": os.getpid()}


class Doomed(ByProcess):
    """Ends its process when it is made, once a file is there."""

    def __init__(self, sign: str) -> None:
        super().__init__()
        if Path(sign).exists():
            self.obey("die")


class Broken(Worker):
    def __init__(self) -> None:
        raise RuntimeError("no licence")


def fresh(base: type[Worker] = Worker) -> Any:
    """Return a class with signals of its own."""
    signals = {
        "held": threading.Event(),
        "hung": threading.Event(),
        "closed": threading.Semaphore(0),
    }
    return type(base.__name__, (base,), signals)


def local(factory: Any, **options: Any) -> LocalRuntime:
    return LocalRuntime(EnvSpec("worker", factory), {}, ServerOptions(**options))


async def opened(place: Runtime, count: int = 1, **wishes: Any) -> list[SessionRuntime]:
    return [await place.open(SessionOptions(**wishes)) for _ in range(count)]


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

"""A client process of remote.py: opens sessions and steps them, as it is told on its input.

    python remote_client.py openenv|envweave

Every line in is an order, every line out its answer, both JSON. Both sides run this same program,
each in its own interpreter.

    {"do": "open", "how": "blocking", "url": "http://…", "sessions": 1}
    {"do": "run", "seconds": 0.5}      → {"steps": 1234, "seconds": 0.5}
    {"do": "close"}
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from ordered import obey_orders

TOGETHER = 64
"""How many sessions are opened at a time."""

clock = time.perf_counter


class Blocking:
    """One session, stepped by calls that wait."""

    def __init__(self, side: Any, url: str, sessions: int) -> None:
        if sessions != 1:
            raise ValueError("calls that wait have one session")
        self._side = side
        self._env = side.blocking(url)
        self._env.reset()
        self._taken = 0

    def run(self, seconds: float) -> int:
        step, action = self._env.step, self._side.ACTION
        taken, until_s = 0, clock() + seconds
        while True:
            observation = step(action).observation
            taken += 1
            if clock() >= until_s:
                break
        self._taken += taken
        self._side.check(observation, self._taken)
        return taken

    def close(self) -> None:
        self._env.close()


class Looping:
    """Many sessions on one event loop, each with a task of its own."""

    def __init__(self, side: Any, url: str, sessions: int) -> None:
        self._side = side
        self._loop = asyncio.new_event_loop()
        # On a thread of its own, the loop answers pings also while no order is carried out.
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._envs: list[Any] = self._finish(self._open(url, sessions))
        self._taken = [0] * sessions

    async def _open(self, url: str, sessions: int) -> list[Any]:
        envs: list[Any] = []
        connect, self._end = await self._side.looping(url, sessions)
        while len(envs) < sessions:
            some = min(TOGETHER, sessions - len(envs))
            fresh = await asyncio.gather(*(connect() for _ in range(some)))
            await asyncio.gather(*(env.reset() for env in fresh))
            envs += fresh
        return envs

    def run(self, seconds: float) -> int:
        return self._finish(self._run(clock() + seconds))

    async def _run(self, until_s: float) -> int:
        return sum(await asyncio.gather(*(self._play(i, until_s) for i in range(len(self._envs)))))

    async def _play(self, index: int, until_s: float) -> int:
        step, action = self._envs[index].step, self._side.ACTION
        taken = 0
        while True:
            observation = (await step(action)).observation
            taken += 1
            if clock() >= until_s:
                break
        self._taken[index] += taken
        self._side.check(observation, self._taken[index])
        return taken

    def close(self) -> None:
        self._finish(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _close(self) -> None:
        for start in range(0, len(self._envs), TOGETHER):
            await asyncio.gather(*(env.close() for env in self._envs[start : start + TOGETHER]))
        await self._end()

    def _finish(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class Vector:
    """Many sessions, stepped by one call."""

    def __init__(self, side: Any, url: str, sessions: int) -> None:
        self._side, self._sessions = side, sessions
        self._venv = side.vector(url, sessions)
        self._venv.reset()
        self._actions = [side.ACTION] * sessions
        self._taken = 0

    def run(self, seconds: float) -> int:
        step, actions = self._venv.step, self._actions
        taken, until_s = 0, clock() + seconds
        while True:
            batch = step(actions)
            # What a learner reads, so that nothing is left for later.
            batch.current, batch.successor, batch.reward  # noqa: B018
            batch.terminated, batch.truncated  # noqa: B018
            taken += 1
            if clock() >= until_s:
                break
        self._taken += taken
        for index in range(self._sessions):
            self._side.check(batch[index].observation, self._taken)
        return taken * self._sessions

    def close(self) -> None:
        self._venv.close()


WAYS: dict[str, Callable[[Any, str, int], Any]] = {
    "blocking": Blocking,
    "looping": Looping,
    "vector": Vector,
}


def obey(order: dict[str, Any], side: Any, opened: list[Any]) -> dict[str, Any]:
    """Carry out one order, and return the answer to it."""
    if order["do"] == "open":
        opened.append(WAYS[order["how"]](side, order["url"], order["sessions"]))
        return {}
    if order["do"] == "close":
        while opened:
            opened.pop().close()
        return {}
    gc.collect()
    began_s = clock()
    steps = opened[-1].run(order["seconds"])
    return {"steps": steps, "seconds": clock() - began_s}


def main(name: str) -> int:
    side = importlib.import_module(f"remote_{name}_side")
    opened: list[Any] = []
    obey_orders(lambda order: obey(order, side, opened))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

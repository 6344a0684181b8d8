"""A client process of the remote benchmark, which opens sessions and steps them on request.

    python -m benchmarks.remote.client envweave|OpenEnv

Requests and replies are JSON lines. Each library has such a process in its own interpreter.

    {"command": "open", "client": "blocking", "url": "http://…", "sessions": 1}
    {"command": "run", "seconds": 0.5}      → {"steps": 1234, "seconds": 0.5}
    {"command": "close"}
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from benchmarks.measurement.processes import serve_requests
from benchmarks.remote.libraries import ACTION, LIBRARIES

BATCH = 64
"""How many sessions are opened or closed at a time."""

clock = time.perf_counter


class BlockingClient:
    """One session, stepped by blocking calls."""

    def __init__(self, library: Any, url: str, sessions: int) -> None:
        if sessions != 1:
            raise ValueError("a blocking client has one session")
        self._library = library
        self._env = library.blocking(url)
        self._env.reset()
        self._taken = 0

    def run(self, seconds: float) -> int:
        step, action = self._env.step, ACTION
        taken, until_s = 0, clock() + seconds
        while True:
            observation = step(action).observation
            taken += 1
            if clock() >= until_s:
                break
        self._taken += taken
        self._library.check(observation, self._taken)
        return taken

    def close(self) -> None:
        self._env.close()


class AsyncClient:
    """Many sessions on one event loop, each with its own task."""

    def __init__(self, library: Any, url: str, sessions: int) -> None:
        self._library = library
        self._loop = asyncio.new_event_loop()
        # On its own thread the loop also answers pings between two requests.
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._envs: list[Any] = self._await(self._open(url, sessions))
        self._taken = [0] * sessions

    async def _open(self, url: str, sessions: int) -> list[Any]:
        envs: list[Any] = []
        connect, self._end = await self._library.asynchronous(url, sessions)
        while len(envs) < sessions:
            some = min(BATCH, sessions - len(envs))
            fresh = await asyncio.gather(*(connect() for _ in range(some)))
            await asyncio.gather(*(env.reset() for env in fresh))
            envs += fresh
        return envs

    def run(self, seconds: float) -> int:
        return self._await(self._run(clock() + seconds))

    async def _run(self, until_s: float) -> int:
        return sum(await asyncio.gather(*(self._play(i, until_s) for i in range(len(self._envs)))))

    async def _play(self, index: int, until_s: float) -> int:
        step, action = self._envs[index].step, ACTION
        taken = 0
        while True:
            observation = (await step(action)).observation
            taken += 1
            if clock() >= until_s:
                break
        self._taken[index] += taken
        self._library.check(observation, self._taken[index])
        return taken

    def close(self) -> None:
        self._await(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _close(self) -> None:
        for start in range(0, len(self._envs), BATCH):
            await asyncio.gather(*(env.close() for env in self._envs[start : start + BATCH]))
        await self._end()

    def _await(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class VectorClient:
    """Many sessions, stepped by one call."""

    def __init__(self, library: Any, url: str, sessions: int) -> None:
        self._library, self._sessions = library, sessions
        self._venv = library.vector(url, sessions)
        self._venv.reset()
        self._actions = [ACTION] * sessions
        self._taken = 0

    def run(self, seconds: float) -> int:
        step, actions = self._venv.step, self._actions
        taken, until_s = 0, clock() + seconds
        while True:
            batch = step(actions)
            # A training loop reads these, so their cost counts.
            batch.current, batch.successor, batch.reward  # noqa: B018
            batch.terminated, batch.truncated  # noqa: B018
            taken += 1
            if clock() >= until_s:
                break
        self._taken += taken
        for index in range(self._sessions):
            self._library.check(batch[index].observation, self._taken)
        return taken * self._sessions

    def close(self) -> None:
        self._venv.close()


CLIENTS: dict[str, Callable[[Any, str, int], Any]] = {
    "blocking": BlockingClient,
    "async": AsyncClient,
    "vector": VectorClient,
}


def handle(request: dict[str, Any], library: Any, clients: list[Any]) -> dict[str, Any]:
    """Carry out one request and return the reply."""
    if request["command"] == "open":
        client = CLIENTS[request["client"]](library, request["url"], request["sessions"])
        clients.append(client)
        return {}
    if request["command"] == "close":
        while clients:
            clients.pop().close()
        return {}
    gc.collect()
    start_s = clock()
    steps = clients[-1].run(request["seconds"])
    return {"steps": steps, "seconds": clock() - start_s}


def main(name: str) -> int:
    clients: list[Any] = []
    serve_requests(lambda request: handle(request, LIBRARIES[name], clients))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

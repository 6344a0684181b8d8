"""A client process of the coding benchmark, which runs code in sessions on request.

    python -m benchmarks.coding.client envweave|OpenEnv

Requests and replies are JSON lines. Each library has such a process in its own interpreter.

    {"command": "open", "url": "http://…", "client": "blocking"}
    {"command": "run", "snippet": "fib", "seconds": 0.5}    → {"steps": 12, "seconds": 0.51}
    {"command": "open-many", "url": "http://…", "sessions": 64}               (envweave only)
    {"command": "run-many", "seconds": 1.0, "noisy": true}
                                                 → {"latencies_s": […], "timeouts": 2}
    {"command": "close"}
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

from benchmarks.measurement.processes import serve_requests

SNIPPETS = {
    "print": ("print('hello')", "hello"),
    "loop": ("total = 0\nfor i in range(1000):\n    total += i * i\nprint(total)", "332833500"),
    "fib": (
        "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\nprint(fib(18))",
        "2584",
    ),
}
"""Code and its output, by the name of a comparison."""

INFINITE_LOOP = "while True: pass"
PAUSE_S = 0.05
"""How long a session pauses between two steps, as if a model were generating."""

clock = time.perf_counter


def check(snippet: str, stdout: str, exit_code: int) -> None:
    """Raise unless the code printed what it must."""
    if exit_code or stdout.strip() != SNIPPETS[snippet][1]:
        raise ValueError(f"{snippet} printed {stdout!r}, with exit code {exit_code}")


def _openenv(url: str) -> Any:
    from openenv.core import GenericEnvClient

    return GenericEnvClient(base_url=url, websocket_ping_interval_s=None)


class OpenEnvBlocking:
    """One session of OpenEnv with its blocking client."""

    def __init__(self, url: str) -> None:
        self._env = _openenv(url).sync().connect()
        self._env.reset()

    def run(self, snippet: str, seconds: float) -> int:
        step, action = self._env.step, {"code": SNIPPETS[snippet][0]}
        steps, deadline_s = 0, clock() + seconds
        while steps == 0 or clock() < deadline_s:
            observation = step(action).observation
            steps += 1
        check(snippet, observation["stdout"], observation["exit_code"])
        return steps

    def close(self) -> None:
        self._env.close()


class OpenEnvAsync:
    """One session of OpenEnv with its async client."""

    def __init__(self, url: str) -> None:
        self._env = _openenv(url)
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._open())

    async def _open(self) -> None:
        await self._env.connect()
        await self._env.reset()

    def run(self, snippet: str, seconds: float) -> int:
        return self._loop.run_until_complete(self._run(snippet, seconds))

    async def _run(self, snippet: str, seconds: float) -> int:
        step, action = self._env.step, {"code": SNIPPETS[snippet][0]}
        steps, deadline_s = 0, clock() + seconds
        while steps == 0 or clock() < deadline_s:
            observation = (await step(action)).observation
            steps += 1
        check(snippet, observation["stdout"], observation["exit_code"])
        return steps

    def close(self) -> None:
        self._loop.run_until_complete(self._close())
        self._loop.close()

    async def _close(self) -> None:
        await self._env.close()


class EnvweaveBlocking:
    """One session of envweave with its blocking client."""

    def __init__(self, url: str) -> None:
        import envweave as ew

        self._env = ew.make(url)
        self._env.reset()

    def run(self, snippet: str, seconds: float) -> int:
        step, action = self._env.step, {"code": SNIPPETS[snippet][0]}
        steps, deadline_s = 0, clock() + seconds
        while steps == 0 or clock() < deadline_s:
            observation = step(action).observation
            steps += 1
        check(snippet, observation.stdout, observation.exit_code)
        return steps

    def close(self) -> None:
        self._env.close()


class ManySessions:
    """Sessions of envweave over one connection, of which the first can be a noisy neighbor.

    A noisy neighbor runs an infinite loop until its time limit, again and again.
    """

    def __init__(self, url: str, sessions: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        self._envs: list[Any] = self._await(self._open(url, sessions))

    async def _open(self, url: str, sessions: int) -> list[Any]:
        import envweave as ew

        pool = await self._stack.enter_async_context(ew.pool(url, size=sessions))
        envs = [await self._stack.enter_async_context(pool.line()) for _ in range(sessions)]
        await asyncio.gather(*(env.reset() for env in envs))
        return envs

    def run(self, seconds: float, *, noisy: bool) -> dict[str, Any]:
        """Step for this time, and return the latency of each step of the other sessions."""
        return self._await(self._run(seconds, noisy=noisy))

    async def _run(self, seconds: float, *, noisy: bool) -> dict[str, Any]:
        first, *others = self._envs
        deadline_s = clock() + seconds
        neighbor = asyncio.ensure_future(self._run_noisy(first, deadline_s)) if noisy else None
        delays_s = [PAUSE_S * i / len(others) for i in range(len(others))]
        latencies_s = await asyncio.gather(
            *(
                self._step(env, delay, deadline_s)
                for env, delay in zip(others, delays_s, strict=True)
            )
        )
        # Otherwise its last step would run during the next measurement.
        timeouts = await neighbor if neighbor is not None else 0
        return {"latencies_s": [one for some in latencies_s for one in some], "timeouts": timeouts}

    async def _step(self, env: Any, delay_s: float, deadline_s: float) -> list[float]:
        latencies_s: list[float] = []
        await asyncio.sleep(delay_s)
        while not latencies_s or clock() < deadline_s:
            start_s = clock()
            result = await env.step({"code": "sum(range(100))"})
            latencies_s.append(clock() - start_s)
            if result.observation.result != "4950":
                raise ValueError(f"a step returned {result.observation!r}")
            await asyncio.sleep(PAUSE_S)
        return latencies_s

    async def _run_noisy(self, env: Any, deadline_s: float) -> int:
        timeouts = 0
        while clock() < deadline_s:
            result = await env.step({"code": INFINITE_LOOP})
            if list(result.observation.limits_hit) != ["time"]:
                raise ValueError(f"the infinite loop returned {result.observation!r}")
            timeouts += 1
        return timeouts

    def close(self) -> None:
        """Close all sessions."""
        self._await(self._stack.aclose())
        self._loop.close()

    def _await(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)


CLIENTS: dict[tuple[str, str], Any] = {
    ("OpenEnv", "blocking"): OpenEnvBlocking,
    ("OpenEnv", "async"): OpenEnvAsync,
    ("envweave", "blocking"): EnvweaveBlocking,
}


def handle(request: dict[str, Any], library: str, clients: list[Any]) -> dict[str, Any]:
    """Carry out one request and return the reply."""
    command = request["command"]
    if command == "open":
        clients.append(CLIENTS[library, request["client"]](request["url"]))
        return {}
    if command == "open-many":
        clients.append(ManySessions(request["url"], request["sessions"]))
        return {}
    if command == "close":
        while clients:
            clients.pop().close()
        return {}
    gc.collect()
    if command == "run-many":
        reply: dict[str, Any] = clients[-1].run(request["seconds"], noisy=request["noisy"])
        return reply
    start_s = clock()
    steps = clients[-1].run(request["snippet"], request["seconds"])
    return {"steps": steps, "seconds": clock() - start_s}


def main(library: str) -> int:
    clients: list[Any] = []
    serve_requests(lambda request: handle(request, library, clients))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

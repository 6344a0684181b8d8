"""Many sessions that run a little code each now and then, and one that runs in circles."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

from coding_code import ENDLESS

import envweave as ew

PAUSE_S = 0.05
"""How long a session does nothing between two steps: a model thinks."""

clock = time.perf_counter


class Crowd:
    """Sessions over one connection to one server; the first is the one that may run in circles."""

    def __init__(self, url: str, sessions: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing = AsyncExitStack()
        self._lines: list[Any] = self._finish(self._open(url, sessions))

    async def _open(self, url: str, sessions: int) -> list[Any]:
        pool = await self._closing.enter_async_context(ew.pool(url, size=sessions))
        lines = [await self._closing.enter_async_context(pool.line()) for _ in range(sessions)]
        await asyncio.gather(*(line.reset() for line in lines))
        return lines

    def run(self, seconds: float, *, circling: bool) -> dict[str, Any]:
        """Step for so long, and return how long each step of the others took."""
        return self._finish(self._run(seconds, circling=circling))

    async def _run(self, seconds: float, *, circling: bool) -> dict[str, Any]:
        first, *others = self._lines
        until_s = clock() + seconds
        circles = asyncio.ensure_future(self._circle(first, until_s)) if circling else None
        paces = [PAUSE_S * i / len(others) for i in range(len(others))]
        latencies = await asyncio.gather(
            *(self._step(one, pace, until_s) for one, pace in zip(others, paces, strict=True))
        )
        # Waited for, or it would go on beside who is measured next.
        circled = await circles if circles is not None else 0
        return {"latencies_s": [one for some in latencies for one in some], "circled": circled}

    async def _step(self, env: Any, begin_s: float, until_s: float) -> list[float]:
        taken: list[float] = []
        await asyncio.sleep(begin_s)
        while not taken or clock() < until_s:
            began_s = clock()
            result = await env.step({"code": "sum(range(100))"})
            taken.append(clock() - began_s)
            if result.observation.result != "4950":
                raise ValueError(f"a step came to {result.observation!r}")
            await asyncio.sleep(PAUSE_S)
        return taken

    async def _circle(self, env: Any, until_s: float) -> int:
        circled = 0
        while clock() < until_s:
            result = await env.step({"code": ENDLESS})
            if list(result.observation.limits_hit) != ["time"]:
                raise ValueError(f"running in circles came to {result.observation!r}")
            circled += 1
        return circled

    def close(self) -> None:
        """Close every session."""
        self._finish(self._closing.aclose())
        self._loop.close()

    def _finish(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

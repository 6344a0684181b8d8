"""A client process of coding.py: runs code in sessions, as it is told on its input.

    python coding_client.py openenv|envweave

Every line in is an order, every line out its answer, both JSON. Both sides run this same program,
each in its own interpreter. A crowd is for envweave alone.

    {"do": "open", "url": "http://…", "how": "blocking"}
    {"do": "run", "piece": "fib", "seconds": 0.5}           → {"steps": 12, "seconds": 0.51}
    {"do": "gather", "url": "http://…", "sessions": 64}
    {"do": "crowd", "seconds": 1.0, "circling": true}       → {"latencies_s": […], "circled": 2}
    {"do": "close"}
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from typing import Any

from coding_code import PIECES, check
from ordered import obey_orders

clock = time.perf_counter


class OpenEnvOne:
    """One session of OpenEnv, by its blocking client."""

    def __init__(self, url: str) -> None:
        self._env = _openenv(url).sync().connect()
        self._env.reset()

    def run(self, piece: str, seconds: float) -> int:
        step, action = self._env.step, {"code": PIECES[piece][0]}
        taken, until_s = 0, clock() + seconds
        while taken == 0 or clock() < until_s:
            shown = step(action).observation
            taken += 1
        check(piece, shown["stdout"], shown["exit_code"])
        return taken

    def close(self) -> None:
        self._env.close()


class OpenEnvLooping:
    """One session of OpenEnv, by its async client."""

    def __init__(self, url: str) -> None:
        self._env = _openenv(url)
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._open())

    async def _open(self) -> None:
        await self._env.connect()
        await self._env.reset()

    def run(self, piece: str, seconds: float) -> int:
        return self._loop.run_until_complete(self._run(piece, seconds))

    async def _run(self, piece: str, seconds: float) -> int:
        step, action = self._env.step, {"code": PIECES[piece][0]}
        taken, until_s = 0, clock() + seconds
        while taken == 0 or clock() < until_s:
            shown = (await step(action)).observation
            taken += 1
        check(piece, shown["stdout"], shown["exit_code"])
        return taken

    def close(self) -> None:
        self._loop.run_until_complete(self._close())
        self._loop.close()

    async def _close(self) -> None:
        await self._env.close()


def _openenv(url: str) -> Any:
    from openenv.core import GenericEnvClient

    return GenericEnvClient(base_url=url, websocket_ping_interval_s=None)


class EnvweaveOne:
    """One session of envweave, by its blocking client."""

    def __init__(self, url: str) -> None:
        import envweave as ew

        self._env = ew.make(url)
        self._env.reset()

    def run(self, piece: str, seconds: float) -> int:
        step, action = self._env.step, {"code": PIECES[piece][0]}
        taken, until_s = 0, clock() + seconds
        while taken == 0 or clock() < until_s:
            shown = step(action).observation
            taken += 1
        check(piece, shown.stdout, shown.exit_code)
        return taken

    def close(self) -> None:
        self._env.close()


ONE: dict[tuple[str, str], Any] = {
    ("openenv", "blocking"): OpenEnvOne,
    ("openenv", "looping"): OpenEnvLooping,
    ("envweave", "blocking"): EnvweaveOne,
}


def obey(order: dict[str, Any], side: str, opened: list[Any]) -> dict[str, Any]:
    """Carry out one order, and return the answer to it."""
    if order["do"] == "open":
        opened.append(ONE[side, order["how"]](order["url"]))
        return {}
    if order["do"] == "gather":
        from coding_crowd import Crowd

        opened.append(Crowd(order["url"], order["sessions"]))
        return {}
    if order["do"] == "close":
        while opened:
            opened.pop().close()
        return {}
    gc.collect()
    if order["do"] == "crowd":
        answer: dict[str, Any] = opened[-1].run(order["seconds"], circling=order["circling"])
        return answer
    began_s = clock()
    steps = opened[-1].run(order["piece"], order["seconds"])
    return {"steps": steps, "seconds": clock() - began_s}


def main(side: str) -> int:
    opened: list[Any] = []
    obey_orders(lambda order: obey(order, side, opened))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

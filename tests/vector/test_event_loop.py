"""The event loop under an async vector: uvloop's where it is installed."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

import envweave as ew


class ShowsLoop(ew.Environment):
    """Shows which package its event loop is from."""

    async def reset(self, *, seed: int | None = None) -> Any:
        await asyncio.sleep(0)
        return type(asyncio.get_running_loop()).__module__.partition(".")[0], {}

    async def step(self, action: int) -> Any:
        waiting = asyncio.get_running_loop().create_future()
        waiting.cancel()
        await waiting


def loops_of(num_envs: int) -> set[str]:
    with ew.make_vector(ShowsLoop, num_envs=num_envs) as venv:
        return set(venv.reset().current)


def test_many_async_environments_run_on_uvloop_where_it_is_installed():
    pytest.importorskip("uvloop")

    assert loops_of(3) == {"uvloop"}


def test_without_uvloop_they_run_on_a_loop_of_asyncio(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)

    assert loops_of(3) == {"asyncio"}


def test_an_unrequested_cancellation_ends_the_episode_as_an_error():
    with ew.make_vector(ShowsLoop, num_envs=2) as venv:
        venv.reset()

        batch = venv.step([0, 0])

    ends = [row.end for row in batch]
    assert [(end.reason, end.blame) for end in ends if end] == [("error", "environment")] * 2
    assert all("was cancelled" in str(end.cause) for end in ends if end)

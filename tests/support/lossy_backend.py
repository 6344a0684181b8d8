"""A backend that connects one environment at a time, and whose calls may be lost."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from envweave.backends import inproc
from envweave.registry import EnvSpec, MakeOptions

LOSE: list[str] = []
"""The calls to lose, each once: `"reset"`, `"step"`."""

BEGUN: list[tuple[int, str]] = []
"""Which connection began an episode of which task, in order."""

_numbers = itertools.count()


class Lossy:
    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.number = next(_numbers)
        self.interface, self.tasks = inner.interface, inner.tasks

    @property
    def agents(self) -> list[str]:
        return self.inner.agents

    async def reset(self, **wanted: Any) -> Any:
        BEGUN.append((self.number, wanted["task"] and wanted["task"].id))
        lose("reset")
        return await self.inner.reset(**wanted)

    async def step(self, action: Any) -> Any:
        lose("step")
        return await self.inner.step(action)

    async def state(self) -> Any:
        return await self.inner.state()

    async def close(self) -> None:
        await self.inner.close()


def lose(call: str) -> None:
    if call in LOSE:
        LOSE.remove(call)
        raise ConnectionError("the line went dead")


def connect_async(spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions) -> Lossy:
    return Lossy(inproc.connect_async(spec, kwargs, options))

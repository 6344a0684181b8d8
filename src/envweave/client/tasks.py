"""The tasks of a served environment, fetched page by page when somebody needs them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, final

from envweave.errors import TaskError
from envweave.types import Task, Tasks
from envweave.types.tasks import draw_index, position_of, unknown_task
from envweave.wire.reading import read_as

PAGE = 500
"""How many listed tasks are asked for at once."""

AHEAD = 16
"""How many tasks of an endless split are asked for at once."""

_PAGES_KEPT = 256
"""How many pages of endless splits are kept."""

Ask = Callable[[str, dict[str, Any]], Any]
"""Asks the server something, and returns its answer."""

AskAsync = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Asks the server something without blocking the event loop."""


def tasks_of(
    splits: Mapping[str, int | None] | None, ask: Ask, ask_async: AskAsync | None = None
) -> Tasks | None:
    """Return the tasks that a server's description speaks of.

    Args:
        splits: How many tasks each split has; `None` where there is no end to them.
        ask: Asks the server.
        ask_async: Asks it on an event loop, where there is one.
    """
    if splits is None:
        return None
    source = _Source(ask)
    lengths = {name: length for name, length in splits.items() if length is not None}
    if lengths:
        tasks = Tasks.fetched(lengths, lambda: {name: source.all(name) for name in lengths})
    else:
        tasks = Tasks.endless(source.one, splits=splits)
    if ask_async is not None:
        tasks.reader = PagedTasks(ask_async, lengths or splits)
    return tasks


@final
class _Source:
    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._ahead: tuple[str, int, list[Task]] = ("", 0, [])

    def all(self, split: str) -> list[Task]:
        """Return the tasks of a listed split, page by page."""
        listed: list[Task] = []
        while page := self._page(split, len(listed), PAGE):
            listed += page
        return listed

    def one(self, split: str, index: int) -> Task:
        """Return a task of an endless split; who goes through them finds the next ones here."""
        known, start, tasks = self._ahead
        if known != split or not start <= index < start + len(tasks):
            start, tasks = index, self._page(split, index, AHEAD)
            self._ahead = split, start, tasks
        if not tasks:
            raise _missing(split, index)
        return tasks[index - start]

    def _page(self, split: str, start: int, count: int) -> list[Task]:
        return _read(self._ask("tasks", _asked(split, start, count)), split)


@final
class PagedTasks:
    """Reads the tasks of a server on an event loop. Whoever needs the same page waits for one call.

    It is a `TaskReader`. A server that is away is tried for as long as for a step, since the calls
    share the connection of the steps.
    """

    def __init__(self, ask: AskAsync, lengths: Mapping[str, int | None]) -> None:
        self._ask = ask
        self._lengths = dict(lengths)
        self._pages: OrderedDict[tuple[str, int], list[Task]] = OrderedDict()
        self._fetching: dict[tuple[str, int], asyncio.Future[list[Task]]] = {}

    async def at(self, split: str, index: int) -> Task:
        """Return the task at an index of a split."""
        size = AHEAD if self._lengths[split] is None else PAGE
        start = index - index % size
        page = await self._page(split, start, size)
        if index - start >= len(page):
            raise _missing(split, index)
        return page[index - start]

    async def get(self, task_id: str) -> Task:
        """Return the task called `task_id`."""
        known: list[str] = []
        for split, length in self._lengths.items():
            for start in range(0, length or 0, PAGE):
                for task in await self._page(split, start, PAGE):
                    if task.id == task_id:
                        return task
                    known.append(task.id)
        endless = [split for split, length in self._lengths.items() if length is None]
        found = position_of(task_id, endless)
        if found is None:
            raise unknown_task(task_id, known)
        return await self.at(*found)

    async def draw(self, seed: int | None) -> Task:
        """Draw a task of the first split."""
        split, length = next(iter(self._lengths.items()))
        return await self.at(split, draw_index(seed, split, length))

    async def _page(self, split: str, start: int, count: int) -> list[Task]:
        key = split, start
        if key in self._pages:
            return self._pages[key]
        fetching = self._fetching.get(key)
        if fetching is None or fetching.get_loop() is not asyncio.get_running_loop():
            fetching = asyncio.ensure_future(self._fetch(split, start, count))
            self._fetching[key] = fetching
            fetching.add_done_callback(partial(self._fetched, key))
        return await asyncio.shield(fetching)  # who leaves does not take it from the others

    async def _fetch(self, split: str, start: int, count: int) -> list[Task]:
        return _read(await self._ask("tasks", _asked(split, start, count)), split)

    def _fetched(self, key: tuple[str, int], fetching: asyncio.Future[list[Task]]) -> None:
        if self._fetching.get(key) is fetching:
            del self._fetching[key]
        if fetching.cancelled() or fetching.exception() is not None:
            return
        self._pages[key] = fetching.result()
        if self._lengths[key[0]] is None and len(self._pages) > _PAGES_KEPT:
            self._pages.popitem(last=False)


def _asked(split: str, start: int, count: int) -> dict[str, Any]:
    return {"split": split, "start": start, "count": count}


def _read(plain: Any, split: str) -> list[Task]:
    tasks = read_as(plain, list[Task], f"The tasks in split {split!r} cannot be read")
    return [task.public() for task in tasks]


def _missing(split: str, index: int) -> TaskError:
    return TaskError(f"The server has no task {index} in split {split!r}.")

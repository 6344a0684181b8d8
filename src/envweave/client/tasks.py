"""The tasks of a served environment, fetched when somebody looks at them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

from envweave.errors import TaskError
from envweave.types import Task, Tasks
from envweave.wire.reading import read_as

PAGE = 500
"""How many listed tasks are asked for at once."""

AHEAD = 16
"""How many tasks of an endless split are asked for at once."""

Ask = Callable[[str, dict[str, Any]], Any]
"""Asks the server something, and returns its answer."""


def tasks_of(splits: Mapping[str, int | None] | None, ask: Ask) -> Tasks | None:
    """Return the tasks that a server's description speaks of."""
    if splits is None:
        return None
    source = _Source(ask)
    lengths = {name: length for name, length in splits.items() if length is not None}
    if lengths:
        return Tasks.fetched(lengths, lambda: {name: source.all(name) for name in lengths})
    return Tasks.endless(source.one, splits=splits)


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
            raise TaskError(f"The server has no task {index} in split {split!r}.")
        return tasks[index - start]

    def _page(self, split: str, start: int, count: int) -> list[Task]:
        plain = self._ask("tasks", {"split": split, "start": start, "count": count})
        tasks = read_as(plain, list[Task], f"The tasks in split {split!r} cannot be read")
        return [task.public() for task in tasks]

"""What a caller knows of a server: where it is, how to speak to it, and what it serves."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, final

from envweave.client.address import Address
from envweave.client.connection import BlockingConnection
from envweave.client.managed_server import ManagedServer
from envweave.errors import TaskError
from envweave.types import Task, Tasks
from envweave.types.tasks import draw_index, position_of, unknown_task
from envweave.wire.description import read_description
from envweave.wire.encoding import Encoding
from envweave.wire.messages import read_as
from envweave.wire.schema import Rebuilt, Types

if TYPE_CHECKING:
    from envweave.client.async_connection import AsyncConnection


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
    source = _TaskSource(ask)
    lengths = {name: length for name, length in splits.items() if length is not None}
    if lengths:
        tasks = Tasks.fetched(lengths, lambda: {name: source.all(name) for name in lengths})
    else:
        tasks = Tasks.endless(source.one, splits=splits)
    if ask_async is not None:
        tasks.reader = PagedTasks(ask_async, lengths or splits)
    return tasks


@final
class _TaskSource:
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


@final
@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs somewhere.

    Attributes:
        address: Where it is.
        encoding: How messages are written.
        token: What to show it.
        place: Where it runs, if it was started for this caller and may be started again.
    """

    address: Address
    encoding: Encoding
    token: str | None = None
    place: ManagedServer | None = None

    def connect(self, on_end: Callable[[], None] | None = None) -> BlockingConnection:
        """Return a connection for a blocking caller, once the server has agreed to it.

        Args:
            on_end: Called when it has ended.

        Raises:
            ConnectionLostError: Nobody answers there.
            AccessError: The server refuses this caller.
            ServerError: It does not speak the dialect.
        """
        connection = self._connection(on_end)
        connection.reach()
        return connection

    def _connection(self, on_end: Callable[[], None] | None = None) -> BlockingConnection:
        return BlockingConnection(
            self.address, self.encoding, token=self.token, place=self.place, on_end=on_end
        )

    def connect_async(self, users: int) -> AsyncConnection:
        """Return a connection for so many async callers; it is made at the first call."""
        from envweave.client.async_connection import AsyncConnection

        return AsyncConnection(
            self.address, self.encoding, token=self.token, users=users, place=self.place
        )

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        """Ask the server something over a connection of its own."""
        connection = self.connect()
        try:
            return connection.ask(method, params)
        finally:
            connection.end()

    def ask_patiently(self, method: str, params: dict[str, Any]) -> Any:
        """Ask as `ask` does; a server that is away is tried for a while, as it is for a step."""
        connection = self._connection()
        try:
            return connection.ask(method, params)
        finally:
            connection.end()


@final
class ServerInfo:
    """What a server serves, as its description tells it.

    Attributes:
        interface: What the environment takes and shows.
        tasks: What episodes can be about.
        rebuild: Makes observations from plain data.
        rebuild_state: Makes states from plain data.
        max_message_bytes: How large a message the server takes; 0 if it does not say.

    Args:
        server: Where it is served.
        plain: The description.
        types: The author's classes, where they are known here.
        ask_async: Asks the server on an event loop, where its callers have one.

    Raises:
        WireError: The description cannot be read.
    """

    def __init__(
        self, server: Server, plain: Any, types: Types, ask_async: AskAsync | None = None
    ) -> None:
        description = read_description(plain)
        rebuilt = Rebuilt(description, types)
        self.interface = rebuilt.interface
        self.tasks = tasks_of(description.splits, server.ask_patiently, ask_async)
        self.rebuild = rebuilt.rebuild
        self.rebuild_state = rebuilt.rebuild_state
        self.max_message_bytes = description.max_message_bytes

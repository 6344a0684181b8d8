"""What a client knows about a server: its address, how to connect, its interface and tasks."""

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
from envweave.wire.description import Rebuilt, Types, read_description
from envweave.wire.encoding import Encoding
from envweave.wire.messages import read_as

if TYPE_CHECKING:
    from envweave.client.async_connection import AsyncConnection


PAGE = 500
"""How many listed tasks are fetched per call."""

AHEAD = 16
"""How many tasks of an endless split are fetched per call."""

_PAGES_KEPT = 256
"""How many pages of endless splits are kept."""

ServerCall = Callable[[str, dict[str, Any]], Any]
"""Calls a method of the server, and returns its value."""

AsyncServerCall = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Calls a method of the server without blocking the event loop."""


def tasks_of(
    splits: Mapping[str, int | None] | None,
    call: ServerCall,
    call_async: AsyncServerCall | None = None,
) -> Tasks | None:
    """Return the tasks of a server.

    Args:
        splits: How many tasks each split has; `None` for an endless one.
        call: Calls the server.
        call_async: Calls it on an event loop, if there is one.
    """
    if splits is None:
        return None
    source = _TaskSource(call)
    lengths = {name: length for name, length in splits.items() if length is not None}
    if lengths:
        tasks = Tasks.fetched(lengths, lambda: {name: source.all(name) for name in lengths})
    else:
        tasks = Tasks.endless(source.one, splits=splits)
    if call_async is not None:
        tasks.reader = PagedTasks(call_async, lengths or splits)
    return tasks


@final
class _TaskSource:
    def __init__(self, call: ServerCall) -> None:
        self._call = call
        self._ahead: tuple[str, int, list[Task]] = ("", 0, [])

    def all(self, split: str) -> list[Task]:
        """Return the tasks of a listed split, page by page."""
        listed: list[Task] = []
        while page := self._page(split, len(listed), PAGE):
            listed += page
        return listed

    def one(self, split: str, index: int) -> Task:
        """Return a task of an endless split; the next ones are fetched with it."""
        known, start, tasks = self._ahead
        if known != split or not start <= index < start + len(tasks):
            start, tasks = index, self._page(split, index, AHEAD)
            self._ahead = split, start, tasks
        if not tasks:
            raise _missing(split, index)
        return tasks[index - start]

    def _page(self, split: str, start: int, count: int) -> list[Task]:
        return _read(self._call("tasks", _page_params(split, start, count)), split)


@final
class PagedTasks:
    """Reads the tasks of a server on an event loop; a page is fetched once, however many need it.

    It is a `TaskReader`. The calls share the connection of the steps, and reconnect as they do.
    """

    def __init__(self, call: AsyncServerCall, lengths: Mapping[str, int | None]) -> None:
        self._call = call
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
        return await asyncio.shield(
            fetching
        )  # others may wait for it when this caller is cancelled

    async def _fetch(self, split: str, start: int, count: int) -> list[Task]:
        return _read(await self._call("tasks", _page_params(split, start, count)), split)

    def _fetched(self, key: tuple[str, int], fetching: asyncio.Future[list[Task]]) -> None:
        if self._fetching.get(key) is fetching:
            del self._fetching[key]
        if fetching.cancelled() or fetching.exception() is not None:
            return
        self._pages[key] = fetching.result()
        if self._lengths[key[0]] is None and len(self._pages) > _PAGES_KEPT:
            self._pages.popitem(last=False)


def _page_params(split: str, start: int, count: int) -> dict[str, Any]:
    return {"split": split, "start": start, "count": count}


def _read(plain: Any, split: str) -> list[Task]:
    tasks = read_as(plain, list[Task], f"The tasks in split {split!r} cannot be read")
    return [task.public() for task in tasks]


def _missing(split: str, index: int) -> TaskError:
    return TaskError(f"The server has no task {index} in split {split!r}.")


@final
@dataclass(frozen=True, slots=True)
class Server:
    """A running server, and how to connect to it.

    Attributes:
        address: Where it is.
        encoding: The encoding of messages.
        token: The access token.
        managed: The server's process or container, if it was started for this caller.
    """

    address: Address
    encoding: Encoding
    token: str | None = None
    managed: ManagedServer | None = None

    def connect(self, on_end: Callable[[], None] | None = None) -> BlockingConnection:
        """Return an open connection for a blocking caller.

        Args:
            on_end: Called after it has ended.

        Raises:
            ConnectionLostError: No server answers there.
            AccessError: The server refuses this caller.
            ServerError: It does not speak the dialect.
        """
        connection = self._connection(on_end)
        connection.connect()
        return connection

    def _connection(self, on_end: Callable[[], None] | None = None) -> BlockingConnection:
        return BlockingConnection(
            self.address, self.encoding, token=self.token, managed=self.managed, on_end=on_end
        )

    def connect_async(self, users: int) -> AsyncConnection:
        """Return a connection for `users` async callers; the first call connects."""
        from envweave.client.async_connection import AsyncConnection

        return AsyncConnection(
            self.address, self.encoding, token=self.token, users=users, managed=self.managed
        )

    def call(self, method: str, params: dict[str, Any]) -> Any:
        """Call a method of the server over a separate connection."""
        connection = self.connect()
        try:
            return connection.call_server(method, params)
        finally:
            connection.end()

    def call_with_retries(self, method: str, params: dict[str, Any]) -> Any:
        """Call a method as `call` does, but retry for a while if the server cannot be reached."""
        connection = self._connection()
        try:
            return connection.call_server(method, params)
        finally:
            connection.end()


@final
class ServerInfo:
    """The environment that a server serves, from its description.

    Attributes:
        interface: The environment's interface.
        tasks: Its tasks; `None` if it has none.
        rebuild: Makes observations from plain data.
        rebuild_state: Makes states from plain data.
        max_message_bytes: The largest message that the server accepts; 0 if unknown.

    Args:
        server: The server.
        plain: Its description, decoded.
        types: The author's classes, if they can be imported here.
        call_async: Calls the server on an event loop, if its callers have one.

    Raises:
        WireError: The description cannot be read.
    """

    def __init__(
        self, server: Server, plain: Any, types: Types, call_async: AsyncServerCall | None = None
    ) -> None:
        description = read_description(plain)
        rebuilt = Rebuilt(description, types)
        self.interface = rebuilt.interface
        self.tasks = tasks_of(description.splits, server.call_with_retries, call_async)
        self.rebuild = rebuilt.rebuild
        self.rebuild_state = rebuilt.rebuild_state
        self.max_message_bytes = description.max_message_bytes

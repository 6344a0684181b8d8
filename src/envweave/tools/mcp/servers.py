"""`McpServers`: the tools of MCP servers, for code to call."""

from __future__ import annotations

import asyncio
import contextlib
import keyword
import logging
import threading
import unicodedata
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, final

from envweave.errors import EnvWeaveError, OptionError, StartupError, suggest
from envweave.lifetime import OwnerProcess
from envweave.tools.mcp.config import (
    AnyConfig,
    CommandServer,
    UrlServer,
    check_seconds,
    read_config,
)
from envweave.tools.mcp.connection import McpConnection
from envweave.tools.mcp.sdk import (
    ListedTool,
    McpError,
    McpToolResult,
    check_sendable,
    need_sdk,
    value_of,
)
from envweave.tools.registry import ToolSource
from envweave.tools.tool import Tool

Prefix = Literal["auto", "always", "never"]
"""When the name of a tool begins with that of its server."""

Pair = tuple[str, str]
"""A server's name, and the name it gives to a tool of its."""


def identifier(name: str) -> str:
    """Return a name that code can use: `read-file` is `read_file`."""
    plain = unicodedata.normalize("NFKC", name)  # as Python reads names
    fitting = "".join(one if f"a{one}".isidentifier() else "_" for one in plain)
    bare = fitting.strip("_") or "tool"
    if not bare.isidentifier():  # it begins with a digit
        bare = f"_{bare}"
    return f"{bare}_" if keyword.iskeyword(bare) else bare


def called(tools: Iterable[Pair], prefix: Prefix) -> dict[Pair, str]:
    """Return what each tool is called in code.

    With `"auto"` a name that two servers give gets that of its server in front, on both of them.
    Names of one server that come out equal are numbered.

    Raises:
        OptionError: Two servers give the same name, and `"never"` forbids to tell them apart.
    """
    wanted = {pair: identifier(pair[1]) for pair in dict.fromkeys(tools)}
    servers = {
        name: {server for (server, _), one in wanted.items() if one == name}
        for name in wanted.values()
    }
    names: dict[Pair, str] = {}
    for (server, tool), bare in wanted.items():
        clashes = len(servers[bare]) > 1
        if clashes and prefix == "never":
            both = " and ".join(map(repr, sorted(servers[bare])))
            raise OptionError(
                f"The MCP servers {both} both have a tool {bare!r}, and prefix='never'. Leave out "
                "prefix, or give an 'allow' list to one of them."
            )
        is_told = prefix == "always" or clashes
        names[server, tool] = identifier(f"{server}_{tool}") if is_told else bare
    return _numbered(names)


def _numbered(names: dict[Pair, str]) -> dict[Pair, str]:
    """Number the names that are there more than once, from the second on."""
    taken: set[str] = set()
    plain = set(names.values())
    for pair, name in names.items():
        number, unique = 1, name
        while unique in taken or (number > 1 and unique in plain):
            number += 1
            unique = f"{name}_{number}"
        taken.add(unique)
        names[pair] = unique
    return names


T = TypeVar("T")

_JOIN_S = 30.0


@final
class McpLoopThread:
    """One event loop on one thread, which callers on any other loop can use.

    A connection to a server belongs to the task that made it, so it needs a loop that lasts as
    long as itself. A caller's does not: a sync caller has none between two calls.
    """

    def __init__(self) -> None:
        self.owner = OwnerProcess()
        self.loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(
            target=_serve, args=(self.loop,), name="envweave-mcp", daemon=True
        )
        self._thread.start()
        self._stop = weakref.finalize(self, _stop, self.loop)
        self._stop.atexit = False

    async def run(self, make: Callable[[], Awaitable[T]]) -> T:
        """Run what `make` returns on the thread, and wait for it on the caller's loop.

        Cancelling the caller cancels it.
        """

        async def made() -> T:
            return await make()

        running = made()
        try:
            future = asyncio.run_coroutine_threadsafe(running, self.loop)
        except RuntimeError:  # it is closed
            running.close()
            raise
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Cancel what is left, and end the thread. Harmless twice."""
        if not self.owner.is_current:
            self._stop.detach()
            return
        self._stop()
        self._thread.join(_JOIN_S)


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(RuntimeError):  # it is closed
        loop.call_soon_threadsafe(loop.stop)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=_JOIN_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


logger = logging.getLogger("envweave.tools")

_PREFIXES = ("auto", "always", "never")


@final
class McpServers(ToolSource):
    """Starts MCP servers, or reaches running ones, and brings their tools.

    A server that was started serves every episode until `close`. One that died is started again
    for the next episode; until then its tools fail. What a server starts ends with it, and all
    servers end with this process, however it ends.

    Servers are told no more of this process's environment variables than `PATH`, `HOME` and
    their kind, and what their `env` says. They may not ask for anything: requests for a model's
    answer, for the user's or for folders are refused.

    Args:
        config: `{"mcpServers": {name: {"command": …, "args": …, "env": …, "cwd": …}}}`, or
            `{"url": …, "headers": …, "type": "http" | "sse"}` for a server that runs already; or
            the path of a JSON file that holds this. A server may have `allow`, the tools that
            may be used, and `timeout_s` of its own.
        timeout_s: How long a server may take to start, and to answer a call.
        prefix: When a tool's name begins with its server's: `"auto"`, where two servers have
            tools of the same name; `"always"`; or `"never"`.

    Raises:
        MissingExtraError: The MCP SDK is not installed.
        OptionError: The configuration is invalid; the message names the server and the key.
    """

    name = "MCP servers"

    def __init__(
        self, config: AnyConfig, *, timeout_s: float = 30.0, prefix: Prefix = "auto"
    ) -> None:
        if prefix not in _PREFIXES:
            raise OptionError(f"prefix={prefix!r} is none of {', '.join(map(repr, _PREFIXES))}.")
        self._timeout_s = check_seconds(timeout_s, f"timeout_s={timeout_s!r}")
        self._prefix: Prefix = prefix
        self._servers = read_config(config)
        need_sdk()
        self.name = f"the MCP servers {', '.join(repr(one.name) for one in self._servers)}"
        self._lock = threading.Lock()  # protects the crew's coming and going
        self._crew: _Crew | None = None

    def __repr__(self) -> str:
        return f"<McpServers: {', '.join(one.name for one in self._servers)}>"

    @property
    def protocols(self) -> dict[str, str]:
        """By the name of each server that runs, the revision of the protocol that it speaks."""
        crew = self._crew
        return {} if crew is None else crew.protocols()

    async def start(self) -> Sequence[Tool]:
        """Start the servers that do not run, all at once, and return the tools that there are.

        Raises:
            OptionError: An `allow` list names a tool that its server has not, or tools of two
                servers have one name and `prefix` is `"never"`.
            StartupError: A server cannot be started. The message says which, and how it ended.
        """
        with self._lock:
            if self._crew is None or not self._crew.is_ours:  # threads do not survive a fork
                self._crew = _Crew(self._servers, self._timeout_s)
            crew = self._crew
        listed = await crew.start()
        return [
            self._tool(name, crew, server, tool)
            for name, (server, tool) in _named(self._servers, listed, self._prefix).items()
        ]

    def _tool(self, name: str, crew: _Crew, server: str, listed: ListedTool) -> Tool:
        async def call(**arguments: Any) -> Any:
            check_sendable(name, arguments)
            answer = await crew.call(server, listed.name, arguments)
            return value_of(answer, listed.output)

        try:
            return Tool(
                name=name,
                function=call,
                description=listed.description,
                parameters=listed.parameters,
            )
        except OptionError as error:
            # The server checks what it is sent itself, so nothing is lost but the help.
            logger.warning("MCP server %r: %s It takes any arguments.", server, error)
            return Tool(
                name=name,
                function=call,
                description=listed.description,
                parameters={"type": "object"},
            )

    async def close(self) -> None:
        """End the servers, and the thread that talks to them. Harmless twice."""
        with self._lock:
            crew, self._crew = self._crew, None
        if crew is not None:
            await crew.close()


def _named(
    servers: Iterable[CommandServer | UrlServer],
    listed: Mapping[str, Sequence[ListedTool]],
    prefix: Prefix,
) -> dict[str, tuple[str, ListedTool]]:
    """Return the tools that may be used, by what code calls them."""
    found = {
        (server.name, tool.name): tool
        for server in servers
        for tool in _allowed(server, listed[server.name])
    }
    return {name: (pair[0], found[pair]) for pair, name in called(found, prefix).items()}


def _allowed(server: CommandServer | UrlServer, tools: Sequence[ListedTool]) -> list[ListedTool]:
    known = [tool.name for tool in tools]
    for name in server.allow or ():
        if name not in known:
            raise OptionError(
                f"MCP server {server.name!r}: allow=[{name!r}, …]: it has no such tool."
                f"{suggest(name, known)} Known: {', '.join(known) or 'none'}."
            )
    return [tool for tool in tools if server.allow is None or tool.name in server.allow]


@final
class _Crew:
    """The connections to all servers, and the thread that they live on."""

    def __init__(self, servers: Sequence[CommandServer | UrlServer], timeout_s: float) -> None:
        self._servers = servers
        self._timeout_s = timeout_s
        self._thread = McpLoopThread()
        self._starting = asyncio.Lock()  # held while servers are started, and while they end
        self._connections: dict[str, McpConnection] = {}
        self._is_closed = False

    @property
    def is_ours(self) -> bool:
        """Whether this process made it."""
        return self._thread.owner.is_current

    def protocols(self) -> dict[str, str]:
        return {name: one.protocol for name, one in list(self._connections.items())}

    async def start(self) -> dict[str, list[ListedTool]]:
        return await self._thread.run(self._start)

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any]) -> McpToolResult:
        if self._is_closed or not self.is_ours:
            whose = "is closed" if self.is_ours else "belongs to another process"
            raise McpError(f"The MCP server {server!r} {whose}.")
        connection = self._connections[server]
        return await self._thread.run(lambda: connection.call(tool, arguments))

    async def close(self) -> None:
        try:
            if self.is_ours:
                await self._thread.run(self._end)
        finally:
            self._is_closed = True
            self._thread.close()

    async def _start(self) -> dict[str, list[ListedTool]]:
        async with self._starting:
            if self._is_closed:
                raise StartupError("The MCP servers were closed while they were to be started.")
            names = [server.name for server in self._servers]
            starts = [asyncio.create_task(self._ready(server)) for server in self._servers]
            try:
                await asyncio.wait(starts)
            except asyncio.CancelledError:
                for one in starts:
                    one.cancel()
                await asyncio.wait(starts)
                raise
            _raise_all([error for one in starts if (error := one.exception()) is not None])
            return dict(zip(names, [one.result() for one in starts], strict=True))

    async def _ready(self, server: CommandServer | UrlServer) -> list[ListedTool]:
        """Return the tools of a server that runs, or is started for it."""
        old = self._connections.get(server.name)
        if old is not None:
            tools = await old.tools()
            if tools is not None:
                return tools
            await old.close()
        connection = self._connections[server.name] = McpConnection(server, self._timeout_s)
        return await connection.open()

    async def _end(self) -> None:
        async with self._starting:
            self._is_closed = True
            closing = [asyncio.create_task(one.close()) for one in self._connections.values()]
            if closing:
                await asyncio.wait(closing)


def _raise_all(errors: Sequence[BaseException]) -> None:
    """Raise what went wrong; of several servers, as one error."""
    if not errors:
        return
    if len(errors) == 1 or not all(isinstance(one, EnvWeaveError) for one in errors):
        raise errors[0]
    raise StartupError("\n".join(map(str, errors)))

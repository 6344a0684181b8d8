"""`McpServers`: makes the tools of MCP servers available to code."""

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
    extract_value,
    need_sdk,
)
from envweave.tools.registry import ToolSource
from envweave.tools.tool import Tool

Prefix = Literal["auto", "always", "never"]
"""When the name of a tool begins with the name of its server."""

Pair = tuple[str, str]
"""The name of a server, and the server's own name of one of its tools."""


def identifier(name: str) -> str:
    """Return a name as a Python identifier: `read-file` becomes `read_file`."""
    plain = unicodedata.normalize("NFKC", name)  # as Python reads names
    valid = "".join(one if f"a{one}".isidentifier() else "_" for one in plain)
    bare = valid.strip("_") or "tool"
    if not bare.isidentifier():  # it begins with a digit
        bare = f"_{bare}"
    return f"{bare}_" if keyword.iskeyword(bare) else bare


def assign_names(tools: Iterable[Pair], prefix: Prefix) -> dict[Pair, str]:
    """Return the name of each tool in code.

    With `"auto"` tools that two servers call the same get the name of their server as a prefix.
    Names of one server that become equal are numbered.

    Raises:
        OptionError: Two servers use the same name, and `prefix` is `"never"`.
    """
    identifiers = {pair: identifier(pair[1]) for pair in dict.fromkeys(tools)}
    servers = {
        name: {server for (server, _), one in identifiers.items() if one == name}
        for name in identifiers.values()
    }
    names: dict[Pair, str] = {}
    for (server, tool), bare in identifiers.items():
        clashes = len(servers[bare]) > 1
        if clashes and prefix == "never":
            both = " and ".join(map(repr, sorted(servers[bare])))
            raise OptionError(
                f"The MCP servers {both} both have a tool {bare!r}, and prefix='never'. Remove "
                "prefix, or set 'allow' for one of them."
            )
        has_prefix = prefix == "always" or clashes
        names[server, tool] = identifier(f"{server}_{tool}") if has_prefix else bare
    return _number_duplicates(names)


def _number_duplicates(names: dict[Pair, str]) -> dict[Pair, str]:
    """Append a number to the second and later occurrences of a name."""
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
    """An event loop on its own thread, which callers on any other loop can use.

    A connection to a server belongs to the task that made it, so its loop must live as long as the
    connection. The caller's loop may not: a sync caller has none between two calls.
    """

    def __init__(self) -> None:
        self.owner = OwnerProcess()
        self.loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(
            target=_run_loop, args=(self.loop,), name="envweave-mcp", daemon=True
        )
        self._thread.start()
        self._stop = weakref.finalize(self, _stop_loop, self.loop)
        self._stop.atexit = False

    async def run(self, make: Callable[[], Awaitable[T]]) -> T:
        """Await what `make` returns on the thread, and wait for it on the caller's loop.

        Cancelling the caller cancels it.
        """

        async def await_it() -> T:
            return await make()

        running = await_it()
        try:
            future = asyncio.run_coroutine_threadsafe(running, self.loop)
        except RuntimeError:  # the loop is closed
            running.close()
            raise
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Cancel the remaining tasks, and stop the thread. Harmless twice."""
        if not self.owner.is_current:
            self._stop.detach()
            return
        self._stop()
        self._thread.join(_JOIN_S)


def _stop_loop(loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(loop.stop)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
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
    """Starts MCP servers, or connects to running ones, and provides their tools.

    A server that was started serves every episode until `close`. One that died is started again
    for the next episode; until then its tools fail. A server's child processes end with it, and
    all servers end with this process, however it ends.

    Of this process's environment variables, servers get only `PATH`, `HOME` and the like; add
    others with `env`. Requests that servers make to the client (sampling, elicitation, roots) are
    refused.

    Args:
        config: `{"mcpServers": {name: {"command": …, "args": …, "env": …, "cwd": …}}}`, or
            `{"url": …, "headers": …, "type": "http" | "sse"}` for a server that runs already; or
            the path of a JSON file with this content. A server may have `allow`, the tools that
            may be used, and its own `timeout_s`.
        timeout_s: How long a server may take to start, and to answer a call.
        prefix: When a tool's name begins with its server's: `"auto"` (if two servers have tools
            of the same name), `"always"` or `"never"`.

    Raises:
        MissingExtraError: The MCP SDK is not installed.
        OptionError: The configuration is invalid; the message names the server and the key.
    """

    name = "MCP servers"

    def __init__(
        self, config: AnyConfig, *, timeout_s: float = 30.0, prefix: Prefix = "auto"
    ) -> None:
        if prefix not in _PREFIXES:
            raise OptionError(
                f"prefix={prefix!r}: expected one of {', '.join(map(repr, _PREFIXES))}."
            )
        self._timeout_s = check_seconds(timeout_s, f"timeout_s={timeout_s!r}")
        self._prefix: Prefix = prefix
        self._servers = read_config(config)
        need_sdk()
        self.name = f"the MCP servers {', '.join(repr(one.name) for one in self._servers)}"
        self._lock = threading.Lock()  # protects `_connections`
        self._connections: _McpConnections | None = None

    def __repr__(self) -> str:
        return f"<McpServers: {', '.join(one.name for one in self._servers)}>"

    @property
    def protocols(self) -> dict[str, str]:
        """The negotiated revision of the protocol, by the name of each running server."""
        connections = self._connections
        return {} if connections is None else connections.protocols()

    async def start(self) -> Sequence[Tool]:
        """Start the servers that are not running, in parallel, and return the current tools.

        Raises:
            OptionError: An `allow` list names an unknown tool, or tools of two servers have the
                same name and `prefix` is `"never"`.
            StartupError: A server cannot be started. The message says which, and why.
        """
        with self._lock:
            if self._connections is None or not self._connections.is_ours:
                # Threads do not survive a fork.
                self._connections = _McpConnections(self._servers, self._timeout_s)
            connections = self._connections
        listed = await connections.start()
        return [
            self._make_tool(name, connections, server, tool)
            for name, (server, tool) in _name_tools(self._servers, listed, self._prefix).items()
        ]

    def _make_tool(
        self, name: str, connections: _McpConnections, server: str, listed: ListedTool
    ) -> Tool:
        async def call(**arguments: Any) -> Any:
            check_sendable(name, arguments)
            result = await connections.call(server, listed.name, arguments)
            return extract_value(result, listed.output)

        try:
            return Tool(
                name=name,
                function=call,
                description=listed.description,
                parameters=listed.parameters,
            )
        except OptionError as error:
            # The server checks the arguments itself; only the help text is lost.
            logger.warning("MCP server %r: %s Its arguments are not checked here.", server, error)
            return Tool(
                name=name,
                function=call,
                description=listed.description,
                parameters={"type": "object"},
            )

    async def close(self) -> None:
        """Stop the servers, and the thread of their connections. Harmless twice."""
        with self._lock:
            connections, self._connections = self._connections, None
        if connections is not None:
            await connections.close()


def _name_tools(
    servers: Iterable[CommandServer | UrlServer],
    listed: Mapping[str, Sequence[ListedTool]],
    prefix: Prefix,
) -> dict[str, tuple[str, ListedTool]]:
    """Return the allowed tools, by their names in code."""
    found = {
        (server.name, tool.name): tool
        for server in servers
        for tool in _filter_allowed(server, listed[server.name])
    }
    return {name: (pair[0], found[pair]) for pair, name in assign_names(found, prefix).items()}


def _filter_allowed(
    server: CommandServer | UrlServer, tools: Sequence[ListedTool]
) -> list[ListedTool]:
    known = [tool.name for tool in tools]
    for name in server.allow or ():
        if name not in known:
            raise OptionError(
                f"MCP server {server.name!r}: allow=[{name!r}, …]: there is no such tool."
                f"{suggest(name, known)} Known: {', '.join(known) or 'none'}."
            )
    return [tool for tool in tools if server.allow is None or tool.name in server.allow]


@final
class _McpConnections:
    """The connections to all servers, and the thread that runs them."""

    def __init__(self, servers: Sequence[CommandServer | UrlServer], timeout_s: float) -> None:
        self._servers = servers
        self._timeout_s = timeout_s
        self._thread = McpLoopThread()
        self._starting = asyncio.Lock()  # held while servers are started or stopped
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
            reason = "is closed" if self.is_ours else "belongs to another process"
            raise McpError(f"The MCP server {server!r} {reason}.")
        connection = self._connections[server]
        return await self._thread.run(lambda: connection.call(tool, arguments))

    async def close(self) -> None:
        try:
            if self.is_ours:
                await self._thread.run(self._close_all)
        finally:
            self._is_closed = True
            self._thread.close()

    async def _start(self) -> dict[str, list[ListedTool]]:
        async with self._starting:
            if self._is_closed:
                raise StartupError("The MCP servers were closed while they were being started.")
            names = [server.name for server in self._servers]
            starts = [asyncio.create_task(self._get_tools(server)) for server in self._servers]
            try:
                await asyncio.wait(starts)
            except asyncio.CancelledError:
                for one in starts:
                    one.cancel()
                await asyncio.wait(starts)
                raise
            _raise_all([error for one in starts if (error := one.exception()) is not None])
            return dict(zip(names, [one.result() for one in starts], strict=True))

    async def _get_tools(self, server: CommandServer | UrlServer) -> list[ListedTool]:
        """Return the tools of a server; start it unless it runs."""
        old = self._connections.get(server.name)
        if old is not None:
            tools = await old.tools()
            if tools is not None:
                return tools
            await old.close()
        connection = self._connections[server.name] = McpConnection(server, self._timeout_s)
        return await connection.open()

    async def _close_all(self) -> None:
        async with self._starting:
            self._is_closed = True
            closing = [asyncio.create_task(one.close()) for one in self._connections.values()]
            if closing:
                await asyncio.wait(closing)


def _raise_all(errors: Sequence[BaseException]) -> None:
    """Raise the errors of the servers, if any, as one error."""
    if not errors:
        return
    if len(errors) == 1 or not all(isinstance(one, EnvWeaveError) for one in errors):
        raise errors[0]
    raise StartupError("\n".join(map(str, errors)))

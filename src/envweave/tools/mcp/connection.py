"""The connection to one MCP server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, final

from envweave.errors import EnvWeaveError, StartupError
from envweave.tools.mcp import sdk
from envweave.tools.mcp.config import CommandServer, UrlServer
from envweave.tools.mcp.process import END_S, McpServerProcess
from envweave.tools.mcp.sdk import ListedTool, McpError, McpToolResult, Peer, PeerLostError

logger = logging.getLogger("envweave.tools")

_REASON_S = 5.0
"""How long to wait for the reason why a connection broke."""


@final
class McpConnection:
    """A connection, run by a separate task: the library requires one task to enter and exit it.

    It belongs to the event loop it is used on, and is opened once.

    Args:
        server: What to connect to.
        timeout_s: How long it may take to start, and to answer, unless its configuration sets it.
    """

    def __init__(self, server: CommandServer | UrlServer, timeout_s: float) -> None:
        self.server = server
        self._timeout_s = timeout_s if server.timeout_s is None else server.timeout_s
        self._process: McpServerProcess | None = None
        self._peer: Peer | None = None
        loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = loop.create_future()
        self._over: asyncio.Future[str] = loop.create_future()  # why it is over
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def protocol(self) -> str:
        """The negotiated protocol version."""
        return "" if self._peer is None else self._peer.protocol

    async def open(self) -> list[ListedTool]:
        """Start or reach the server, and return its tools.

        Raises:
            StartupError: The server cannot be reached; the message says which one, and why.
        """
        self._task = asyncio.create_task(self._run())
        try:
            async with asyncio.timeout(self._timeout_s):
                await _wait_for_any(self._opened, self._over)
                if not self._over.done():
                    return await self._list_tools()
                why = self._over.result()
        except TimeoutError:
            why = f"it did not answer within {self._timeout_s:g} s"
        except (McpError, PeerLostError) as error:
            why = await self._wait_for_reason() or str(error)
        except BaseException:
            await self.close()
            raise
        await self.close()
        raise StartupError(
            f"The MCP server {self.server.name!r} ({self.server.where}) could not be started: "
            f"{why}.{self._last_lines()}"
        )

    async def tools(self) -> list[ListedTool] | None:
        """Return the current tools; `None` if the server no longer answers."""
        if self._over.done():
            return None
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._list_tools()
        except (TimeoutError, McpError, PeerLostError):
            return None

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> McpToolResult:
        """Call a tool, by the server's own name for it.

        Raises:
            McpError: The server refuses the call, is gone, or takes too long.
        """
        if self._over.done() or self._peer is None:
            raise self._gone_error()
        calling = asyncio.create_task(self._peer.call_tool(tool, arguments))
        calling.add_done_callback(_retrieve_exception)
        try:
            await _wait_for_any(calling, self._over, timeout_s=self._timeout_s)
            if calling.done():
                return calling.result()
        except PeerLostError as error:
            if not await self._wait_for_reason():
                raise McpError(str(error)) from None
        finally:
            calling.cancel()
        if self._over.done():
            raise self._gone_error()
        raise McpError(
            f"The MCP server {self.server.name!r} did not answer {tool!r} within "
            f"{self._timeout_s:g} s."
        )

    async def close(self) -> None:
        """Close the connection, and stop the server if it was started here. Harmless twice."""
        task = self._task
        if task is None:
            return
        self._closing.set()
        if self._opened.done():
            await asyncio.wait({task}, timeout=END_S)
        task.cancel()
        await asyncio.wait({task}, timeout=END_S)

    async def _list_tools(self) -> list[ListedTool]:
        """List the tools, while the connection lasts."""
        assert self._peer is not None
        listing = asyncio.create_task(self._peer.list_tools())
        listing.add_done_callback(_retrieve_exception)
        try:
            await _wait_for_any(listing, self._over)
            if not listing.done():
                raise PeerLostError(self._over.result())
            return listing.result()
        finally:
            listing.cancel()

    async def _run(self) -> None:
        """Connect, wait until the connection is closed or breaks, and disconnect."""
        try:
            why = await self._run_once(is_old=False)
            if why and self._exited_on_probe():
                why = await self._run_once(is_old=True)
            self._end_with(why or "it was closed")
        finally:
            self._end_with("it was closed")

    async def _run_once(self, *, is_old: bool) -> str:
        """Connect and disconnect. Return why the connection failed or broke; empty if not."""
        try:
            async with AsyncExitStack() as stack:
                self._peer = await self._connect(stack, is_old=is_old)
                self._opened.set_result(None)
                await self._wait_until_over()
        except Exception as error:  # noqa: BLE001 - a library and a server may raise anything
            return await self._describe(error)
        return ""

    def _exited_on_probe(self) -> bool:
        """Whether the server exited instead of answering the probe.

        Some servers that need the handshake exit when any other message comes first.
        """
        has_exited = self._process is not None and self._process.finished.is_set()
        return has_exited and not self._opened.done() and sdk.probes_before_handshake()

    async def _connect(self, stack: AsyncExitStack, *, is_old: bool) -> Peer:
        server = self.server
        if isinstance(server, UrlServer):
            return await stack.enter_async_context(sdk.connect_to_url(server))
        env = {**sdk.default_environment(), **server.env}
        self._process = await McpServerProcess.start(server, env)
        stack.push_async_callback(self._process.end)
        connected = sdk.connect_to_process(self._process, is_old=is_old)
        return await stack.enter_async_context(connected)

    async def _wait_until_over(self) -> None:
        closing = asyncio.create_task(self._closing.wait())
        finished = asyncio.create_task(
            self._closing.wait() if self._process is None else self._process.finished.wait()
        )
        try:
            await _wait_for_any(closing, finished)
        finally:
            closing.cancel()
            finished.cancel()
        if not self._closing.is_set():
            assert self._process is not None
            self._end_with(await self._process.why_finished())

    def _end_with(self, why: str) -> None:
        if self._over.done():
            return
        self._over.set_result(why)
        if self._opened.done() and not self._closing.is_set():
            logger.warning(
                "The MCP server %r is gone: %s.%s", self.server.name, why, self._last_lines()
            )

    async def _describe(self, error: BaseException) -> str:
        """Describe why a connection could not be made, or broke."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, EnvWeaveError):
            return str(error).rstrip(".")
        if self._process is not None and self._process.finished.is_set():
            return await self._process.why_finished()
        return f"{type(error).__name__}: {error}".rstrip(".: ")

    async def _wait_for_reason(self) -> str:
        """Return why the connection is over, as soon as that is known; empty if it is not."""
        await asyncio.wait({self._over}, timeout=_REASON_S)
        return self._over.result() if self._over.done() else ""

    def _gone_error(self) -> McpError:
        # Without the server's stderr, which is for the operator: the caller is the agent's code.
        why = self._over.result() if self._over.done() else "it was never started"
        return McpError(
            f"The MCP server {self.server.name!r} is gone: {why}. The next episode starts it again."
        )

    def _last_lines(self) -> str:
        lines = "" if self._process is None else self._process.last_lines()
        return f" Its last lines:\n{lines}" if lines else ""


async def _wait_for_any(*futures: asyncio.Future[Any], timeout_s: float | None = None) -> None:
    """Wait until one of them is done, or the timeout passes."""
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception of a task that may no longer be awaited."""
    if not task.cancelled():
        task.exception()

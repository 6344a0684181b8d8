"""The one place that knows the `mcp` library: both its major versions, behind one face.

Version 1 speaks the revisions of the protocol that begin with a handshake (`initialize`). Version
2 also speaks those that have none: it asks the server first, and shakes hands where that fails.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, final

from envweave.errors import EnvWeaveError, MissingExtraError
from envweave.tools.mcp.config import UrlServer
from envweave.tools.mcp.process import McpServerProcess

_KEPT = ("uri", "name", "title", "description", "mimeType", "data", "text")


class McpError(EnvWeaveError, RuntimeError):
    """A call of an MCP server's tool failed: in the server's words, or what became of it."""


@dataclass(frozen=True)
class McpToolResult:
    """What a server sent back for a call.

    Attributes:
        content: The blocks of content, as in the protocol.
        structured: The same as data, where the server gives it so.
        is_error: Whether the content says what went wrong.
    """

    content: Sequence[Mapping[str, Any]]
    structured: Any = None
    is_error: bool = False


def check_sendable(tool: str, arguments: Mapping[str, Any]) -> None:
    """Refuse what JSON has no words for. Code behind walls can pass more than that.

    Raises:
        TypeError: The message names the argument.
    """
    for name, value in arguments.items():
        odd = _unsayable(value)
        if odd:
            raise TypeError(f"{tool}() argument {name!r}: JSON, which MCP speaks, has no {odd}.")


def _unsayable(value: Any) -> str:
    """Return what JSON cannot say of a value; nothing if it can say all of it."""
    if value is None or isinstance(value, str | int):  # a bool is an int
        return ""
    if isinstance(value, float):
        return "" if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return next(filter(None, map(_unsayable, value)), "")
    if isinstance(value, dict):
        odd = next((key for key in value if not isinstance(key, str)), None)
        if odd is not None:
            return f"key {odd!r}"
        return next(filter(None, map(_unsayable, value.values())), "")
    return type(value).__name__


def value_of(answer: McpToolResult, output: Mapping[str, Any] | None) -> Any:
    """Return an answer as plain data.

    Data is given as it is, text as text, several texts joined by line breaks. Anything else is a
    dict with its `type`: what a picture holds is under `data`, in Base64. Where text and others
    come together it is a list, in order.

    Args:
        answer: What the server sent.
        output: The JSON Schema of the tool's results, where it has one.

    Raises:
        McpError: It tells of an error.
    """
    if answer.is_error:
        raise McpError(_text(answer) or "The server says that the call failed, and not why.")
    if answer.structured is not None:
        return _unwrapped(answer.structured, output)
    blocks = [_plain(block) for block in answer.content]
    if all(isinstance(block, str) for block in blocks):
        return "\n".join(blocks) if blocks else None
    return blocks[0] if len(blocks) == 1 else blocks


def _unwrapped(structured: Any, output: Mapping[str, Any] | None) -> Any:
    """Take a result out of the object that servers put it in, since the protocol wants one."""
    if not isinstance(structured, Mapping) or list(structured) != ["result"]:
        return structured
    declared = output.get("properties") if output is not None else None
    if isinstance(declared, Mapping) and list(declared) == ["result"]:
        return structured["result"]
    return structured


def _plain(block: Mapping[str, Any]) -> Any:
    if block.get("type") == "text":
        return str(block.get("text", ""))
    told = {"type": block.get("type", "")}
    held = block.get("resource")
    for source in (block, held if isinstance(held, Mapping) else {}):
        told |= {key: source[key] for key in _KEPT if key in source}
        if "blob" in source:
            told["data"] = source["blob"]
    return told


def _text(answer: McpToolResult) -> str:
    texts = [_plain(block) for block in answer.content]
    return "\n".join(text for text in texts if isinstance(text, str)).strip()


_MOST_PAGES = 1000
_CLOSED = "Connection closed"
_UNHEARD = ("notifications/message", "notifications/progress")


@dataclass(frozen=True)
class ListedTool:
    """A tool as its server lists it.

    Attributes:
        name: The server's name for it.
        description: What it does.
        parameters: The JSON Schema of its arguments.
        output: The JSON Schema of its results; `None` where it says nothing.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    output: dict[str, Any] | None


class Peer(Protocol):
    """A server with which a connection stands."""

    @property
    def protocol(self) -> str:
        """The revision of the protocol that both speak."""

    async def list_tools(self) -> list[ListedTool]:
        """Return all tools, over however many pages."""

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> McpToolResult:
        """Call a tool.

        Raises:
            McpError: The server refuses the call.
            PeerLostError: There is no connection any more.
        """


class PeerLostError(Exception):
    """The connection is gone, or what came over it cannot be read."""


def need_sdk() -> None:
    """Refuse to go on without the library. It is not imported yet.

    Raises:
        MissingExtraError: It is not installed.
    """
    if importlib.util.find_spec("mcp") is None:
        raise MissingExtraError.for_extra("MCP servers need the MCP SDK.", "mcp")


def default_environment() -> dict[str, str]:
    """Return the few environment variables that every program needs, and no secrets."""
    return dict(importlib.import_module("mcp.client.stdio").get_default_environment())


@asynccontextmanager
async def connect_to_process(process: McpServerProcess, *, is_old: bool) -> AsyncIterator[Peer]:
    """Connect to a server that runs here. It must be left by the task that entered it.

    Args:
        process: The server.
        is_old: Whether it is known to begin with a handshake, and is not asked.
    """
    async with _connected(_lines(process), is_old=is_old) as peer:
        yield peer


@asynccontextmanager
async def connect_to_url(server: UrlServer) -> AsyncIterator[Peer]:
    """Connect to a server over HTTP. It must be left by the task that entered it."""
    headers = dict(server.headers)
    if server.transport == "sse":
        sse = importlib.import_module("mcp.client.sse")
        async with _connected(sse.sse_client(server.url, headers=headers), is_old=True) as peer:
            yield peer
        return
    streamable = importlib.import_module("mcp.client.streamable_http")
    # The library's own client: its defaults go with the way it treats redirects.
    async with streamable.create_mcp_http_client(headers=headers) as client:
        transport = streamable.streamable_http_client(server.url, http_client=client)
        async with _connected(transport, is_old=False) as peer:
            yield peer


def asks_before_handshake() -> bool:
    """Whether a server is first asked if it needs a handshake at all."""
    return _load() >= 2


def _load() -> int:
    """Import the library, which takes a while; return its major version."""
    need_sdk()
    importlib.import_module("mcp")
    return int(importlib.metadata.version("mcp").partition(".")[0])


@asynccontextmanager
async def _connected(
    transport: AbstractAsyncContextManager[Any], *, is_old: bool
) -> AsyncIterator[Peer]:
    """Agree on a revision of the protocol.

    Args:
        transport: Brings the streams that messages go over.
        is_old: Whether the server behind it is known to begin with a handshake.
    """
    version = _load()
    mcp = importlib.import_module("mcp")
    ours = mcp.types.Implementation(name="envweave", version=_own_version())
    if version >= 2:
        mode = "legacy" if is_old else "auto"
        async with mcp.Client(transport, mode=mode, client_info=ours, cache=None) as client:
            yield _NewPeer(client)
        return
    async with (
        transport as (reading, writing, *_),
        mcp.ClientSession(reading, writing, client_info=ours) as session,
    ):
        shaken = await session.initialize()
        yield _OldPeer(session, str(shaken.protocolVersion))


def _own_version() -> str:
    try:
        return importlib.metadata.version("envweave")
    except importlib.metadata.PackageNotFoundError:  # it runs from its source
        return "0"


@final
class _NewPeer:
    """A connection of version 2."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @property
    def protocol(self) -> str:
        return str(self._client.protocol_version)

    async def list_tools(self) -> list[ListedTool]:
        found: list[ListedTool] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            with _errors():
                page = await self._client.list_tools(cursor=cursor)
            found += [
                ListedTool(one.name, _words(one), one.input_schema, one.output_schema)
                for one in page.tools
            ]
            cursor = page.next_cursor
            if cursor is None:
                return found
        raise _endless()

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> McpToolResult:
        with _errors():
            result = await self._client.call_tool(name, dict(arguments))
        return McpToolResult(_blocks(result), result.structured_content, bool(result.is_error))


@final
class _OldPeer:
    """A connection of version 1."""

    def __init__(self, session: Any, protocol: str) -> None:
        self._session = session
        self.protocol = protocol
        self._page = importlib.import_module("mcp.types").PaginatedRequestParams

    async def list_tools(self) -> list[ListedTool]:
        found: list[ListedTool] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            with _errors():
                params = None if cursor is None else self._page(cursor=cursor)
                page = await self._session.list_tools(params=params)
            found += [
                ListedTool(one.name, _words(one), one.inputSchema, one.outputSchema)
                for one in page.tools
            ]
            cursor = page.nextCursor
            if cursor is None:
                return found
        raise _endless()

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> McpToolResult:
        with _errors():
            result = await self._session.call_tool(name, dict(arguments))
        return McpToolResult(_blocks(result), result.structuredContent, bool(result.isError))


def _words(tool: Any) -> str:
    return str(tool.description or tool.title or "")


def _blocks(result: Any) -> list[dict[str, Any]]:
    return [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in result.content]


def _endless() -> McpError:
    return McpError(f"The server lists its tools on more than {_MOST_PAGES} pages.")


@contextmanager
def _errors() -> Iterator[None]:
    """Raise what the library raises as what a `Peer` does."""
    anyio, mcp = importlib.import_module("anyio"), importlib.import_module("mcp")
    pydantic = importlib.import_module("pydantic")
    refusal = mcp.MCPError if hasattr(mcp, "MCPError") else mcp.McpError
    try:
        yield
    except refusal as error:
        # Servers use this number for errors of their own, too.
        if (error.error.code, error.error.message) == (mcp.types.CONNECTION_CLOSED, _CLOSED):
            raise PeerLostError(_CLOSED) from None
        raise McpError(error.error.message) from None
    except (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream):
        raise PeerLostError(_CLOSED) from None
    except pydantic.ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, wrong["loc"]))
        raise McpError(
            f"The server's answer breaks the protocol: {where}: {wrong['msg']}"
        ) from None
    except Exception as error:  # such as a result that does not fit the tool's own schema
        raise McpError(str(error) or type(error).__name__) from error


@asynccontextmanager
async def _lines(process: McpServerProcess) -> AsyncIterator[tuple[Any, Any]]:
    """Bring the streams that carry messages to a process and back, one a line.

    The library has such a transport. That one keeps a line of any length, copies all of it for
    every piece that comes, and prints a traceback for each line that is no message.
    """
    anyio = importlib.import_module("anyio")
    arriving, read = anyio.create_memory_object_stream(0)
    written, leaving = anyio.create_memory_object_stream(0)
    message_of, line_of = _wording()
    over = (anyio.ClosedResourceError, anyio.BrokenResourceError, ConnectionError)

    async def receive() -> None:
        async with arriving:
            while line := await process.read():
                message = message_of(line)
                if message is not None:
                    try:
                        await arriving.send(message)
                    except over:
                        return

    async def send() -> None:
        try:
            async with leaving:
                async for message in leaving:
                    await process.write(line_of(message))
        except over:
            await arriving.aclose()  # whoever waits for an answer is told that none will come

    async with arriving, read, written, leaving, anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        tasks.start_soon(send)
        try:
            yield read, written
        finally:
            tasks.cancel_scope.cancel()


def _wording() -> tuple[Any, Any]:
    """Return what makes a message of a line, or `None` of what is none, and a line of a message."""
    types = importlib.import_module("mcp.types")
    wrap = importlib.import_module("mcp.shared.message").SessionMessage
    is_new = _load() >= 2

    def message_of(line: bytes) -> Any:
        try:
            if is_new:
                told = message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
            else:
                message = types.JSONRPCMessage.model_validate_json(line)
                told = message.root
        except ValueError:
            return None  # what a program prints that should be silent
        is_heard = getattr(told, "method", None) not in _UNHEARD
        return wrap(message) if is_heard else None

    def line_of(message: Any) -> bytes:
        which = {"exclude_unset": True} if is_new else {"exclude_none": True}
        text: str = message.message.model_dump_json(by_alias=True, **which)
        return text.encode()

    return message_of, line_of

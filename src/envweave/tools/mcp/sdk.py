"""The only module that uses the `mcp` library: one interface over both its major versions.

Version 1 supports the protocol revisions that begin with a handshake (`initialize`). Version 2
also supports those without one: it probes the server first, and falls back to the handshake.
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

_BLOCK_KEYS = ("uri", "name", "title", "description", "mimeType", "data", "text")


class McpError(EnvWeaveError, RuntimeError):
    """A call of an MCP server's tool failed; the message is the server's own if it sent one."""


@dataclass(frozen=True)
class McpToolResult:
    """The result of a tool call, as the server sent it.

    Attributes:
        content: The content blocks, as in the protocol.
        structured: The structured content; `None` if the server sent none.
        is_error: Whether the call failed; the content then describes the error.
    """

    content: Sequence[Mapping[str, Any]]
    structured: Any = None
    is_error: bool = False


def check_sendable(tool: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that JSON cannot represent. Sandboxed code can pass other values, too.

    Raises:
        TypeError: The message names the argument.
    """
    for name, value in arguments.items():
        unsupported = _find_non_json(value)
        if unsupported:
            raise TypeError(
                f"{tool}() argument {name!r}: MCP uses JSON, which cannot represent {unsupported}."
            )


def _find_non_json(value: Any) -> str:
    """Describe the first part of a value that JSON cannot represent; empty if there is none."""
    if value is None or isinstance(value, str | int):  # a bool is an int
        return ""
    if isinstance(value, float):
        return "" if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return next(filter(None, map(_find_non_json, value)), "")
    if isinstance(value, dict):
        invalid_key = next((key for key in value if not isinstance(key, str)), None)
        if invalid_key is not None:
            return f"key {invalid_key!r}"
        return next(filter(None, map(_find_non_json, value.values())), "")
    return type(value).__name__


def extract_value(result: McpToolResult, output: Mapping[str, Any] | None) -> Any:
    """Return the result of a call as plain data.

    Structured content is returned unchanged, text as a string, several texts joined by line
    breaks. Any other block becomes a dict with its `type`; the content of an image is under
    `data`, in Base64. A mixture of text and other blocks is a list, in order.

    Args:
        result: The result of the call.
        output: The JSON Schema of the tool's results, if it declares one.

    Raises:
        McpError: The call failed.
    """
    if result.is_error:
        raise McpError(_join_texts(result) or "The server reported an error without a message.")
    if result.structured is not None:
        return _unwrap(result.structured, output)
    blocks = [_to_plain(block) for block in result.content]
    if all(isinstance(block, str) for block in blocks):
        return "\n".join(blocks) if blocks else None
    return blocks[0] if len(blocks) == 1 else blocks


def _unwrap(structured: Any, output: Mapping[str, Any] | None) -> Any:
    """Remove the object `{"result": …}` that servers add because the protocol requires one."""
    if not isinstance(structured, Mapping) or list(structured) != ["result"]:
        return structured
    declared = output.get("properties") if output is not None else None
    if isinstance(declared, Mapping) and list(declared) == ["result"]:
        return structured["result"]
    return structured


def _to_plain(block: Mapping[str, Any]) -> Any:
    if block.get("type") == "text":
        return str(block.get("text", ""))
    plain = {"type": block.get("type", "")}
    resource = block.get("resource")
    for source in (block, resource if isinstance(resource, Mapping) else {}):
        plain |= {key: source[key] for key in _BLOCK_KEYS if key in source}
        if "blob" in source:
            plain["data"] = source["blob"]
    return plain


def _join_texts(result: McpToolResult) -> str:
    texts = [_to_plain(block) for block in result.content]
    return "\n".join(text for text in texts if isinstance(text, str)).strip()


_MOST_PAGES = 1000
_CLOSED = "Connection closed"
_IGNORED_NOTIFICATIONS = ("notifications/message", "notifications/progress")


@dataclass(frozen=True)
class ListedTool:
    """A tool as its server lists it.

    Attributes:
        name: The server's name for it.
        description: What it does.
        parameters: The JSON Schema of its arguments.
        output: The JSON Schema of its results; `None` if it declares none.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    output: dict[str, Any] | None


class Peer(Protocol):
    """A connected server."""

    @property
    def protocol(self) -> str:
        """The negotiated revision of the protocol."""

    async def list_tools(self) -> list[ListedTool]:
        """Return all tools, from all pages."""

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> McpToolResult:
        """Call a tool.

        Raises:
            McpError: The server refuses the call.
            PeerLostError: The connection is lost.
        """


class PeerLostError(Exception):
    """The connection is lost."""


def need_sdk() -> None:
    """Check that the library is installed, without importing it.

    Raises:
        MissingExtraError: It is not installed.
    """
    if importlib.util.find_spec("mcp") is None:
        raise MissingExtraError.for_extra("MCP servers need the MCP SDK.", "mcp")


def default_environment() -> dict[str, str]:
    """Return the few environment variables that every program needs; none is secret."""
    return dict(importlib.import_module("mcp.client.stdio").get_default_environment())


@asynccontextmanager
async def connect_to_process(process: McpServerProcess, *, is_old: bool) -> AsyncIterator[Peer]:
    """Connect to a local server process. The task that enters it must also exit it.

    Args:
        process: The server.
        is_old: Whether it is known to need the handshake, and is not probed.
    """
    async with _open_peer(_open_stdio(process), is_old=is_old) as peer:
        yield peer


@asynccontextmanager
async def connect_to_url(server: UrlServer) -> AsyncIterator[Peer]:
    """Connect to a server over HTTP. The task that enters it must also exit it."""
    headers = dict(server.headers)
    if server.transport == "sse":
        sse = importlib.import_module("mcp.client.sse")
        async with _open_peer(sse.sse_client(server.url, headers=headers), is_old=True) as peer:
            yield peer
        return
    streamable = importlib.import_module("mcp.client.streamable_http")
    # The library's own client: its defaults match the library's handling of redirects.
    async with streamable.create_mcp_http_client(headers=headers) as client:
        transport = streamable.streamable_http_client(server.url, http_client=client)
        async with _open_peer(transport, is_old=False) as peer:
            yield peer


def probes_before_handshake() -> bool:
    """Whether the library first probes a server for whether it needs the handshake."""
    return _load_sdk() >= 2


def _load_sdk() -> int:
    """Import the library, which is slow; return its major version."""
    need_sdk()
    importlib.import_module("mcp")
    return int(importlib.metadata.version("mcp").partition(".")[0])


@asynccontextmanager
async def _open_peer(
    transport: AbstractAsyncContextManager[Any], *, is_old: bool
) -> AsyncIterator[Peer]:
    """Negotiate the revision of the protocol.

    Args:
        transport: Provides the streams of messages.
        is_old: Whether the server is known to need the handshake.
    """
    version = _load_sdk()
    mcp = importlib.import_module("mcp")
    client_info = mcp.types.Implementation(name="envweave", version=_get_own_version())
    if version >= 2:
        mode = "legacy" if is_old else "auto"
        async with mcp.Client(transport, mode=mode, client_info=client_info, cache=None) as client:
            yield _SdkV2Peer(client)
        return
    async with (
        transport as (reader, writer, *_),
        mcp.ClientSession(reader, writer, client_info=client_info) as session,
    ):
        initialized = await session.initialize()
        yield _SdkV1Peer(session, str(initialized.protocolVersion))


def _get_own_version() -> str:
    try:
        return importlib.metadata.version("envweave")
    except importlib.metadata.PackageNotFoundError:  # it runs from a source tree
        return "0"


@final
class _SdkV2Peer:
    """A server connected with version 2 of the library."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @property
    def protocol(self) -> str:
        return str(self._client.protocol_version)

    async def list_tools(self) -> list[ListedTool]:
        found: list[ListedTool] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            with _translate_errors():
                page = await self._client.list_tools(cursor=cursor)
            found += [
                ListedTool(one.name, _describe(one), one.input_schema, one.output_schema)
                for one in page.tools
            ]
            cursor = page.next_cursor
            if cursor is None:
                return found
        raise _too_many_pages()

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> McpToolResult:
        with _translate_errors():
            result = await self._client.call_tool(name, dict(arguments))
        return McpToolResult(_dump_blocks(result), result.structured_content, bool(result.is_error))


@final
class _SdkV1Peer:
    """A server connected with version 1 of the library."""

    def __init__(self, session: Any, protocol: str) -> None:
        self._session = session
        self.protocol = protocol
        self._page = importlib.import_module("mcp.types").PaginatedRequestParams

    async def list_tools(self) -> list[ListedTool]:
        found: list[ListedTool] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            with _translate_errors():
                params = None if cursor is None else self._page(cursor=cursor)
                page = await self._session.list_tools(params=params)
            found += [
                ListedTool(one.name, _describe(one), one.inputSchema, one.outputSchema)
                for one in page.tools
            ]
            cursor = page.nextCursor
            if cursor is None:
                return found
        raise _too_many_pages()

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> McpToolResult:
        with _translate_errors():
            result = await self._session.call_tool(name, dict(arguments))
        return McpToolResult(_dump_blocks(result), result.structuredContent, bool(result.isError))


def _describe(tool: Any) -> str:
    return str(tool.description or tool.title or "")


def _dump_blocks(result: Any) -> list[dict[str, Any]]:
    return [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in result.content]


def _too_many_pages() -> McpError:
    return McpError(f"The server lists its tools on more than {_MOST_PAGES} pages.")


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise the exceptions of the library as those of `Peer`."""
    anyio, mcp = importlib.import_module("anyio"), importlib.import_module("mcp")
    pydantic = importlib.import_module("pydantic")
    refusal = mcp.MCPError if hasattr(mcp, "MCPError") else mcp.McpError
    try:
        yield
    except refusal as error:
        # Servers also use this code for their own errors.
        if (error.error.code, error.error.message) == (mcp.types.CONNECTION_CLOSED, _CLOSED):
            raise PeerLostError(_CLOSED) from None
        raise McpError(error.error.message) from None
    except (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream):
        raise PeerLostError(_CLOSED) from None
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise McpError(
            f"The server's response violates the protocol: {where}: {first['msg']}"
        ) from None
    except Exception as error:  # e.g. a result that does not match the tool's own schema
        raise McpError(str(error) or type(error).__name__) from error


@asynccontextmanager
async def _open_stdio(process: McpServerProcess) -> AsyncIterator[tuple[Any, Any]]:
    """Provide the streams of messages from and to a process, one message per line.

    The library's own transport buffers a line of any length, copies it for every chunk that
    arrives, and prints a traceback for each line that is not a message.
    """
    anyio = importlib.import_module("anyio")
    incoming, reader = anyio.create_memory_object_stream(0)
    writer, outgoing = anyio.create_memory_object_stream(0)
    decode, encode = _make_codec()
    closed = (anyio.ClosedResourceError, anyio.BrokenResourceError, ConnectionError)

    async def receive() -> None:
        async with incoming:
            while line := await process.read():
                message = decode(line)
                if message is not None:
                    try:
                        await incoming.send(message)
                    except closed:
                        return

    async def send() -> None:
        try:
            async with outgoing:
                async for message in outgoing:
                    await process.write(encode(message))
        except closed:
            await incoming.aclose()  # fails the calls that wait for a response

    async with incoming, reader, writer, outgoing, anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        tasks.start_soon(send)
        try:
            yield reader, writer
        finally:
            tasks.cancel_scope.cancel()


def _make_codec() -> tuple[Any, Any]:
    """Return a decoder of lines, which returns `None` for a line to skip, and an encoder."""
    types = importlib.import_module("mcp.types")
    wrap = importlib.import_module("mcp.shared.message").SessionMessage
    is_v2 = _load_sdk() >= 2

    def decode(line: bytes) -> Any:
        try:
            if is_v2:
                content = message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
            else:
                message = types.JSONRPCMessage.model_validate_json(line)
                content = message.root
        except ValueError:
            return None  # a program printed to stdout by mistake
        is_ignored = getattr(content, "method", None) in _IGNORED_NOTIFICATIONS
        return None if is_ignored else wrap(message)

    def encode(message: Any) -> bytes:
        options = {"exclude_unset": True} if is_v2 else {"exclude_none": True}
        text: str = message.message.model_dump_json(by_alias=True, **options)
        return text.encode()

    return decode, encode

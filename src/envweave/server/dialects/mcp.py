"""`/mcp`: the official SDK's streamable HTTP, and bare JSON-RPC for OpenEnv's tool client.

An MCP client accepts `text/event-stream` in every POST, which OpenEnv's does not. Both major
versions of the SDK are supported; it is imported when the first MCP client connects.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import inspect
from typing import TYPE_CHECKING, Any, final

from starlette.requests import Request

from envweave.errors import EnvWeaveError
from envweave.server.dialects.mcp_tools import EnvTool, EnvToolOutcome, McpTools
from envweave.server.dialects.openenv_mcp import Mcp
from envweave.server.http.bodies import read_body
from envweave.server.service import Service

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

SESSION_HEADER = "mcp-session-id"

IDLE_S = 1800.0
"""How long an MCP session is kept after its session at the server is closed."""


@final
class McpEndpoint:
    """The endpoint for MCP clients, as a pure ASGI application."""

    def __init__(self, service: Service, openenv: Mcp) -> None:
        self._service = service
        self._openenv = openenv
        self._tools = McpTools(service)
        self._running: _Running | None = None
        service.on_stop(self._stop)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        request = Request(scope, receive)
        is_mcp = "text/event-stream" in request.headers.get("accept", "")
        if request.method == "POST" and not is_mcp:
            response = await self._openenv.post(request)
            await response(scope, receive, send)
            return
        # Imported here, since most servers never need it.
        from envweave.tools.mcp.sdk import need_sdk

        body = await read_body(request)
        try:
            need_sdk()
            running = await self._run()
        except EnvWeaveError as error:
            await self._openenv.refuse(body, str(error))(scope, receive, send)
            return
        await running.handle(scope, _replayed(body, receive), send)
        session = request.headers.get(SESSION_HEADER)
        if request.method == "DELETE" and session is not None:
            await self._tools.forget(session)

    async def _run(self) -> _Running:
        about = await self._tools.describe()
        if self._running is None:
            options = self._service.options
            self._running = _Running(
                _build_server(self._tools, about.name, about.version),
                # Longer than the environment's session, so that a tool call can report its end.
                session_idle_timeout=options.session_ttl_s + IDLE_S,
                max_request_body_size=options.max_message_bytes,
            )
        await self._running.is_ready.wait()
        return self._running

    async def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.stop()


@final
class _Running:
    """The SDK's session manager, which must be entered and left by one task."""

    def __init__(self, server: Any, **limits: Any) -> None:
        module = importlib.import_module("mcp.server.streamable_http_manager")
        make = module.StreamableHTTPSessionManager
        known = inspect.signature(make).parameters  # the oldest versions have no limits
        limits = {name: one for name, one in limits.items() if name in known}
        self._manager = make(server, json_response=True, **limits)
        self.is_ready = asyncio.Event()
        self._is_over = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        async with self._manager.run():
            self.is_ready.set()
            await self._is_over.wait()

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._manager.handle_request(scope, receive, send)

    async def stop(self) -> None:
        self._is_over.set()
        await asyncio.wait((self._task,))


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that replays a body that was read already."""
    is_read = False

    async def replay() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _build_server(tools: McpTools, name: str, version: str) -> Any:
    """Return an MCP server of the SDK with the environment's tools."""
    types = importlib.import_module("mcp.types")
    make = importlib.import_module("mcp.server.lowlevel").Server

    async def list_tools(request: Request) -> Any:
        listed = await tools.list_tools(request.headers.get(SESSION_HEADER))
        return types.ListToolsResult.model_validate({"tools": [_listed(one) for one in listed]})

    async def call_tool(request: Request, params: Any) -> Any:
        session = request.headers.get(SESSION_HEADER)
        outcome = await tools.call(params.name, params.arguments or {}, session)
        return types.CallToolResult.model_validate(_call_result(outcome))

    if int(importlib.metadata.version("mcp").partition(".")[0]) >= 2:

        async def on_list_tools(context: Any, params: Any) -> Any:  # noqa: ARG001 - one page
            return await list_tools(context.request)

        async def on_call_tool(context: Any, params: Any) -> Any:
            return await call_tool(context.request, params)

        return make(name, version=version, on_list_tools=on_list_tools, on_call_tool=on_call_tool)
    server = make(name, version=version)

    async def list_handler(request: Any) -> Any:  # noqa: ARG001 - one page
        return types.ServerResult(await list_tools(server.request_context.request))

    async def call_handler(request: Any) -> Any:
        return types.ServerResult(await call_tool(server.request_context.request, request.params))

    # Not with its decorators: those would validate by JSON Schema, with other messages than ours.
    server.request_handlers[types.ListToolsRequest] = list_handler
    server.request_handlers[types.CallToolRequest] = call_handler
    return server


def _listed(tool: EnvTool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "inputSchema": tool.schema}


def _call_result(outcome: EnvToolOutcome) -> dict[str, Any]:
    return {
        "content": [{"type": "text", "text": outcome.text}],
        "structuredContent": outcome.content,
        "isError": outcome.is_error,
    }

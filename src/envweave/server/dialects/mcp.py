"""`/mcp`: the tools with which an MCP client drives an environment, and the endpoint for them.

`reset` begins an episode, and `step` takes the fields of an action. If an action is one of several
classes, each class is a separate tool; with several agents, `step` takes an action per agent.
`state` reads the state.

A client whose protocol has sessions (`Mcp-Session-Id`) drives one session. One without them,
since 2026-07-28, names it in each call: `reset` returns a `session_id`, and `close` frees it.

The endpoint is the official SDK's streamable HTTP. Both major versions of the SDK are supported; it
is imported when the first MCP client connects. OpenEnv's tool client, which does not accept
`text/event-stream`, is passed on to `openenv.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.metadata
import inspect
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from starlette.requests import Request

from envweave.codec.spec import short_repr
from envweave.errors import (
    ActionError,
    EnvWeaveError,
    OptionError,
    ResetNeededError,
    SessionGoneError,
    suggest,
)
from envweave.server.dialects.openenv import Mcp
from envweave.server.http.bodies import read_body
from envweave.server.http.sessions import HTTPSession, HTTPSessions
from envweave.server.security import not_served
from envweave.server.service import Service
from envweave.server.sessions import CANNOT_WAIT
from envweave.wire.description import Description
from envweave.wire.encoding import PLAIN_JSON
from envweave.wire.openenv import is_bare
from envweave.wire.results import Wired, as_http_payload, decode_result

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send


SESSION = "session_id"
"""The argument that names a session, if the protocol has no sessions."""

_RESET_PARAMETERS: dict[str, dict[str, Any]] = {
    "seed": {
        "type": "integer",
        "minimum": 0,
        "description": "The same seed and actions give the same episode.",
    },
    "task": {"type": "string", "description": "The id of the task to work on."},
    "options": {"type": "object", "description": "Options of the environment."},
}
_RESULT = (
    "The result has the observation, the reward, and whether the episode is over: done, which is "
    "terminated or truncated."
)
_FEW = 64  # below this, closed MCP sessions are not removed


@dataclass(frozen=True, slots=True)
class EnvTool:
    """A tool as an MCP client sees it.

    Attributes:
        name: Its name.
        description: Its description.
        schema: The JSON Schema of its arguments.
        holds_action: Whether the action is its argument `action` rather than all arguments.
    """

    name: str
    description: str
    schema: dict[str, Any]
    holds_action: bool = False


@dataclass(frozen=True, slots=True)
class EnvToolOutcome:
    """The outcome of a tool call.

    Attributes:
        content: The fields of the result, or `{"error": {"code", "message"}}`.
        is_error: Whether the call was refused; the episode is unchanged then.
    """

    content: dict[str, Any]
    is_error: bool = False

    @property
    def text(self) -> str:
        """The content as JSON."""
        return PLAIN_JSON.encode(self.content).decode()


@final
@dataclass(slots=True)
class _Owner:
    """An MCP session and the session that it drives; it opens one at a time."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    session: HTTPSession | None = None


@final
class McpTools:
    """Lists the tools of an environment, and carries out calls on the server's sessions."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._sessions = HTTPSessions(service)
        self._owners: dict[str, _Owner] = {}
        self._many = _FEW

    async def describe(self) -> Description:
        """Return the description of the environment.

        Raises:
            EnvWeaveError: The environment cannot be made.
        """
        await self._service.start()
        return self._service.runtime.description

    async def list_tools(self, mcp_session: str | None) -> list[EnvTool]:
        """Return the tools for a client with or without an MCP session."""
        tools = _tools_of(await self.describe())
        if mcp_session is not None:
            return list(tools.values())
        named = [_with_session(tool) for tool in tools.values()]
        closing = EnvTool("close", "Close the session.", _object({}))
        return [*named, _with_session(closing)]

    async def call(
        self, name: str, arguments: Mapping[str, Any], mcp_session: str | None
    ) -> EnvToolOutcome:
        """Carry out a tool call. An error is part of the outcome."""
        try:
            result = await self._call(name, dict(arguments), mcp_session)
            # Values of the author's code become plain data here, only once.
            return EnvToolOutcome(PLAIN_JSON.decode(PLAIN_JSON.encode(result)))
        except Exception as error:  # noqa: BLE001 - part of the outcome
            fault = self._service.table.fault_for(name, error)
            problem = {"error": {"code": fault.code, "message": fault.message}}
            return EnvToolOutcome(problem, is_error=True)

    async def forget(self, mcp_session: str) -> None:
        """Close the session of an MCP session that has ended."""
        owner = self._owners.pop(mcp_session, None)
        if owner is None:
            return
        async with owner.lock:
            if owner.session is not None:
                with contextlib.suppress(SessionGoneError):  # it has expired
                    await self._sessions.close(owner.session.id)

    async def _call(self, name: str, arguments: dict[str, Any], mcp_session: str | None) -> Any:
        tools = _tools_of(await self.describe())
        names = [*tools, *([] if mcp_session else ["close"])]
        if name not in names:
            raise OptionError(
                f"There is no tool {name[:80]!r}.{suggest(name, names)} Known: {', '.join(names)}."
            )
        session_id = None
        if mcp_session is None:
            session_id = arguments.pop(SESSION, None)
            if session_id is not None and not isinstance(session_id, str):
                raise OptionError(f"{SESSION} must be a string, got {short_repr(session_id)}.")
        if name == "reset":
            _check_arguments(tools[name], arguments, OptionError)
            return await self._reset(arguments, mcp_session, session_id)
        session = self._find(mcp_session, session_id)
        if name == "close":
            await self._sessions.close(session.id)
            return {"closed": True}
        if name == "state":
            _check_arguments(tools[name], arguments, OptionError)
            return await session.call("state", {})
        tool = tools[name]
        if tool.holds_action or name != "step":
            # The environment does not see the name of the tool, so the fields of another would fit.
            _check_arguments(tool, arguments, ActionError)
        if tool.holds_action and "action" not in arguments:
            raise ActionError(f"{name} needs the argument 'action'.")
        action = arguments["action"] if tool.holds_action else arguments
        return _plain_result(await session.call("step", {"action": action}))

    async def _reset(
        self, arguments: dict[str, Any], mcp_session: str | None, session_id: str | None
    ) -> dict[str, Any]:
        if mcp_session is not None:
            owner = self._own(mcp_session)
            async with owner.lock:
                if owner.session is None or not owner.session.is_there:
                    owner.session = await self._sessions.open(dict(CANNOT_WAIT))
            return _plain_result(await owner.session.call("reset", arguments))
        if session_id is not None:
            session = self._sessions.find(session_id)
            return {SESSION: session.id, **_plain_result(await session.call("reset", arguments))}
        session = await self._sessions.open(dict(CANNOT_WAIT))
        try:
            result = _plain_result(await session.call("reset", arguments))
        except BaseException:
            await self._sessions.close(session.id)  # the client has not received its id
            raise
        return {SESSION: session.id, **result}

    def _own(self, mcp_session: str) -> _Owner:
        if len(self._owners) >= self._many:
            self._owners = {
                name: one
                for name, one in self._owners.items()
                if one.lock.locked() or (one.session is not None and one.session.is_there)
            }
            self._many = max(_FEW, 2 * len(self._owners))
        return self._owners.setdefault(mcp_session, _Owner())

    def _find(self, mcp_session: str | None, session_id: str | None) -> HTTPSession:
        """Return the session of a call.

        Raises:
            ResetNeededError, SessionGoneError: There is none, or it is closed.
        """
        if mcp_session is None:
            if session_id is None:
                raise OptionError(f"Call reset first, and pass the {SESSION} that it returns.")
            return self._sessions.find(session_id)
        owner = self._owners.get(mcp_session)
        if owner is None or owner.session is None:
            raise ResetNeededError("No episode is running. Call reset first.")
        if not owner.session.is_there:
            raise SessionGoneError(
                "The session is gone: it was closed, or was not called for too long. Call reset to "
                "begin another."
            )
        return owner.session


def _plain_result(result: Any) -> dict[str, Any]:
    return as_http_payload(result if isinstance(result, Wired) else decode_result(result))


def _check_arguments(
    tool: EnvTool, arguments: Mapping[str, Any], error: type[OptionError | ActionError]
) -> None:
    known = tool.schema["properties"]
    for name in arguments:
        if name not in known:
            takes = f"It takes: {', '.join(known)}." if known else "It takes none."
            raise error(f"{tool.name} takes no {name[:80]!r}.{suggest(name, known)} {takes}")


def _tools_of(about: Description) -> dict[str, EnvTool]:
    """Return the tools of an environment by name, in the order of use."""
    does = about.description or about.name
    reset = _object(
        {name: one for name, one in _RESET_PARAMETERS.items() if name in about.reset_takes}
    )
    tools = [
        EnvTool("reset", f"{does} Begin an episode. {_RESULT}", reset),
        *_action_tools(about, does),
        EnvTool("state", "Read the state of the episode, without taking a step.", _object({})),
    ]
    return {tool.name: tool for tool in tools}


def _action_tools(about: Description, does: str) -> Iterator[EnvTool]:
    schema = about.action
    members = [_resolved(one, schema) for one in schema.get("anyOf", [])]
    names = [_tool_name(one) for one in members]
    if members and _are_distinct(members, names):
        for name, member in zip(names, members, strict=True):
            yield EnvTool(
                name, f"{does} Take one step: {member['title']}. {_RESULT}", _plain(member)
            )
        return
    resolved = _resolved(schema, schema)
    if about.possible_agents is not None:
        text = f"{does} Take one step, with an action for each agent whose turn it is. {_RESULT}"
        properties = {name: _plain(one) for name, one in resolved["properties"].items()}
        yield EnvTool("step", text, {**resolved, "properties": properties})
    elif resolved.get("type") == "object" and not is_bare(resolved):
        yield EnvTool("step", f"{does} Take one step. {_RESULT}", _plain(resolved))
    else:
        # `$defs` must be beside the reference, not below it.
        definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
        action = {name: one for name, one in schema.items() if name != "$defs"}
        wrapped = {**_object({"action": action}, ["action"]), **definitions}
        yield EnvTool("step", f"{does} Take one step. {_RESULT}", wrapped, holds_action=True)


def _object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required or [],
        "additionalProperties": False,
    }


def _resolved(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Resolve a reference, and return the schema with the definitions that it may refer to."""
    definitions = root.get("$defs", {})
    reference = str(schema.get("$ref", ""))
    if reference:
        schema = definitions.get(reference.removeprefix("#/$defs/"), {})
    return {**schema, **({"$defs": definitions} if definitions else {})}


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Return an action's schema without the `metadata` that every action may carry."""
    if schema.get("type") != "object" or "metadata" in schema.get("required", []):
        return schema
    properties = {k: one for k, one in schema.get("properties", {}).items() if k != "metadata"}
    return {**schema, "properties": properties}


def _tool_name(schema: dict[str, Any]) -> str:
    """Return the tool name of a class of actions: `MoveAction` is `move`."""
    title = re.sub(r"Action$", "", str(schema.get("title", "")))
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", title).lower()


def _are_distinct(members: list[dict[str, Any]], names: list[str]) -> bool:
    """Whether the fields of an action determine its class: the tool name is not passed on."""
    if not all(names) or len(set(names)) < len(names) or {"reset", "state", "close"} & set(names):
        return False
    if not all(one.get("type") == "object" and "properties" in one for one in members):
        return False
    return not any(_overlap(a, b) for a, b in itertools.combinations(members, 2))


def _overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether some value is an action of both."""
    needed = set(one.get("required", [])), set(other.get("required", []))
    if not (needed[0] <= other["properties"].keys() and needed[1] <= one["properties"].keys()):
        return False
    for name in needed[0] & needed[1]:
        choices = [side["properties"][name].get("enum") for side in (one, other)]
        if choices[0] and choices[1] and not any(value in choices[1] for value in choices[0]):
            return False
    return True


def _with_session(tool: EnvTool) -> EnvTool:
    """Return a tool for a protocol without sessions."""
    is_reset = tool.name == "reset"
    text = (
        "The session to begin an episode in; default: a new session."
        if is_reset
        else f"The {SESSION} that reset returned."
    )
    properties = {**tool.schema["properties"], SESSION: {"type": "string", "description": text}}
    required = [*tool.schema.get("required", []), *([] if is_reset else [SESSION])]
    schema = {**tool.schema, "properties": properties, "required": required}
    return EnvTool(tool.name, tool.description, schema, tool.holds_action)


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
        has_dialect = self._service.options.has_dialect
        if not has_dialect("mcp" if is_mcp or request.method == "DELETE" else "openenv"):
            message = not_served("mcp" if is_mcp else "openenv").fault.message
            await self._openenv.refuse(await read_body(request), message)(scope, receive, send)
            return
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

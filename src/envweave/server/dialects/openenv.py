"""OpenEnv's dialect: `/ws` as JSON text, and bare JSON-RPC for its tool client.

`/ws` has one session per connection, and one reply per request. The tool client sends JSON-RPC to
`POST /mcp`, or inside the WebSocket. It sees no tools, since it takes steps in other ways: the list
is empty, and a call is a clear error. MCP clients are answered by `mcp.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import Any, final

from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from envweave.errors import EnvWeaveError, SessionGoneError, WireError
from envweave.server.http.bodies import read_body
from envweave.server.service import Service
from envweave.server.sessions import CANNOT_WAIT
from envweave.wire.encoding import PLAIN_JSON
from envweave.wire.faults import kind_by_code, kind_of
from envweave.wire.messages import Call, WireFault
from envweave.wire.openenv import VALUE, as_openenv, fields_of, is_bare
from envweave.wire.results import Wired, decode_result

VERSIONS = ("2025-06-18", "2025-03-26", "2024-11-05")
"""The supported versions of MCP, newest first."""

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
SERVER_ERROR = -32000


class _RpcError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@final
class Mcp:
    """Answers JSON-RPC requests, by HTTP and inside OpenEnv's WebSocket.

    Attributes:
        attached: Sessions that were opened here and are driven by a WebSocket now.
    """

    def __init__(self, service: Service) -> None:
        self.attached: set[str] = set()
        self._service = service

    async def post(self, request: Request) -> Response:
        """Answer an HTTP request: 200 and JSON-RPC to any body, 202 to a notification."""
        try:
            plain = PLAIN_JSON.decode(await read_body(request))
        except WireError as error:
            reply: dict[str, Any] | None = _failed(None, PARSE_ERROR, str(error))
        else:
            reply = await self.answer(plain)
        if reply is None:
            return Response(status_code=202)
        return Response(PLAIN_JSON.encode(reply), media_type="application/json")

    def refuse(self, body: bytes, message: str) -> Response:
        """Return an error response to any body; 202 to a notification."""
        try:
            plain = PLAIN_JSON.decode(body)
        except WireError:
            plain = None
        number = plain.get("id") if isinstance(plain, dict) else None
        if isinstance(plain, dict) and "id" not in plain:
            return Response(status_code=202)
        reply = _failed(number, SERVER_ERROR, message)
        return Response(PLAIN_JSON.encode(reply), media_type="application/json")

    async def answer(self, plain: Any) -> dict[str, Any] | None:
        """Return the response to a decoded request; `None` to a notification."""
        number = plain.get("id") if isinstance(plain, dict) else None
        number = number if isinstance(number, str | int | float) else None
        try:
            if not isinstance(plain, dict) or plain.get("jsonrpc") != "2.0":
                raise _RpcError(
                    INVALID_REQUEST, 'A request must be an object with "jsonrpc": "2.0".'
                )
            method, params = plain.get("method"), plain.get("params", {})
            if not isinstance(method, str):
                raise _RpcError(INVALID_REQUEST, "The request names no method.")
            if "id" not in plain and method.startswith("notifications/"):
                return None
            if not isinstance(params, dict):
                raise _RpcError(INVALID_PARAMS, "The params of a method must be an object.")
            result = await self._run(method, params)
        except _RpcError as error:
            return _failed(number, error.code, str(error))
        return {"jsonrpc": "2.0", "id": number, "result": result}

    async def _run(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "initialize":
            return await self._initialize(params)
        if method == "ping":
            return {}
        if method == "openenv/session/create":
            return await self._open()
        if method == "openenv/session/close":
            return await self._close(params)
        if method in ("tools/list", "tools/call"):
            if params.get("session_id") is not None:
                self._find(params["session_id"])
            if method == "tools/list":
                return {"tools": []}
            raise _RpcError(INVALID_PARAMS, _no_tool(params.get("name")))
        raise _RpcError(METHOD_NOT_FOUND, f"There is no method {method[:80]!r} here.")

    async def _initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        try:
            await self._service.start()
        except EnvWeaveError as error:
            raise _RpcError(SERVER_ERROR, str(error)) from None
        version = params.get("protocolVersion")
        about = self._service.runtime.description
        return {
            "protocolVersion": version if version in VERSIONS else VERSIONS[0],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": about.name, "version": about.version},
        }

    def _find(self, session_id: Any) -> str:
        """Return the id of an existing session.

        Raises:
            _RpcError: There is no such session.
        """
        try:
            if isinstance(session_id, str):
                self._service.table.next_call_number(session_id)
                return session_id
        except SessionGoneError:
            pass
        raise _RpcError(INVALID_PARAMS, f"There is no session {str(session_id)[:80]!r}.")

    async def _open(self) -> dict[str, Any]:
        name = secrets.token_urlsafe(16)
        call = Call(id=1, method="open", session=name, params=dict(CANNOT_WAIT))
        reply = await self._service.call(call)
        if reply.fault is not None:
            raise _RpcError(SERVER_ERROR, reply.fault.message)
        return {"session_id": name}

    async def _close(self, params: dict[str, Any]) -> dict[str, Any]:
        name = self._find(params.get("session_id"))
        number = self._service.table.next_call_number(name)
        reply = await self._service.call(Call(id=number, method="close", session=name))
        if reply.fault is not None:
            raise _RpcError(SERVER_ERROR, reply.fault.message)
        return {"session_id": name, "closed": True}

    def refuse_attaching(self, session_id: str) -> str | None:
        """Return why a WebSocket cannot drive a session; `None` if it can."""
        try:
            self._find(session_id)
        except _RpcError as error:
            return str(error)
        if session_id in self.attached:
            return f"The session {session_id[:80]!r} is already driven by another WebSocket."
        return None

    def answer_step(self, data: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any] | None:
        """Return the observation for a step that lists or calls tools, as older clients send it.

        It is not a step of the episode. `None` for any other step, and if actions of the
        environment have a field `type`.
        """
        kind = data.get("type")
        if kind not in ("list_tools", "call_tool") or "type" in schema.get("properties", {}):
            return None
        observation: dict[str, Any] = {"tools": []}
        if kind == "call_tool":
            name = data.get("tool_name")
            error = {"error_type": "tool_not_found", "message": _no_tool(name)}
            observation = {"tool_name": str(name), "result": None, "error": error}
        return {"observation": observation, "reward": None, "done": False, "metadata": {}}


def _no_tool(name: Any) -> str:
    return f"There is no tool {str(name)[:80]!r}: this environment has none."


def _failed(number: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}


logger = logging.getLogger("envweave.server")

MAX_WAITING = 8
"""How many requests of one connection may wait before reading pauses."""

RESET_PARAMETERS = ("seed", "episode_id", "task", "options")
KEYS = frozenset({"type", "data"})
FATAL = frozenset({"CAPACITY_REACHED", "FACTORY_ERROR"})
"""Error codes that end the connection, since there will be no session."""


@final
class OpenEnv:
    """The endpoint for OpenEnv's own clients."""

    def __init__(self, service: Service, mcp: Mcp) -> None:
        self._service = service
        self._mcp = mcp

    async def serve(self, websocket: WebSocket) -> None:
        """Serve a client until it disconnects; its session is then closed, as it cannot resume.

        With `?session_id=…` the session is one that was opened by `POST /mcp`, and stays open.
        """
        await websocket.accept()
        session_id = websocket.query_params.get("session_id")
        connection = _OpenEnvConnection(websocket, self._service, self._mcp, session_id)
        try:
            await self._service.start()
        except EnvWeaveError as error:
            await connection.refuse(kind_of(error).openenv, str(error))
            return
        if session_id is None:
            await connection.serve()
        elif refusal := self._mcp.refuse_attaching(session_id):
            await connection.refuse("SESSION_ERROR", refusal)
        else:
            self._mcp.attached.add(session_id)
            try:
                await connection.serve()
            finally:
                self._mcp.attached.discard(session_id)


class _Refused(Exception):  # noqa: N818 - it never leaves this module
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Closed(Exception):  # noqa: N818 - it never leaves this module
    """The client asked to close."""


@final
class _OpenEnvConnection:
    """One connection, and the session behind it."""

    def __init__(
        self, websocket: WebSocket, service: Service, mcp: Mcp, attached: str | None
    ) -> None:
        self._websocket = websocket
        self._service = service
        self._mcp = mcp
        self._session = attached
        self._is_owner = attached is None
        self._is_gone = False
        self._requests: asyncio.Queue[Any] = asyncio.Queue(MAX_WAITING)

    async def serve(self) -> None:
        """Answer requests in order until either end closes the connection."""
        # Reading continues while a step runs, to notice that the client disconnects.
        listening = asyncio.ensure_future(self._listen())
        answering = asyncio.ensure_future(self._answer_all())
        try:
            await asyncio.wait((listening, answering), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._is_gone = True
            listening.cancel()
            with contextlib.suppress(asyncio.QueueFull):
                self._requests.put_nowait(None)
            self._service.table.disconnect(self)  # leaves the queue for a session
            # A running step cannot be stopped, and holds its slot until it is over.
            await asyncio.wait((answering,))
            if self._is_owner and self._session is not None:
                with contextlib.suppress(_Refused):  # it is closed already
                    await self._call("close", {})
        await answering  # raises only if there is a bug here

    async def refuse(self, code: str, message: str) -> None:
        """Send why there is no session, and close."""
        await self._send(_error(code, message))
        await self._hang_up()

    async def _listen(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            await self._requests.put(message)

    async def _answer_all(self) -> None:
        while not self._is_gone:
            message = await self._requests.get()
            if message is None:
                return
            reply = await self._answer(message)
            if reply is not None:
                await self._send(reply)
            if reply is None or (reply["type"] == "error" and reply["data"]["code"] in FATAL):
                await self._hang_up()
                return

    async def _answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Return the reply to a frame; `None` to a request to close."""
        try:
            kind, data = self._read(message)
            return None if kind == "close" else await self._do(kind, data)
        except _Refused as refused:
            return _error(refused.code, str(refused))
        except Exception:
            logger.exception("a request of OpenEnv's dialect failed")
            return _error("EXECUTION_ERROR", "The server failed; see its log.")

    def _read(self, message: dict[str, Any]) -> tuple[str, dict[str, Any] | None]:
        text = message.get("text")
        if text is None:
            raise _Refused("INVALID_JSON", "Received a binary frame; send JSON as text.")
        try:
            request = PLAIN_JSON.decode(text)
        except WireError as error:
            raise _Refused("INVALID_JSON", str(error)) from None
        if not isinstance(request, dict):
            raise _Refused(
                "VALIDATION_ERROR", 'A request must be an object such as {"type": "reset"}.'
            )
        kind, data = request.get("type", ""), request.get("data")
        if kind not in ("reset", "step", "state", "close", "mcp"):
            raise _Refused(
                "UNKNOWN_TYPE",
                f"Unknown request type {str(kind)[:80]!r}. Known: reset, step, state, close, mcp.",
            )
        unknown = request.keys() - KEYS
        if unknown:
            raise _Refused(
                "VALIDATION_ERROR", f"Unknown field {sorted(unknown)[0][:80]!r} in a request."
            )
        if not isinstance(data, dict) and (data is not None or kind in ("step", "mcp")):
            raise _Refused(
                "VALIDATION_ERROR", f"A request of type {kind!r} needs `data`, an object."
            )
        return kind, data

    async def _do(self, kind: str, data: dict[str, Any] | None) -> dict[str, Any]:
        if kind == "mcp":
            return {"type": "mcp", "data": await self._mcp.answer(data) or {}}
        if kind == "state":
            return {"type": "state", "data": fields_of(await self._call("state", {})) or {}}
        assert data is not None or kind == "reset"
        if kind == "reset":
            result = await self._call("reset", self._read_reset(data or {}))
        else:
            action = self._service.runtime.description.action
            tools = self._mcp.answer_step(data or {}, action)
            if tools is not None:
                return {"type": "observation", "data": tools}
            result = await self._call("step", {"action": _read_action(data or {}, action)})
        sent = result if isinstance(result, Wired) else decode_result(result)
        known = self._service.runtime.description.openenv_fields
        return {"type": "observation", "data": as_openenv(sent, known)}

    def _read_reset(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters of `reset`. Unknown names are options, if it takes options."""
        params = {name: data[name] for name in RESET_PARAMETERS if data.get(name) is not None}
        others = {name: one for name, one in data.items() if name not in RESET_PARAMETERS}
        if others and "options" in self._service.runtime.description.reset_takes:
            options = params.get("options", {})
            params["options"] = {**others, **options} if isinstance(options, dict) else options
        return params

    async def _call(self, method: str, params: dict[str, Any]) -> Any:
        """Make a call on the session, which is opened on the first call.

        Raises:
            _Refused: The call was refused or failed.
        """
        if self._session is None:
            name = secrets.token_urlsafe(16)
            call = Call(id=1, method="open", session=name, params=dict(CANNOT_WAIT))
            reply = await self._service.call(call, self)
            if reply.fault is not None:
                raise _of_fault(reply.fault)
            self._session = name
        try:
            number = self._service.table.next_call_number(self._session)
        except SessionGoneError as error:
            # A reset may open another session; a step is refused.
            self._session = None if self._is_owner else self._session
            raise _Refused("SESSION_ERROR", str(error)) from None
        call = Call(id=number, method=method, session=self._session, params=params)
        reply = await self._service.call(call, None if self._is_gone else self)
        if reply.fault is not None:
            raise _of_fault(reply.fault)
        return reply.result

    async def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(
            WebSocketDisconnect, RuntimeError, OSError
        ):  # already disconnected
            await self._websocket.send_text(PLAIN_JSON.encode(message).decode())

    async def _hang_up(self) -> None:
        with contextlib.suppress(
            WebSocketDisconnect, RuntimeError, OSError
        ):  # already disconnected
            await self._websocket.close(1000)


def _read_action(data: dict[str, Any], schema: dict[str, Any]) -> Any:
    """Return the action in the data of a step, as the environment expects it."""
    if data.keys() == {VALUE} and is_bare(schema):
        return data[VALUE]
    # Every action of OpenEnv has metadata; ours only if its class declares it.
    closed = schema.get("additionalProperties") is False
    if closed and "metadata" in data and "metadata" not in schema.get("properties", {}):
        return {name: one for name, one in data.items() if name != "metadata"}
    return data


def _of_fault(fault: WireFault) -> _Refused:
    return _Refused(kind_by_code(fault.code).openenv, fault.message)


def _error(code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code}}

"""Bare JSON-RPC at `POST /mcp` and inside OpenEnv's WebSocket, for OpenEnv's tool client.

That client sees no tools, since it takes steps in other ways: the list is empty, and a call is a
clear error. MCP clients are answered by `mcp.py`.
"""

from __future__ import annotations

import secrets
from typing import Any, final

from starlette.requests import Request
from starlette.responses import Response

from envweave.errors import EnvWeaveError, SessionGoneError, WireError
from envweave.server.http.bodies import read_body
from envweave.server.service import Service
from envweave.server.sessions import CANNOT_WAIT
from envweave.wire.encoding import PLAIN_JSON
from envweave.wire.messages import Call

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

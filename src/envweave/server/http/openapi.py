"""`/openapi.json`: every path, what it takes and what it may answer.

The calls themselves are read by plain endpoints, so this is written by hand, with the schemas of
the environment that is served.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from envweave.registry.spec import MAX_S
from envweave.server.http.sessions import OPEN_ID_LENGTH
from envweave.server.security import OPEN_PATHS
from envweave.wire.description import Description

VERSION = "1.0.0"
"""Of the HTTP protocol, which OpenEnv's own checks ask for."""

KEY_PATTERN = r"^[!-~]{1,200}$"
"""What the header `Idempotency-Key` may be."""

_NULLABLE_SECONDS = {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": MAX_S}
_REQUEST_ID = {
    "type": ["string", "integer", "null"],
    "maxLength": 200,
    "description": "Names this call: repeated with the same id, it is answered by the first reply.",
}
_ANSWER = {
    "type": "object",
    "description": "The answer to a tool call.",
    "properties": {
        "call_id": {"type": "string"},
        "value": {},
        "error": {"type": ["string", "null"]},
    },
    "required": ["call_id"],
    "additionalProperties": False,
}
_SESSION = {
    "name": "X-Session-Id",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
    "description": "Which session; the default one if it is left out.",
}
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "pattern": KEY_PATTERN},
    "description": "The same as `request_id` in the body, which counts where both are given.",
}

_WHEN = {
    "400": "The message cannot be read.",
    "401": "No token, or a wrong one.",
    "403": "A foreign web page may not call.",
    "404": "There is no such session, or not any more.",
    "405": "The path takes another method.",
    "408": "The body did not come in time.",
    "409": "The right call at the wrong time, such as a step before a reset; or its request id was "
    "given to another call, or opened a session that is closed by now.",
    "413": "The body is too large.",
    "421": "The Host header names another server.",
    "422": "Something in the call is refused. The message begins with the field.",
    "500": "The server failed. Its log says how.",
    "502": "The environment's own code failed.",
    "503": "There is no room, the environment was lost, or the server is stopping.",
    "504": "A call took longer than it may.",
}
_ALWAYS = ("400", "401", "403", "405", "421", "500")


def openapi(about: Description, *, has_token: bool) -> dict[str, Any]:
    """Return the document for a server of this environment."""
    schemas: dict[str, Any] = {
        "Action": about.action or {},
        "Observation": about.observation or {},
        "State": about.state or {},
    }
    components = {"Fault": _FAULT, "Result": _result()}
    for name, schema in schemas.items():
        components |= _hoisted(name, schema)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": f"{about.name} ({about.env_id})",
            "version": VERSION,
            "description": _introduction(about),
        },
        "paths": {**_calls(about), **_sessions(), **_mcp(), **_probes()},
        "components": {"schemas": components},
    }
    if has_token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def _introduction(about: Description) -> str:
    return (
        f"{about.description}\n\nServed by envweave {about.version}. A session has a state: "
        "`POST /reset` begins an episode, `POST /step` acts in it. Programs do better over "
        "`WS /ws`, with envweave's own client or OpenEnv's."
    ).strip()


def _calls(about: Description) -> dict[str, Any]:
    reset = {
        "seed": {"type": ["integer", "null"], "minimum": 0, "maximum": 2**63 - 1},
        "episode_id": {"type": ["string", "null"]},
        "options": {"type": ["object", "null"]},
        "task": {
            "type": ["string", "object", "null"],
            "description": "The id of a task, or one.",
            "properties": {
                "id": {"type": "string"},
                "split": {"type": "string"},
                "data": {"type": "object"},
                "image": {"type": ["string", "null"]},
                "limits": {"type": ["object", "null"]},
            },
            "required": ["id"],
            "additionalProperties": False,
        },
        "request_id": _REQUEST_ID,
    }
    step = {
        "action": _ref("Action"),
        "answer": _ANSWER,
        "timeout_s": _NULLABLE_SECONDS,
        "request_id": _REQUEST_ID,
    }
    one_of_them = {"oneOf": [{"required": ["action"]}, {"required": ["answer"]}]}
    not_taken = {"seed", "options", "task"} - set(about.reset_takes)
    for name in not_taken:
        reset[name] = {"type": "null", "description": "This environment's reset takes none."}
    takes, said = ("404", "408", "409", "413", "422", "502", "503", "504"), _ref("Result")
    return {
        "/reset": {
            "post": {
                "operationId": "reset",
                "summary": "Begin an episode.",
                "parameters": [_SESSION, _KEY],
                "requestBody": _body(reset, required=False),
                "responses": _responses("200", "The first observation.", said, takes),
            }
        },
        "/step": {
            "post": {
                "operationId": "step",
                "summary": "Act once in the episode that is running.",
                "parameters": [_SESSION, _KEY],
                "requestBody": _body(step, required=True, **one_of_them),
                "responses": _responses("200", "What came of it.", said, takes),
            }
        },
        "/state": {
            "get": {
                "operationId": "state",
                "summary": "Look at the state of the environment.",
                "parameters": [_SESSION],
                "responses": _responses(
                    "200", "Its fields.", _ref("State"), ("404", "409", "502", "503", "504")
                ),
            }
        },
    }


def _sessions() -> dict[str, Any]:
    opens = {
        "autoreset": {"type": ["boolean", "null"]},
        "timeout_s": _NULLABLE_SECONDS,
        "wait_s": {
            "type": ["number", "null"],
            "minimum": 0,
            "maximum": MAX_S,
            "description": "How long to wait for a session where none is free; 0 by default.",
        },
        "request_id": {**_REQUEST_ID, "type": ["string", "null"], "minLength": OPEN_ID_LENGTH},
    }
    key = {
        **_KEY,
        "schema": {"type": "string", "pattern": f"^[!-~]{{{OPEN_ID_LENGTH},200}}$"},
    }
    opened = {
        "type": "object",
        "properties": {"session_id": {"type": "string"}},
        "required": ["session_id"],
    }
    named = {**_SESSION, "name": "session_id", "in": "path", "required": True}
    closed = _responses("204", "It is closed.", None, ("404", "409", "502", "503", "504"))
    return {
        "/sessions": {
            "post": {
                "operationId": "open",
                "summary": "Open another session, for `X-Session-Id`.",
                "parameters": [key],
                "requestBody": _body(opens, required=False),
                "responses": _responses(
                    "201", "Its id.", opened, ("408", "409", "413", "422", "502", "503", "504")
                ),
            }
        },
        "/sessions/{session_id}": {
            "delete": {
                "operationId": "close",
                "summary": "Close a session.",
                "parameters": [named],
                "responses": closed,
            }
        },
    }


def _mcp() -> dict[str, Any]:
    replied = {"type": "object", "properties": {"jsonrpc": {"const": "2.0"}}}
    responses = _responses("200", "A JSON-RPC response, also to what is none.", replied, ("413",))
    responses["202"] = {"description": "It was a notification, which has no response."}
    ended = _responses("200", "It is ended.", None, ("413",))
    ended["400"] = {"description": "The session's id is missing.", "content": _json(replied)}
    ended["404"] = {"description": "There is no such session.", "content": _json(replied)}
    return {
        "/mcp": {
            "post": {
                "operationId": "mcp",
                "summary": "Call the environment's tools over MCP: JSON-RPC 2.0.",
                "requestBody": {"required": False, "content": _json({})},
                "responses": responses,
            },
            "delete": {
                "operationId": "mcp_close",
                "summary": "End an MCP session, and close the session that it drives.",
                "parameters": [
                    {
                        "name": "Mcp-Session-Id",
                        "in": "header",
                        "required": True,
                        "schema": {"type": "string"},
                    }
                ],
                "responses": ended,
            },
        }
    }


def _probes() -> dict[str, Any]:
    told = {"type": "object"}
    status = {
        "type": "object",
        "properties": {"status": {"type": "string"}, "reason": {"type": "string"}},
        "required": ["status"],
    }
    starting = ("502", "503")
    ready = _responses("200", "It takes new sessions.", status, ("502",))
    ready["503"] = {"description": "It takes none, and says why.", "content": _json(status)}
    metrics = _responses("200", "In Prometheus's text format.", None)
    metrics["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    operations: dict[str, Any] = {
        path: {"get": {"operationId": path[1:], "summary": summary, "responses": responses}}
        for path, summary, responses in (
            ("/health", "Ask whether the server is up.", _responses("200", "It is.", status)),
            ("/ready", "Ask whether the server takes new sessions.", ready),
            (
                "/schema",
                "Get the JSON Schemas of action, observation and state.",
                _responses("200", "By name.", told, starting),
            ),
            (
                "/metadata",
                "Get what is served, by whom, and within which limits.",
                _responses("200", "By name.", told, starting),
            ),
            ("/metrics", "Get what the server has counted.", metrics),
        )
    }
    for path in OPEN_PATHS:
        operations[path]["get"]["security"] = []
    return operations


def _body(properties: Mapping[str, Any], *, required: bool, **more: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": dict(properties),
        "additionalProperties": False,
        **more,
    }
    return {"required": required, "content": _json(schema)}


def _responses(
    good: str, about: str, schema: Any, bad: Iterable[str] = ()
) -> dict[str, dict[str, Any]]:
    responses: dict[str, dict[str, Any]] = {good: {"description": about}}
    if schema is not None:
        responses[good]["content"] = _json(schema)
    for status in sorted({*bad, *_ALWAYS}):
        responses[status] = {"description": _WHEN[status], "content": _json(_ref("Fault"))}
    return responses


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


_FAULT = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
            "required": ["code", "message"],
        }
    },
    "required": ["error"],
}


def _result() -> dict[str, Any]:
    """What comes of a reset or a step. With several agents the parts are objects by agent."""
    return {
        "type": "object",
        "properties": {
            "observation": {},
            "reward": {"type": ["number", "boolean", "object", "null"]},
            "done": {"type": "boolean"},
            "terminated": {"type": ["boolean", "object"]},
            "truncated": {"type": ["boolean", "object"]},
            "info": {"type": "object"},
            "requests": {"type": "array", "items": {"type": "object", "required": ["type"]}},
            "episode_id": {"type": ["string", "null"]},
            "step_index": {"type": "integer"},
            "task_id": {"type": ["string", "null"]},
        },
        "required": ["observation", "reward", "done", "truncated", "info", "requests"],
    }


def _hoisted(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema and its definitions as components, for a `$ref` counts from the document."""
    definitions = schema.get("$defs", {})
    own = {key: value for key, value in schema.items() if key not in ("$defs", "$schema")}
    parts = {name: own, **{_component(name, key): one for key, one in definitions.items()}}
    return {key: _redirected(one, name) for key, one in parts.items()}


def _component(name: str, key: str) -> str:
    return f"{name}.{''.join(c if c.isalnum() or c in '._-' else '_' for c in key)}"


def _redirected(schema: Any, name: str) -> Any:
    if isinstance(schema, list):
        return [_redirected(one, name) for one in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _redirected(value, name) for key, value in schema.items()}
    target = moved.get("$ref")
    if isinstance(target, str) and target.startswith("#"):
        inner = target.removeprefix("#/$defs/")
        moved["$ref"] = _ref(name if inner in ("#", target) else _component(name, inner))["$ref"]
    return moved

"""`/openapi.json`: every path with its parameters and responses.

The endpoints are plain Starlette functions, so the document is written by hand around the
JSON Schemas of the served environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from envweave.registry.spec import MAX_S
from envweave.server.http.sessions import OPEN_ID_LENGTH
from envweave.server.security import OPEN_PATHS
from envweave.wire.description import Description

VERSION = "1.0.0"
"""Version of the HTTP protocol. OpenEnv's own checks require it."""

KEY_PATTERN = r"^[!-~]{1,200}$"
"""Valid values of the header `Idempotency-Key`."""

_TAGS = {
    "Play": "Run episodes in a session.",
    "Sessions": "Open and close sessions of your own.",
    "Operate": "Health, schemas, limits and metrics of the server.",
}

_NULLABLE_SECONDS = {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": MAX_S}
_REQUEST_ID = {
    "type": ["string", "integer", "null"],
    "maxLength": 200,
    "description": "Identifies this call: a retry with the same id gets the first reply.",
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
    "description": "The session; default: the shared default session.",
}
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "pattern": KEY_PATTERN},
    "description": "Same as `request_id` in the body, which takes precedence.",
}

_WHEN = {
    "400": "The message cannot be parsed.",
    "401": "The token is missing or wrong.",
    "403": "A web page of another origin may not call.",
    "404": "There is no such session, or it is closed.",
    "405": "The path does not support this method.",
    "408": "The body did not arrive in time.",
    "409": "The call is not valid now, such as a step before a reset; or its request id belongs "
    "to another call, or to a session that is closed.",
    "413": "The body is too large.",
    "421": "The Host header names another server.",
    "422": "A field of the call is invalid. The message begins with the field.",
    "500": "The server failed; see its log.",
    "502": "The environment's own code failed.",
    "503": "The server is full or stopping, or the environment was lost.",
    "504": "The call exceeded its deadline.",
}
_ALWAYS = ("400", "401", "403", "405", "421", "500")


def openapi(about: Description, *, has_token: bool) -> dict[str, Any]:
    """Return the OpenAPI document for a server of this environment."""
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
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": {
            **_tagged("Play", {**_calls(about), **_mcp()}),
            **_tagged("Sessions", _sessions()),
            **_tagged("Operate", _probes()),
        },
        "components": {"schemas": components},
    }
    if has_token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def _introduction(about: Description) -> str:
    return (
        f"{about.description}\n\nServed by envweave {about.version}. Sessions are stateful: "
        "`POST /reset` begins an episode, `POST /step` acts in it. Programs should connect to "
        "`WS /ws`, with the client of envweave or of OpenEnv."
    ).strip()


def _tagged(tag: str, paths: dict[str, Any]) -> dict[str, Any]:
    for operations in paths.values():
        for operation in operations.values():
            operation["tags"] = [tag]
    return paths


def _calls(about: Description) -> dict[str, Any]:
    reset = {
        "seed": {"type": ["integer", "null"], "minimum": 0, "maximum": 2**63 - 1},
        "episode_id": {"type": ["string", "null"]},
        "options": {"type": ["object", "null"]},
        "task": {
            "type": ["string", "object", "null"],
            "description": "A task, or the id of one.",
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
        reset[name] = {"type": "null", "description": "Not supported by this environment."}
    faults, result = ("404", "408", "409", "413", "422", "502", "503", "504"), _ref("Result")
    reset_example = {} if "seed" in not_taken else {"seed": 0}
    action = example_of(about.action or {}, about.action or {})
    step_example = None if action is None else {"action": action}
    return {
        "/reset": {
            "post": {
                "operationId": "reset",
                "summary": "Begin an episode.",
                "parameters": [_SESSION, _KEY],
                "requestBody": _body(reset, required=False, example=reset_example),
                "responses": _responses("200", "The first observation.", result, faults),
            }
        },
        "/step": {
            "post": {
                "operationId": "step",
                "summary": "Take one step in the running episode.",
                "parameters": [_SESSION, _KEY],
                "requestBody": _body(step, required=True, example=step_example, **one_of_them),
                "responses": _responses("200", "The result of the step.", result, faults),
            }
        },
        "/state": {
            "get": {
                "operationId": "state",
                "summary": "Read the state of the environment.",
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
            "description": "Seconds to wait for a free session; default 0.",
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
    closed = _responses("204", "The session is closed.", None, ("404", "409", "502", "503", "504"))
    return {
        "/sessions": {
            "post": {
                "operationId": "open",
                "summary": "Open a session, to be named in `X-Session-Id`.",
                "parameters": [key],
                "requestBody": _body(opens, required=False),
                "responses": _responses(
                    "201",
                    "The id of the session.",
                    opened,
                    ("408", "409", "413", "422", "502", "503", "504"),
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
    responses = _responses(
        "200", "A JSON-RPC response, also to an invalid request.", replied, ("413",)
    )
    responses["202"] = {"description": "A notification, which has no response."}
    ended = _responses("200", "The MCP session is closed.", None, ("413",))
    ended["400"] = {"description": "The session id is missing.", "content": _json(replied)}
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
                "summary": "Close an MCP session and the session that it drives.",
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
    by_name = {"type": "object"}
    status = {
        "type": "object",
        "properties": {"status": {"type": "string"}, "reason": {"type": "string"}},
        "required": ["status"],
    }
    starting = ("502", "503")
    ready = _responses("200", "The server accepts new sessions.", status, ("502",))
    ready["503"] = {
        "description": "The server accepts no new sessions, with the reason.",
        "content": _json(status),
    }
    metrics = _responses("200", "Prometheus text format.", None)
    metrics["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    operations: dict[str, Any] = {
        path: {"get": {"operationId": path[1:], "summary": summary, "responses": responses}}
        for path, summary, responses in (
            ("/health", "Whether the server is up.", _responses("200", "It is up.", status)),
            ("/ready", "Whether the server accepts new sessions.", ready),
            (
                "/schema",
                "Get the JSON Schemas of action, observation and state.",
                _responses("200", "By name.", by_name, starting),
            ),
            (
                "/metadata",
                "Get the environment, the versions and the limits.",
                _responses("200", "By name.", by_name, starting),
            ),
            ("/metrics", "Get the metrics of the server.", metrics),
        )
    }
    for path in OPEN_PATHS:
        operations[path]["get"]["security"] = []
    return operations


def _body(
    properties: Mapping[str, Any], *, required: bool, example: Any = None, **more: Any
) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": dict(properties),
        "additionalProperties": False,
        **more,
    }
    content = _json(schema)
    if example is not None:
        content["application/json"]["example"] = example
    return {"required": required, "content": content}


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
    """The result of a reset or a step. With several agents its parts are objects by agent."""
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
    """Return a schema and its `$defs` as components: a `$ref` is relative to the document."""
    definitions = schema.get("$defs", {})
    own = {key: value for key, value in schema.items() if key not in ("$defs", "$schema")}
    parts = {name: own, **{_component(name, key): schema for key, schema in definitions.items()}}
    return {key: _redirected(one, name) for key, one in parts.items()}


def _component(name: str, key: str) -> str:
    return f"{name}.{''.join(c if c.isalnum() or c in '._-' else '_' for c in key)}"


def _redirected(schema: Any, name: str) -> Any:
    if isinstance(schema, list):
        return [_redirected(item, name) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _redirected(value, name) for key, value in schema.items()}
    target = moved.get("$ref")
    if isinstance(target, str) and target.startswith("#"):
        inner = target.removeprefix("#/$defs/")
        moved["$ref"] = _ref(name if inner in ("#", target) else _component(name, inner))["$ref"]
    return moved


def example_of(schema: Any, root: Mapping[str, Any], depth: int = 8) -> Any:
    """Return a small value that a schema allows, for people to start from.

    `None` if none can be made by simple means, such as for a string with a pattern.
    """
    if not isinstance(schema, Mapping) or not depth or "pattern" in schema or "allOf" in schema:
        return None
    for key in ("default", "const"):
        if schema.get(key) is not None:
            return schema[key]
    if schema.get("examples") or schema.get("enum"):
        return (schema.get("examples") or schema["enum"])[0]
    if isinstance(target := schema.get("$ref"), str):
        return example_of(_definition(target, root), root, depth - 1)
    for option in schema.get("anyOf") or schema.get("oneOf") or ():
        if (found := example_of(option, root, depth - 1)) is not None:
            return found
    kind = schema.get("type")
    match kind[0] if isinstance(kind, list) and kind else kind:
        case "object":
            return _example_object(schema, root, depth)
        case "array":
            items = schema.get("prefixItems") or [schema.get("items")] * schema.get("minItems", 0)
            values = [example_of(item, root, depth - 1) for item in items]
            return None if None in values else values
        case "string":
            return "x" * schema["minLength"] if schema.get("minLength") else "text"
        case "boolean":
            return False
        case "integer" | "number":
            return _example_number(schema)
    return None


def _example_object(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    properties = schema.get("properties", {})
    found = {name: example_of(one, root, depth - 1) for name, one in properties.items()}
    required = schema.get("required", ())
    if any(found.get(name) is None for name in required):
        return None
    # An empty default of an optional field, such as `metadata`, tells a reader nothing.
    empty: tuple[Any, ...] = ({}, [], "", None)
    return {name: v for name, v in found.items() if name in required or v not in empty}


def _example_number(schema: Mapping[str, Any]) -> Any:
    if schema.get("multipleOf") or "exclusiveMinimum" in schema or "exclusiveMaximum" in schema:
        return None
    low, high = schema.get("minimum"), schema.get("maximum")
    value = 1 if low is None else max(1, low)
    return value if high is None else min(value, high)


def _definition(target: str, root: Mapping[str, Any]) -> Any:
    if target == "#":
        return root
    return root.get("$defs", {}).get(target.removeprefix("#/$defs/"))

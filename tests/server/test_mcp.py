"""`POST /mcp` for OpenEnv's client: JSON-RPC to any body, and no tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from servers import http_connection, open_websocket, served

from envweave import create_fastapi_app
from envweave.examples import CounterEnv
from envweave.server.http import bodies


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(CounterEnv, max_sessions=2, queue_size=0) as one:
        yield one


def post(url: str, body: Any) -> tuple[int, Any]:
    connection = http_connection(url)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", "/mcp", data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        raw = response.read()
        return response.status, json.loads(raw) if raw else None
    finally:
        connection.close()


def call(url: str, method: str, **params: Any) -> Any:
    status, reply = post(url, {"jsonrpc": "2.0", "id": 9, "method": method, "params": params})
    assert (status, reply["jsonrpc"], reply["id"]) == (200, "2.0", 9)
    return reply


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b"\xff", -32700),
        ({}, -32600),
        ([], -32600),
        (7, -32600),
        ({"jsonrpc": "1.0", "method": "ping", "id": 1}, -32600),
        ({"jsonrpc": "2.0", "id": 1}, -32600),
        ({"jsonrpc": "2.0", "method": ["ping"], "id": 1}, -32600),
        ({"jsonrpc": "2.0", "method": "ping", "params": [], "id": 1}, -32602),
        ({"jsonrpc": "2.0", "method": "dance", "id": 1}, -32601),
        ({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "saw"}, "id": 1}, -32602),
        (
            {
                "jsonrpc": "2.0",
                "method": "tools/list",
                "params": {"session_id": "nobody"},
                "id": 1,
            },
            -32602,
        ),
    ],
)
def test_any_body_is_answered_by_json_rpc(url: str, body: Any, expected: int) -> None:
    status, reply = post(url, body)

    assert (status, reply["jsonrpc"]) == (200, "2.0")
    assert reply["error"]["code"] == expected


def test_the_server_answers_in_the_protocol_version_of_the_client(url: str) -> None:
    known = call(url, "initialize", protocolVersion="2025-03-26")["result"]
    unknown = call(url, "initialize", protocolVersion="1999-01-01")["result"]

    assert known["protocolVersion"] == "2025-03-26"
    assert unknown["protocolVersion"] == "2025-06-18"
    assert known["serverInfo"]["name"] == "CounterEnv"


def test_a_notification_is_taken_without_a_reply(url: str) -> None:
    notification = {"jsonrpc": "2.0", "method": "notifications/initialized"}

    assert post(url, notification) == (202, None)


def test_a_session_opened_here_is_driven_by_one_websocket_at_a_time(url: str) -> None:
    name = call(url, "openenv/session/create")["result"]["session_id"]
    path = f"/ws?session_id={name}"

    first = open_websocket(url, path)
    first.send('{"type": "reset", "data": {}}')
    begun = json.loads(str(first.receive(20)))
    second = open_websocket(url, path)
    refused = json.loads(str(second.receive(20)))
    first.close()
    second.close()
    closed = call(url, "openenv/session/close", session_id=name)
    again = call(url, "openenv/session/close", session_id=name)

    assert begun["data"]["observation"] == {"value": 0}
    assert refused["data"]["code"] == "SESSION_ERROR"
    assert closed["result"] == {"session_id": name, "closed": True}
    assert again["error"]["code"] == -32602


def test_a_full_server_opens_no_session(url: str) -> None:
    names = [call(url, "openenv/session/create")["result"]["session_id"] for _ in range(2)]

    refused = call(url, "openenv/session/create")
    for name in names:
        call(url, "openenv/session/close", session_id=name)

    assert "2 sessions" in refused["error"]["message"]


def called(path: str, receive: Any) -> list[int]:
    """Call an application whose caller's body comes as `receive` tells; return the statuses."""
    app = create_fastapi_app("counter-v0")
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-length", b"100")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    statuses: list[int] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def call() -> None:
        async with app.router.lifespan_context(app):
            await asyncio.wait_for(app(scope, receive, send), 20.0)

    asyncio.run(call())
    return statuses


@pytest.mark.parametrize("path", ["/mcp", "/step"])
def test_a_body_that_never_arrives_times_out(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_S", 0.05)

    async def receive() -> Any:
        await asyncio.Event().wait()

    assert called(path, receive) == [408]


@pytest.mark.parametrize("path", ["/mcp", "/step"])
def test_a_caller_that_disconnects_during_its_body_is_not_a_server_error(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def receive() -> Any:
        return {"type": "http.disconnect"}

    assert called(path, receive) == [400]
    assert not [one for one in caplog.records if one.levelname == "ERROR"]

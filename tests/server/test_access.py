"""Access control of a server: token, Host, Origin and body size."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest
from servers import app_served, client_of, error_in, post_step, served
from starlette.testclient import WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

import envweave as ew
from envweave import create_fastapi_app
from envweave.errors import AccessError

TOKEN = "a-secret-that-nobody-knows"
SHOWN = {"Authorization": f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    "shown",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": TOKEN},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer ä".encode()},
    ],
)
def test_without_the_token_only_probes_are_answered(shown: dict[str, Any]) -> None:
    with client_of("counter-v0", token=TOKEN) as client:
        refused = client.post("/reset", headers=shown)
        unknown = client.get("/nowhere", headers=shown)
        probes = [client.get(path, headers=shown).status_code for path in ("/health", "/ready")]

    assert error_in(refused) == "401 access_refused"
    assert refused.headers["WWW-Authenticate"] == "Bearer"
    assert error_in(unknown) == "401 access_refused"
    assert probes == [200, 200]


def test_refusing_a_caller_is_not_logged_as_a_server_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = create_fastapi_app("counter-v0", token=TOKEN)

    with app_served(app, log_config=None) as url, pytest.raises(AccessError, match="token"):
        ew.make(url)

    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_with_the_token_everything_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVWEAVE_TOKEN", TOKEN)
    with client_of("counter-v0") as client:
        client.headers.update(SHOWN)
        client.post("/reset")

        assert post_step(client).status_code == 200
        assert client.get("/openapi.json").json()["security"] == [{"token": []}]


def test_a_refusal_does_not_show_the_token() -> None:
    with client_of("counter-v0", token=TOKEN) as client:
        refused = client.post("/reset", headers={"Authorization": "Bearer wrong"})

    assert TOKEN not in refused.text


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("localhost", 200),
        ("LOCALHOST:99", 200),
        ("[::1]:8000", 200),
        ("env.localhost", 200),
        ("10.1.2.3:8000", 200),  # an address cannot be resolved to another machine
        ("testserver", 200),  # what it is bound to
        ("env.internal:8000", 200),  # allowed
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example:80", 421),
        ("evil.example:127.0.0.1", 421),
    ],
)
def test_only_names_of_the_server_itself_are_answered(host: str, status: int) -> None:
    with client_of("counter-v0", allowed_hosts=["env.internal"]) as client:
        reply = client.get("/health", headers={"Host": host})

    assert reply.status_code == status
    if status != 200:
        assert error_in(reply) == "421 access_refused"
        assert "--allow-host" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 200),
        ("http://localhost:8000", 200),  # its own /docs
        ("https://ours.example", 200),  # allowed
        ("http://localhost:9000", 403),
        ("http://evil.example", 403),
        ("https://ours.example.evil.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_web_pages_of_other_origins_may_not_call(origin: str | None, status: int) -> None:
    headers = {"Host": "localhost:8000"} | ({} if origin is None else {"Origin": origin})
    with client_of("counter-v0", allowed_origins=["https://ours.example"]) as client:
        reply = client.post("/reset", headers=headers)

    assert reply.status_code == status
    if status != 200:
        assert error_in(reply) == "403 access_refused"


def test_an_allowed_page_can_read_the_response() -> None:
    page = {"Origin": "https://ours.example"}
    asks = {**page, "Access-Control-Request-Method": "POST"}
    with client_of("counter-v0", token=TOKEN, allowed_origins=["https://ours.example"]) as client:
        before = client.options("/reset", headers=asks)
        reply = client.post("/reset", headers={**page, **SHOWN})

    assert before.status_code == 200
    assert reply.headers["Access-Control-Allow-Origin"] == "https://ours.example"


def test_a_body_with_a_content_length_above_the_limit_is_not_read() -> None:
    with served("counter-v0", max_message_bytes=1024) as url:
        call = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
        call.putrequest("POST", "/reset")
        call.putheader("Content-Length", "1025")
        call.endheaders()

        reply = call.getresponse()
        body = json.loads(reply.read())
        call.close()

    assert (reply.status, body["error"]["code"]) == (413, "unreadable")


def test_a_body_without_a_content_length_is_read_up_to_the_limit() -> None:
    with served("counter-v0", max_message_bytes=1024) as url:
        call = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
        call.request("POST", "/reset", iter([b" " * 600, b" " * 600]), encode_chunked=True)

        reply = call.getresponse()
        body = json.loads(reply.read())
        call.close()

    assert (reply.status, body["error"]["code"]) == (413, "unreadable")
    assert "1024 bytes" in body["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({**SHOWN, "Origin": "http://evil.example"}, 403),
        ({**SHOWN, "Host": "evil.example"}, 421),
    ],
)
def test_a_websocket_of_our_own_dialect_is_refused_at_the_door(
    headers: dict[str, str], status: int
) -> None:
    with (
        client_of("counter-v0", token=TOKEN) as client,
        pytest.raises(WebSocketDenialResponse) as refused,
        client.websocket_connect("/ws", subprotocols=["envweave.v1.json"], headers=headers),
    ):
        pass

    assert error_in(refused.value) == f"{status} access_refused"


def test_a_websocket_with_the_token_is_accepted() -> None:
    with (
        client_of("counter-v0", token=TOKEN) as client,
        client.websocket_connect("/ws", ["envweave.v1.json"], headers=SHOWN) as websocket,
    ):
        websocket.send_json({"id": 1, "method": "describe"})
        reply = websocket.receive_json()

    assert reply["result"]["env_id"] == "counter-v0"


def test_a_websocket_of_openenvs_dialect_is_refused_by_an_error_to_its_first_call() -> None:
    with (
        client_of("counter-v0", token=TOKEN) as client,
        client.websocket_connect("/ws") as websocket,
    ):
        websocket.send_json({"type": "reset"})

        reply = websocket.receive_json()
        with pytest.raises(WebSocketDisconnect) as end:
            websocket.receive_json()

    assert (reply["type"], reply["data"]["code"]) == ("error", "SESSION_ERROR")
    assert "token" in reply["data"]["message"]
    assert end.value.code == 1000

"""An application without a token accepts calls from its own machine only."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
import uvicorn
from servers import error_in, served
from starlette.testclient import TestClient

import envweave as ew
from envweave import create_fastapi_app
from envweave.examples import CounterEnv

FAR = ("203.0.113.9", 4711)


def called_from(client: Any, path: str = "/metadata", server: Any = None, **options: Any) -> Any:
    """What an application says to a caller with this address."""
    app = create_fastapi_app("counter-v0", **options)

    async def recorded(scope: Any, receive: Any, send: Any) -> None:
        if server is not None:
            scope["server"] = server
        await app({**scope, "client": client}, receive, send)

    async def call() -> Any:
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(
                transport=httpx2.ASGITransport(recorded), base_url="http://x"
            ) as http,
        ):
            return await http.get(path, headers={"Host": "localhost"})

    return asyncio.run(call())


@pytest.mark.parametrize(
    "client",
    [("127.0.0.1", 1), ("127.8.9.1", 1), ("::1", 1), ("::ffff:127.0.0.1", 1), ("testclient", 1)],
)
def test_callers_of_this_machine_need_no_token(client: Any) -> None:
    assert called_from(client).status_code == 200


@pytest.mark.parametrize("client", [FAR, ("10.0.0.2", 1), ("::ffff:10.0.0.2", 1), ("fe80::1", 1)])
def test_clients_on_other_machines_are_refused_with_the_remedy(client: Any) -> None:
    refused = called_from(client)

    assert error_in(refused) == "403 access_refused"
    assert "ENVWEAVE_TOKEN" in refused.json()["error"]["message"]
    assert "insecure=True" in refused.json()["error"]["message"]


def test_a_client_without_an_address_is_local_only_on_a_local_socket() -> None:
    assert called_from(None, server=("/run/env.sock", None)).status_code == 200
    assert called_from(None, server=("127.0.0.1", 80)).status_code == 200
    assert error_in(called_from(None, server=("192.0.2.1", 80))) == "403 access_refused"


def test_a_token_or_an_explicit_option_admits_other_machines() -> None:
    assert called_from(FAR, insecure=True).status_code == 200
    assert called_from(FAR, token="secret").status_code == 401
    assert called_from(FAR, "/health").status_code == 200


def test_an_operators_word_is_yes_or_no() -> None:
    with pytest.raises(ew.errors.OptionError, match="insecure must be True or False, got 'yes'"):
        create_fastapi_app("counter-v0", insecure="yes")


def test_a_websocket_from_another_machine_is_refused_too() -> None:
    with TestClient(create_fastapi_app("counter-v0"), client=FAR) as client:
        with client.websocket_connect("/ws") as websocket:
            websocket.send_json({"type": "state"})
            recorded = websocket.receive_json()

        assert recorded["type"] == "error"
        assert "its own machine" in recorded["data"]["message"]


@contextmanager
def on_all_addresses(app: Any) -> Iterator[int]:
    """Run an application as a foreign server would, open to other machines."""
    with socket.create_server(("0.0.0.0", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        ready = threading.Event()
        started = server.startup

        async def startup(sockets: Any = None) -> None:
            await started(sockets)
            ready.set()

        server.startup = startup  # type: ignore[method-assign]
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            assert ready.wait(20)
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def test_under_another_asgi_server_this_machine_is_admitted() -> None:
    with (
        on_all_addresses(create_fastapi_app(CounterEnv)) as port,
        ew.make(f"http://127.0.0.1:{port}") as env,
    ):
        assert env.reset().step_index == 0


def test_a_unix_socket_is_of_this_machine(tmp_path: Any) -> None:
    with (
        served(CounterEnv, uds=tmp_path / "env.sock", drain_s=0) as url,
        ew.make(url) as env,
    ):
        assert env.reset().step_index == 0


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"max_session": 3}, "'max_session' is neither an option of .* 'max_sessions'"),
        ({"don_at": 3}, "Did you mean 'done_at'"),
        ({"zzzzzz": 3}, "It takes: done_at"),
    ],
)
def test_an_unknown_keyword_is_refused_before_the_server_starts(
    keywords: Any, message: str
) -> None:
    for serve in (create_fastapi_app, ew.serve):
        with pytest.raises(ew.errors.OptionError, match=message) as caught:
            serve("counter-v0", **keywords)
        assert f"{serve.__name__}()" in str(caught.value)


def test_a_missing_required_keyword_is_reported_before_anything_starts() -> None:
    class Needy(CounterEnv):
        def __init__(self, level: int) -> None:
            super().__init__()

    with pytest.raises(ew.errors.OptionError, match="needs the keyword 'level'"):
        create_fastapi_app(Needy)

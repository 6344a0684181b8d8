"""Malformed and hostile calls at a live server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from environments.served import Tally
from server_runtimes import Caller, code, counting_table, run
from servers import app_served, http_connection, open_websocket, served, wait_for
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect

import envweave as ew
from envweave import create_fastapi_app
from envweave.errors import ClosedError, OptionError
from envweave.wire.encoding import MSGPACK
from envweave.wire.messages import read_replies


class RawClient:
    """One connection in our dialect, by hand."""

    def __init__(self, url: str) -> None:
        self.socket = open_websocket(url, subprotocols=[MSGPACK.subprotocol])

    def put(self, message: Any) -> None:
        self.socket.send(MSGPACK.encode(message))

    def put_at_once(self, messages: list[Any]) -> None:
        """Have several frames arrive together, before any of them is answered."""
        stream = self.socket._stream
        self.socket._send(b"".join(stream.binary(MSGPACK.encode(one)) for one in messages), 20)

    def call(self, number: int, method: str, session: str, **params: Any) -> Any:
        self.put({"id": number, "method": method, "session": session, "params": params})
        (reply,) = read_replies(MSGPACK.decode(self.socket.receive(20)))
        return reply.result if reply.fault is None else reply.fault.code


@contextmanager
def raw_client(url: str) -> Iterator[RawClient]:
    client = RawClient(url)
    try:
        yield client
    finally:
        client.socket.close()


def sessions_at(url: str) -> float:
    connection = http_connection(url)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return float(next(one for one in lines if one.startswith("envweave_sessions ")).split()[1])


def test_a_session_cannot_be_opened_twice_and_frees_its_slot() -> None:
    with served(Tally, max_sessions=2) as url, raw_client(url) as client:
        before = Tally.open
        client.call(1, "open", "s")
        again = [client.call(number, "open", "s") for number in range(2, 9)]
        refused = client.call(9, "open", "s", nonsense=1)
        client.call(10, "close", "s")

        assert [*again, refused] == ["out_of_order"] * 8
        wait_for(lambda: sessions_at(url) == 0)
        assert Tally.open <= before


@pytest.mark.parametrize(
    ("session", "params"),
    [
        ("x" * 201, {}),
        ("s", {"position": [-1, 0, 0, "p"]}),
        ("s", {"position": [True, 0, 0, "p"]}),
        ("s", {"position": [1, 0, 2**64, "p"]}),
        ("s", {"position": [1, 0, 0, "p" * 201]}),
        ("s", {"timeout_s": float("nan")}),
    ],
)
def test_an_invalid_open_is_refused_and_uses_no_slot(session: str, params: dict[str, Any]) -> None:
    with served(Tally) as url, raw_client(url) as client:
        assert client.call(1, "open", session, **params) == "option_refused"
        assert sessions_at(url) == 0


@pytest.mark.parametrize("number", [0, -1, 2, 2**63, 2**70])
def test_a_number_that_is_not_the_first_opens_nothing(number: int) -> None:
    with served(Tally) as url, raw_client(url) as client:
        refused = client.call(number, "open", "s")

        assert refused in ("session_gone", "out_of_order", "unreadable")
        assert sessions_at(url) == 0


@pytest.mark.parametrize("form", ["alone", "together", "apart"])
def test_a_caller_that_is_gone_before_its_call_was_taken_leaves_nothing_behind(form: str) -> None:
    with served(Tally, resume_ttl_s=0.1) as url:
        for number in range(8):
            call = {"id": 1, "method": "open", "session": f"s{number}"}
            with raw_client(url) as client:
                client.put(
                    call if form == "alone" else {"calls": [call], "together": form == "together"}
                )

        wait_for(lambda: sessions_at(url) == 0)


@pytest.mark.parametrize("subprotocols", [["envweave.v1.json"], None], ids=["ours", "openenv"])
def test_text_that_is_not_utf8_ends_its_connection_and_is_not_a_server_error(
    subprotocols: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_fastapi_app(Tally)

    with (
        app_served(app, log_config=None) as url,
        connect(f"ws{url[4:]}/ws", subprotocols=subprotocols) as client,
    ):
        client.send(b"\xff\xfe", text=True)
        with pytest.raises(ConnectionClosedError) as closed:
            client.recv(20)

    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1007
    assert [one.getMessage() for one in caplog.records if one.levelname == "ERROR"] == []


def test_a_caller_that_reconnects_keeps_its_position_in_the_queue() -> None:
    async def scenario() -> None:
        table, _ = counting_table(max_sessions=1)
        first, old, new = Caller(table, "first"), object(), object()
        await first("open")
        waiting = Caller(table, "second", old)
        opening = asyncio.ensure_future(waiting("open", wait_s=20))
        await asyncio.sleep(0)
        waiting.connection = new
        repeated = asyncio.ensure_future(waiting("open", again=1))
        await asyncio.sleep(0)

        table.disconnect(old)
        await first("close")

        assert [code(await opening), code(await repeated)] == [None, None]

    run(scenario())


def test_a_session_that_the_server_closed_in_mid_call_is_gone_and_not_closed() -> None:
    async def scenario() -> None:
        table, _ = counting_table()

        fault = table.fault_for("step", ClosedError("Tally was closed while its step() ran."))

        assert fault.code == "session_gone"  # which ends the episode as lost

    run(scenario())


def resident_mb() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(client for client in lines if client.startswith("VmRSS")).split()[1]) // 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_a_client_that_does_not_read_replies_neither_fills_memory_nor_blocks_others() -> None:
    step = {"id": 3, "method": "step", "session": "s", "params": {"action": {"do": "step"}}}
    with served(Tally, size=2**20) as url, raw_client(url) as client:
        client.call(1, "open", "s")
        client.call(2, "reset", "s")
        client.call(3, "step", "s", action={"do": "step"})
        before_mb = resident_mb()

        client.put_at_once([step] * 1000)  # the same call, whose reply is kept
        for _ in range(8):
            client.put({"calls": [{"id": 1, "method": "describe"}] * 1000})
        with ew.make(url) as env:
            env.reset()
            assert env.step({"do": "step"}).observation.at == 1

        assert resident_mb() - before_mb < 200


@pytest.mark.parametrize(
    "origin", ["null", "http://[", "http://[::1", "", "://", "http://127.0.0.1.evil", "\xff"]
)
def test_an_origin_that_makes_no_sense_is_a_foreign_one(origin: str) -> None:
    with served(Tally) as url:
        connection = http_connection(url)
        connection.request("GET", "/health", headers={"Origin": origin})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()

    assert (answer.status, b"access_refused" in body) == (403, True)


def test_a_token_is_the_same_with_a_line_break_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVWEAVE_TOKEN", "secret\n")
    with served(Tally) as url, ew.make(url) as env:
        assert env.reset().observation.at == 0
        with ew.make(url, token="secret") as other:
            assert other.reset().observation.at == 0


@pytest.mark.parametrize("token", ["ü", "two\nlines", "a\0b", "\ud800", ""])
def test_a_token_that_no_header_can_hold_is_refused_at_the_start(token: str) -> None:
    with pytest.raises(OptionError, match="token"):
        create_fastapi_app(Tally, token=token)

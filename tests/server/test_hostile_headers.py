"""Hostile request heads: too large, too slow, without end."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import Running, process_serving

import envweave as ew

pytestmark = pytest.mark.slow  # waits for delays of a server

TALLY = "pkg://environments.served:Tally"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with process_serving(TALLY) as running:
        yield running


def response_to(server: Running, *parts: bytes) -> bytes:
    """Send parts until the server hangs up; return its response."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        try:
            for part in parts:
                connection.sendall(part)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        response = b""
        try:
            while chunk := connection.recv(65536):
                response += chunk
        except ConnectionResetError:
            pass  # it had no use for the rest
        return response


START = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
UPGRADE = (
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: envweave.v1.json\r\n"
)


@pytest.mark.slow  # starts server processes
@pytest.mark.parametrize(
    "parts",
    [
        [START, b"X: ", *[b"x" * 2**18] * 64],
        [START, *[b"X: y\r\n" * 40_000] * 64],
        [b"GET /", *[b"x" * 2**18] * 64],
        [START, b"Transfer-Encoding: chunked\r\n\r\n0\r\n", *[b"X: y\r\n" * 40_000] * 64],
        [START, b"Transfer-Encoding: chunked\r\n\r\n1;", *[b"x" * 2**18] * 64],
    ],
    ids=["one header", "many headers", "path", "trailers", "chunk extension"],
)
def test_an_endless_request_head_is_not_buffered(server: Running, parts: list[bytes]) -> None:
    response = response_to(server, *parts)

    assert not response or b"HTTP/1.1 431 " in response
    assert resident_mb(server) < 200
    with ew.make(server.url) as env:
        assert env.reset().observation.at == 0


def resident_mb(server: Running) -> int:
    status = Path(f"/proc/{server.process.pid}/status")
    if not status.exists():
        return 0
    connection = next(one for one in status.read_text().splitlines() if one.startswith("VmRSS"))
    return int(connection.split()[1]) // 1024


@pytest.mark.slow  # starts server processes
def test_a_head_that_is_too_large_gets_an_error(server: Running) -> None:
    response = response_to(server, START, b"X: " + b"x" * 70_000)

    head, _, body = response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert json.loads(body)["error"]["code"] == "unreadable"


def test_a_large_head_within_the_limit_and_large_bodies_are_served(server: Running) -> None:
    head = START + b"X: " + b"x" * 30_000 + b"\r\nContent-Length: 400000\r\n\r\n"

    response = response_to(
        server, head, *[b" " * 100_000] * 4, START + b"Connection: close\r\n\r\n"
    )

    assert response.count(b"HTTP/1.1 200 OK") == 2


@pytest.fixture(scope="module")
def impatient() -> Iterator[int]:
    """The port of a server that grants a head a fifth of a second."""
    with process_serving(TALLY, head_timeout_s=0.2) as running:
        yield running.port


def trickled(port: int, start: bytes, drop: bytes) -> bytes:
    """Send a start, then a little at a time until the server hangs up; return its response."""
    with socket.create_connection(("127.0.0.1", port), timeout=0.02) as connection:
        connection.sendall(start)
        response = b""
        for _ in range(1000):
            try:
                chunk = connection.recv(65536)
                if not chunk:
                    return response
                response += chunk
                connection.sendall(drop)
            except TimeoutError:
                connection.sendall(drop)
            except OSError:
                return response
    raise AssertionError("the server never hung up")


@pytest.mark.parametrize(
    ("start", "drop"),
    [
        (b"", b""),
        (b"", b"\r\n"),
        (START, b"X: y\r\n"),
        (START + b"\r\n" + START, b"X: y\r\n"),
        (START + b"\r\n", b"\r\n"),
    ],
    ids=["silence", "blank lines", "a head", "a second head", "blank lines after a reply"],
)
def test_a_slow_request_head_times_out(impatient: int, start: bytes, drop: bytes) -> None:
    response = trickled(impatient, start, drop)

    last = response[response.rindex(b"HTTP/1.1 ") :]
    assert last.startswith(b"HTTP/1.1 408 ")
    assert "within 0.2 s" in json.loads(last.partition(b"\r\n\r\n")[2])["error"]["message"]


def test_an_idle_keep_alive_connection_is_kept(impatient: int) -> None:
    call = START + b"\r\n"
    with socket.create_connection(("127.0.0.1", impatient), timeout=20) as connection:
        connection.sendall(call)
        assert b" 200 OK" in connection.recv(65536)
        connection.settimeout(0.4)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(20)
        connection.sendall(call)
        assert b" 200 OK" in connection.recv(65536)


@pytest.mark.parametrize("names", [(b"evil.example", b"127.0.0.1"), (b"127.0.0.1", b"127.0.0.1")])
@pytest.mark.parametrize("upgrade", [b"", UPGRADE], ids=["http", "websocket"])
def test_a_head_with_two_hosts_is_refused(
    server: Running, names: tuple[bytes, bytes], upgrade: bytes
) -> None:
    hosts = b"".join(b"Host: %s\r\n" % name for name in names)

    response = response_to(server, b"GET /ws HTTP/1.1\r\n" + hosts + upgrade + b"\r\n")

    head, _, body = response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert "Host" in json.loads(body)["error"]["message"]


def test_an_application_which_sees_no_heads_refuses_to_limit_them() -> None:
    with pytest.raises(ew.errors.OptionError, match="head_timeout_s is for serve"):
        ew.create_fastapi_app("counter-v0", head_timeout_s=5.0)

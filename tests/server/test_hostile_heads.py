"""What comes before anybody knows who calls: the heads of requests, without end."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from worlds_served import Running, process_serving

import envweave as ew

WORLD = "pkg://remote_worlds:Tally"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with process_serving(WORLD) as running:
        yield running


def told(server: Running, *parts: bytes) -> bytes:
    """Send parts until the server hangs up; return what it said."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as line:
        try:
            for part in parts:
                line.sendall(part)
            line.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        said = b""
        try:
            while chunk := line.recv(65536):
                said += chunk
        except ConnectionResetError:
            pass  # it had no use for the rest
        return said


START = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"


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
def test_a_head_without_end_is_not_kept(server: Running, parts: list[bytes]) -> None:
    said = told(server, *parts)

    assert not said or b"HTTP/1.1 431 " in said
    assert resident_mb(server) < 200
    with ew.make(server.url) as env:
        assert env.reset().observation.at == 0


def resident_mb(server: Running) -> int:
    status = Path(f"/proc/{server.process.pid}/status")
    if not status.exists():
        return 0
    line = next(one for one in status.read_text().splitlines() if one.startswith("VmRSS"))
    return int(line.split()[1]) // 1024


def test_a_head_that_is_too_large_is_told_so(server: Running) -> None:
    said = told(server, START, b"X: " + b"x" * 70_000)

    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert json.loads(body)["error"]["code"] == "unreadable"


def test_a_large_head_within_the_limit_and_large_bodies_are_served(server: Running) -> None:
    head = START + b"X: " + b"x" * 30_000 + b"\r\nContent-Length: 400000\r\n\r\n"

    said = told(server, head, *[b" " * 100_000] * 4, START + b"Connection: close\r\n\r\n")

    assert said.count(b"HTTP/1.1 200 OK") == 2

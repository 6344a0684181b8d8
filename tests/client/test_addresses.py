"""URLs of servers, and the WebSocket handshake."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envweave.client.address import Address, parse_address
from envweave.client.socket import BlockingSocket
from envweave.errors import AccessError, ConnectionLostError, EnvIdError, ServerError, WireError
from envweave.wire.websocket import Handshake


@pytest.mark.parametrize(
    ("url", "parts", "host_header"),
    [
        ("http://a.example", ("a.example", 80, "", False, None), "a.example"),
        ("http://a.example:8000/", ("a.example", 8000, "", False, None), "a.example:8000"),
        ("https://a.example/x/y/", ("a.example", 443, "/x/y", True, None), "a.example"),
        ("http://[::1]:81/p", ("::1", 81, "/p", False, None), "[::1]:81"),
        ("http://bücher.example", ("xn--bcher-kva.example", 80, "", False, None), None),
        ("unix:///run/a.sock", ("", 0, "", False, "/run/a.sock"), "localhost"),
    ],
)
def test_a_url_is_read(url, parts, host_header):
    host, port, prefix, is_secure, path = parts

    address = parse_address(url)

    assert address == Address(address.url, host, port, prefix, is_secure, path)
    assert host_header in (None, address.host_header)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://a", "not the URL of a server"),
        ("http:/a", "not the URL of a server"),
        (7, "not the URL of a server"),
        ("http://", "has no host"),
        ("http://:80", "has no host"),
        ("http://a:port", "not a valid URL"),
        ("http://a:99999", "not a valid URL"),
        ("http://a:0", "port 0"),
        ("http://[::1", "not a valid URL"),
        ("http://a b", "whitespace"),
        ("http://a\r\nX: y", "whitespace"),
        ("http://user:secret@a", "token="),
        ("http://a/?x=1", "query"),
        ("http://a/ü", "not ASCII"),
        ("unix://a.sock", "three slashes"),
    ],
)
def test_an_invalid_url_is_refused_with_a_reason(url, message):
    with pytest.raises(EnvIdError, match=message) as refusal:
        parse_address(url)

    assert "secret" not in str(refusal.value)


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_is_refused(text):
    for scheme in ("http://", "https://", "unix://", ""):
        with contextlib.suppress(EnvIdError):
            parse_address(scheme + text)


@given(st.lists(st.binary(max_size=50), max_size=10))
def test_any_handshake_response_raises_only_wire_errors(pieces):
    asked = Handshake("host", "/ws", subprotocols=("one",))

    with contextlib.suppress(WireError):
        asked.receive(b"HTTP/1.1 ")
        for piece in pieces:
            asked.receive(piece)


def test_a_header_that_would_break_the_handshake_is_refused():
    with pytest.raises(WireError, match="line break"):
        Handshake("host", "/ws", headers={"Authorization": "Bearer a\r\nX: y"})


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[Address]:
    """Run a server that answers one client with these bytes, and disconnects."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer_one() -> None:
        caller, _ = listener.accept()
        with caller:
            caller.recv(65536)
            caller.sendall(answer)

    thread = threading.Thread(target=answer_one)
    thread.start()
    try:
        yield parse_address(f"http://127.0.0.1:{listener.getsockname()[1]}")
    finally:
        thread.join(30)
        listener.close()


def _http(status: str, body: str = "", headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
    return (head + body).encode()


AGREED = "upgrade: websocket\r\nconnection: Upgrade\r\n"


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (_http("401 No", '{"fault": {"message": "no token"}}'), AccessError, "no token.*TOKEN"),
        (_http("403 No", '{"detail": "wrong host"}'), AccessError, "wrong host"),
        (_http("404 No", "{}"), ServerError, "HTTP 404.*openenv://127"),
        (_http("200 OK", "<html>"), ServerError, "is not an envweave server"),
        (_http("503 Wait", '{"detail": "busy"}'), ConnectionLostError, "HTTP 503: busy"),
        (b"HTTP/1.1 418 Tea\r\n\r\nuntil the end", ServerError, "HTTP 418"),
        (b"SSH-2.0-x\r\n\r\n", ServerError, "not HTTP"),
        (b"HTTP/1.1 101", ConnectionLostError, "hung up"),
        (b"", ConnectionLostError, "hung up"),
        (_http("101 Switching"), ServerError, "another protocol"),
        (
            _http("101 S", headers=AGREED + "sec-websocket-accept: x\r\n"),
            ServerError,
            "wrong Sec-WebSocket-Accept",
        ),
    ],
)
def test_each_failed_handshake_has_its_own_error(answer, error, message):
    with answering(answer) as address, pytest.raises(error, match=message) as refusal:
        BlockingSocket(address)

    assert type(refusal.value) is error


def test_a_missing_server_is_reported_with_advice(tmp_path):
    for url in ("http://127.0.0.1:1", f"unix://{tmp_path}/none.sock", "http://no.invalid:80"):
        with pytest.raises(ConnectionLostError, match=r"No server answers at .*envweave serve ID"):
            BlockingSocket(parse_address(url))

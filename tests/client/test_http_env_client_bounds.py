"""What `HTTPEnvClient` refuses to send, and the limits on time and size of what it reads."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from servers import served

import envweave as ew
from envweave.client.address import parse_address
from envweave.client.http import HttpCalls
from envweave.errors import DeadlineError, OptionError, WireError
from envweave.examples import CounterEnv


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"token": "a\r\nX: y"}, "'Authorization' contains characters that no header may"),
        ({"token": "pä☃"}, "'Authorization' contains"),
        ({"default_headers": {"A": "b\nc"}}, "'A' contains"),
        ({"default_headers": {"A\n": "b"}}, "is not a valid header name"),
        ({"default_headers": {"A": 1}}, "must be a string, got int"),
        ({"request_timeout_s": -1}, "request_timeout_s must be a number of seconds > 0, got -1"),
        ({"request_timeout_s": "x"}, "request_timeout_s must .*, got 'x'"),
        ({"request_timeout_s": float("nan")}, "request_timeout_s must .*, got nan"),
        ({"request_timeout_s": None}, "request_timeout_s must .*, got None"),
    ],
)
def test_invalid_headers_and_times_are_refused_at_once(options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        ew.HTTPEnvClient("http://127.0.0.1:1", **options)

    assert "X: y" not in str(caught.value)


def test_whitespace_around_a_token_is_ignored() -> None:
    with (
        served(CounterEnv, token="right", drain_s=0) as url,
        ew.HTTPEnvClient[Any, Any](url, token=" right\n") as env,
    ):
        assert env.reset().step_index == 0


def test_an_invalid_step_timeout_is_refused() -> None:
    with served(CounterEnv, drain_s=0) as url, ew.HTTPEnvClient[Any, Any](url) as env:
        env.reset()

        with pytest.raises(OptionError, match=r"timeout_s must .*, got 'soon'"):
            env.step({"delta": 1}, timeout_s="soon")  # type: ignore[arg-type]

        assert env.step({"delta": 1}, timeout_s=30).observation.value == 1


def test_a_reset_that_is_repeated_by_its_id_begins_one_episode() -> None:
    with served(CounterEnv, drain_s=0) as url, ew.HTTPEnvClient[Any, Any](url) as env:
        ids = [env.reset(seed=3, request_id="mine").episode_id for _ in range(2)]
        other = env.reset(seed=3, request_id="another").episode_id

    assert ids[0] == ids[1] != other


Answer = Callable[[socket.socket], None]


@contextlib.contextmanager
def answering(*answers: Answer) -> Iterator[str]:
    """Run a server that answers requests with these functions, in order, on one connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as sock:
            for respond in answers:
                sock.recv(65536)
                respond(sock)
            while sock.recv(65536):
                pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
        thread.join(20)


def head(length: int, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n".encode()


def drip(data: bytes, over: threading.Event) -> Answer:
    """Send a byte every now and then, each of them in time."""

    def send_slowly(sock: socket.socket) -> None:
        for i in range(len(data)):
            sock.sendall(data[i : i + 1])
            if over.wait(0.05):
                return

    return send_slowly


@pytest.mark.parametrize("before", [b"", head(1000)], ids=["head", "body"])
def test_an_answer_that_drips_in_has_one_deadline(before: bytes) -> None:
    over = threading.Event()

    def begin(sock: socket.socket) -> None:
        sock.sendall(before)
        drip(b"HTTP" * 250, over)(sock)

    with answering(begin) as url, ew.HTTPEnvClient[Any, Any](url, request_timeout_s=0.4) as env:
        with pytest.raises(DeadlineError, match=r"within 0\.4 s"):
            env.state()
        over.set()


def test_an_answer_that_is_too_large_is_not_read() -> None:
    def pour(sock: socket.socket) -> None:
        sock.sendall(head(10**12) + b" " * 5000)

    with answering(pour) as url:
        calls = HttpCalls(parse_address(url), {}, max_bytes=4000)

        with pytest.raises(WireError, match="more than 4000 bytes"):
            calls.call("GET", "/state", timeout_s=20.0, may_repeat=False)


@pytest.mark.parametrize("name", ["a\r\nX: y", "../reset", "ä", "", "x" * 201])
def test_an_invalid_session_id_is_reported(name: str) -> None:
    body = json.dumps({"session_id": name}).encode()

    with (
        answering(lambda sock: sock.sendall(head(len(body), "201 Created") + body)) as url,
        ew.HTTPEnvClient[Any, Any](url) as env,
        pytest.raises(WireError, match="returned no valid session_id"),
    ):
        env.reset()

"""A forwarded port: many clients, large messages, all kinds of endings."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from containers import FarEnd

from envweave.errors import StartupError
from envweave.providers.kubernetes.port_forward import PortForward


@pytest.fixture
def far() -> FarEnd:
    return FarEnd()


@pytest.fixture
def forward(far: FarEnd) -> Iterator[PortForward]:
    threads = threading.active_count()
    opened = PortForward(far.connect)
    yield opened
    opened.close()
    far.join()
    assert threading.active_count() == threads


@pytest.fixture
def short_timeouts() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual_s)


def call(forward: PortForward) -> socket.socket:
    return socket.create_connection(("127.0.0.1", forward.port), 20)


def ask(caller: socket.socket, data: bytes) -> bytes:
    """Send all of it while reading as much."""
    sending = threading.Thread(target=caller.sendall, args=(data,))
    sending.start()
    received = bytearray()
    while len(received) < len(data):
        chunk = caller.recv(2**16)
        if not chunk:
            break
        received += chunk
    sending.join(20)
    return bytes(received)


def test_data_is_forwarded_both_ways(forward: PortForward) -> None:
    with call(forward) as caller:
        assert [ask(caller, b"hello"), ask(caller, b"again")] == [b"HELLO", b"AGAIN"]


def test_megabytes_are_forwarded_both_ways_unchanged(forward: PortForward) -> None:
    data = bytes(range(97, 123)) * 200_000

    with call(forward) as caller:
        assert ask(caller, data) == data.upper()


def test_many_clients_have_separate_tunnels(forward: PortForward, far: FarEnd) -> None:
    def speak(number: int) -> bool:
        data = f"caller {number} ".encode() * 1000
        with call(forward) as caller:
            return all(ask(caller, data) == data.upper() for _ in range(5))

    with ThreadPoolExecutor(16) as callers:
        assert all(callers.map(speak, range(32)))
    assert far.count == 32


@pytest.mark.parametrize("word", [b"bye", b"fail"])
def test_the_end_of_a_remote_connection_ends_the_local_one(
    forward: PortForward, word: bytes
) -> None:
    with call(forward) as caller:
        ask(caller, b"hello")
        caller.sendall(word)

        assert caller.recv(100) == b""


@pytest.mark.slow  # waits for a deadline
def test_a_client_that_disconnects_frees_its_tunnel(forward: PortForward, far: FarEnd) -> None:
    with call(forward) as caller:
        ask(caller, b"hello")

    far.join()


def test_a_pod_that_cannot_be_reached_ends_the_call_at_once() -> None:
    def refuse() -> socket.socket:
        raise StartupError("no such pod")

    opened = PortForward(refuse)
    try:
        with call(opened) as caller:
            assert caller.recv(100) == b""
    finally:
        opened.close()


def test_closing_ends_all_calls_and_may_be_done_twice(far: FarEnd) -> None:
    opened = PortForward(far.connect)
    with call(opened) as one, call(opened) as other:
        ask(one, b"hello")
        ask(other, b"hello")

        opened.close()
        opened.close()

        assert (one.recv(10), other.recv(10)) == (b"", b"")
    with pytest.raises(ConnectionRefusedError):
        call(opened)
    far.join()


def test_a_client_that_waits_for_a_lost_pod_is_disconnected(far: FarEnd) -> None:
    opened = PortForward(far.connect, is_lost=lambda: True, doubt_s=0.05)
    try:
        with call(opened) as caller:
            caller.sendall(b"hush")

            assert caller.recv(100) == b""
    finally:
        opened.close()
    far.join()


def test_a_client_that_waits_long_for_a_live_pod_is_kept(far: FarEnd) -> None:
    asked = threading.Semaphore(0)

    def is_lost() -> bool:
        asked.release()
        return False

    opened = PortForward(far.connect, is_lost=is_lost, doubt_s=0.05)
    try:
        with call(opened) as caller:
            caller.sendall(b"hush")
            was_asked = [asked.acquire(timeout=20) for _ in range(3)]

            assert ask(caller, b"hello") == b"HELLO"
    finally:
        opened.close()
    assert was_asked == [True] * 3
    far.join()


@pytest.mark.usefixtures("short_timeouts")
def test_closing_in_the_moment_of_a_call_ends_both(far: FarEnd) -> None:
    threads = threading.active_count()
    for _ in range(100):
        opened = PortForward(far.connect)
        with call(opened) as caller:
            opened.close()

            assert received(caller) == b""
    far.join()
    assert threading.active_count() == threads


def received(caller: socket.socket) -> bytes:
    """Return all data received; empty if the connection breaks."""
    try:
        return caller.recv(10)
    except ConnectionResetError:
        return b""


def test_a_port_in_use_is_reported(far: FarEnd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(StartupError, match=f"Port {port} of this machine is in use"):
            PortForward(far.connect, port)

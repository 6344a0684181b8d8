"""WebSocket frames: another library reads ours, and nothing a server sends does harm."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from servers import open_websocket
from websockets.frames import Close, Frame, Opcode
from websockets.streams import StreamReader
from websockets.sync.server import ServerConnection, serve

from envweave.errors import ConnectionLostError, DeadlineError, WireError
from envweave.wire.websocket import BINARY, CLOSE, NO_STATUS, PING, TEXT, FrameStream


def frame(opcode: int, payload: bytes, *, fin: bool = True) -> bytes:
    """A frame as a server sends it, written by another library."""
    return Frame(Opcode(opcode), payload, fin).serialize(mask=False)


def in_pieces(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    at = 0
    for size in sizes:
        yield data[at : at + size]
        at += size
    yield data[at:]


MESSAGES = st.lists(st.binary(max_size=300) | st.text(max_size=80), max_size=5)
SIZES = st.lists(st.integers(0, 40), max_size=30)


@given(MESSAGES, SIZES, st.integers(1, 50), st.booleans())
def test_messages_are_reassembled_from_any_fragments(messages, sizes, part, with_pings):
    sent = b""
    for message in messages:
        payload = message.encode() if isinstance(message, str) else message
        parts = [payload[i : i + part] for i in range(0, len(payload), part)] or [b""]
        for i, one in enumerate(parts):
            kind = 0 if i else (TEXT if isinstance(message, str) else BINARY)
            sent += frame(kind, one, fin=i == len(parts) - 1)
            sent += frame(PING, b"?") if with_pings else b""
    stream = FrameStream()

    received = [one for piece in in_pieces(sent, sizes) for one in stream.receive(piece)]

    assert [bytes(m) if not isinstance(m, str) else m for m in received] == messages
    assert stream.needed >= 1
    assert (len(stream.answers()) > 0) == (with_pings and bool(messages))


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_any_server_data_raises_only_wire_errors(pieces):
    stream = FrameStream(max_message_bytes=100)
    try:
        for piece in pieces:
            stream.receive(piece)
    except WireError:
        with pytest.raises(WireError):
            stream.receive(b"\x82\x00")


@given(st.binary(max_size=200), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255))))
def test_a_damaged_message_raises_only_wire_errors(payload, damage):
    sent = bytearray(
        frame(TEXT, payload, fin=False) + frame(0, payload) + frame(CLOSE, b"\x03\xe8")
    )
    for at, byte in damage:
        sent[at % len(sent)] = byte
    stream = FrameStream(max_message_bytes=1000)

    with contextlib.suppress(WireError):
        stream.receive(sent)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"\xc2\x00", "extension"),
        (b"\x82\x80\0\0\0\0", "masked"),
        (b"\x83\x00", "unknown kind 3"),
        (b"\x8b\x00", "unknown kind 11"),
        (b"\x80\x00", "out of order"),
        (b"\x02\x00\x82\x00", "out of order"),
        (b"\x09\x00", "control frame"),
        (b"\x89\x7e\x00\x80", "control frame"),
        (b"\x88\x01x", "code that does not exist"),
        (b"\x88\x02\x03\xed", "code that does not exist"),
        (b"\x81\x02\xc3\x28", "not UTF-8"),
        (b"\x88\x04\x03\xe8\xc3\x28", "not UTF-8"),
        (b"\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff", "more than 100 bytes"),
        (b"\x02\x7e\x00\x60" + bytes(96) + b"\x80\x05", "more than 100 bytes"),
    ],
)
def test_an_invalid_frame_is_refused_with_a_reason(sent, message):
    stream = FrameStream(max_message_bytes=100)

    with pytest.raises(WireError, match=message):
        stream.receive(sent)

    assert stream.answers()[0] == 0x80 | CLOSE


def test_a_close_is_answered_once_and_nothing_after_it_is_read():
    stream = FrameStream()

    received = stream.receive(frame(CLOSE, Close(1001, "bye").serialize()) + frame(BINARY, b"x"))

    assert (received, stream.close_code, stream.close_reason) == ([], 1001, "bye")
    assert len(stream.answers()) == 8
    assert stream.close() == b""


def test_a_close_without_a_code_has_no_status():
    stream = FrameStream()

    stream.receive(frame(CLOSE, b""))

    assert stream.close_code == NO_STATUS


@pytest.mark.parametrize("size", [0, 1, 125, 126, 1023, 1024, 1025, 1031, 65535, 65536, 300_001])
def test_frames_of_the_client_are_read_by_another_library(size):
    payload, text = os.urandom(size), "é" * (size // 2)
    stream = FrameStream()

    read = [_read(bytes(one)) for one in (stream.binary(payload), stream.text(text))]

    assert [(one.opcode, one.fin) for one in read] == [(BINARY, True), (TEXT, True)]
    assert [bytes(one.data) for one in read] == [payload, text.encode()]


def _read(data: bytes) -> Frame:
    reader = StreamReader()
    reader.feed_data(data)
    parsing = Frame.parse(reader.read_exact, mask=True, max_size=None)
    with pytest.raises(StopIteration) as stopped:
        next(parsing)
    return stopped.value.value


@contextmanager
def answering(handler) -> Iterator[str]:
    """A server of another library while the block runs."""
    with serve(handler, "127.0.0.1", 0, max_size=2**20) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join(30)


def echo(connection: ServerConnection) -> None:
    for message in connection:
        if message == "ping":
            message = "ponged" if connection.ping().wait(30) else "no pong"
        connection.send(message)


def test_messages_of_every_size_go_to_a_server_of_another_library_and_back():
    with answering(echo) as url:
        websocket = open_websocket(url)
        for size in (0, 1, 125, 126, 1024, 1025, 65535, 65536, 1_000_003):
            data = os.urandom(size)
            websocket.send(data)

            assert bytes(websocket.receive(10)) == data
        websocket.send("häuser")
        assert websocket.receive(10) == "häuser"
        websocket.close()
        websocket.close()


def test_a_ping_is_answered_while_the_client_waits():
    with answering(echo) as url:
        websocket = open_websocket(url)
        websocket.send("ping")

        assert websocket.receive(20) == "ponged"
        websocket.close()


def test_a_deadline_without_a_reply_is_raised_and_the_vector_continues():
    with answering(echo) as url:
        websocket = open_websocket(url)

        with pytest.raises(DeadlineError):
            websocket.receive(0.01)

        websocket.send("later")
        assert websocket.receive(10) == "later"
        websocket.close()


def test_a_close_by_the_server_is_reported_with_its_reason():
    with answering(lambda connection: connection.close(4000, "enough")) as url:
        websocket = open_websocket(url)

        with pytest.raises(ConnectionLostError, match=r"code 4000 \(enough\)"):
            websocket.receive(10)

        websocket.close()


def test_a_server_that_finds_a_message_too_large_is_lost_as_its_state_is_unknown():
    with answering(echo) as url:
        websocket = open_websocket(url)
        websocket.send(bytes(2**20 + 1))

        with pytest.raises(WireError, match="larger than the server, or a proxy"):
            websocket.receive(10)

        websocket.close()

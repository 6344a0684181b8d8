"""WebSocket frames at the server's end: another library writes and reads them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.speedups import apply_mask
from websockets.streams import StreamReader

from envweave.errors import WireError
from envweave.wire.websocket import BINARY, CLOSE, PING, TEXT, FrameStream, masked

MESSAGES = st.lists(st.binary(max_size=300) | st.text(max_size=80), max_size=5)
SIZES = st.lists(st.integers(0, 40), max_size=30)


def frame(opcode: int, payload: bytes, *, fin: bool = True) -> bytes:
    """A frame as a client sends it, written by another library."""
    return Frame(Opcode(opcode), payload, fin).serialize(mask=True)


def in_pieces(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    at = 0
    for size in sizes:
        yield data[at : at + size]
        at += size
    yield data[at:]


@given(MESSAGES, SIZES, st.integers(1, 50), st.booleans())
def test_messages_of_a_client_come_whole_however_they_were_cut(messages, sizes, part, with_pings):
    sent = b""
    for message in messages:
        payload = message.encode() if isinstance(message, str) else message
        parts = [payload[i : i + part] for i in range(0, len(payload), part)] or [b""]
        for i, one in enumerate(parts):
            kind = 0 if i else (TEXT if isinstance(message, str) else BINARY)
            sent += frame(kind, one, fin=i == len(parts) - 1)
            sent += frame(PING, b"?") if with_pings else b""
    stream = FrameStream(is_server=True)

    received = [one for piece in in_pieces(sent, sizes) for one in stream.receive(piece)]

    assert [bytes(m) if not isinstance(m, str) else m for m in received] == messages
    assert stream.has_answers == (with_pings and bool(messages))


@pytest.mark.parametrize("size", [0, 1, 4, 125, 126, 65535, 65536, 70001])
def test_frames_of_a_server_are_read_by_another_library(size: int) -> None:
    payload = bytes(range(256)) * (size // 256 + 1)
    reader = StreamReader()
    reader.feed_data(bytes(FrameStream(is_server=True).binary(payload[:size])))
    parser = Frame.parse(reader.read_exact, mask=False)

    with pytest.raises(StopIteration) as done:
        next(parser)

    assert (done.value.value.opcode, bytes(done.value.value.data)) == (BINARY, payload[:size])


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 70001])
def test_a_message_in_one_piece_is_read_as_one_in_two(size: int) -> None:
    sent = frame(BINARY, b"x" * size)
    whole, halves = FrameStream(is_server=True), FrameStream(is_server=True)

    (message,) = whole.receive(sent)

    assert bytes(message) == b"x" * size  # type: ignore[arg-type]
    assert [*halves.receive(sent[:3]), *halves.receive(sent[3:])] == [message]


@pytest.mark.parametrize(
    ("sent", "code", "message"),
    [
        (b"\x82\x01x", 1002, "unmasked"),
        (frame(BINARY, b"x" * 1001), 1009, "more than 1000"),
        (frame(TEXT, b"\xff"), 1007, "UTF-8"),
        (b"\xc2\x80\0\0\0\0", 1002, "extension"),
        (frame(0, b"x"), 1002, "out of order"),
        (frame(CLOSE, b"\x00\x01"), 1002, "does not exist"),
    ],
    ids=["unmasked", "large", "text", "extension", "order", "code"],  # masks are random
)
def test_a_frame_that_breaks_the_rules_is_refused(sent: bytes, code: int, message: str) -> None:
    stream = FrameStream(1000, is_server=True)

    with pytest.raises(WireError, match=message):
        stream.receive(sent)

    assert stream.answers() == b"\x88\x02" + code.to_bytes(2, "big")
    with pytest.raises(WireError, match=message):
        stream.receive(b"")


@given(st.binary(max_size=3000), st.binary(min_size=4, max_size=4))
def test_masking_without_the_c_library_is_the_same(data: bytes, key: bytes) -> None:
    slow = masked(data, key)

    assert slow == apply_mask(data, key)
    assert masked(bytearray(slow), bytearray(key)) == data

"""Frames come out as they were sent, however the stream is split."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envweave.sandbox.protocol.framing import FrameError, Frames


def framed(content: bytes) -> bytes:
    return len(content).to_bytes(4, "little") + content


def drain(frames: Frames) -> list[bytes]:
    found = []
    while (frame := frames.next()) is not None:
        found.append(bytes(frame))
    return found


@pytest.mark.slow  # starts several sandboxes
@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=12), st.data())
def test_frames_come_out_in_order_however_the_stream_is_split(contents, data):
    stream = b"".join(map(framed, contents))
    frames = Frames(100)
    found: list[bytes] = []

    while stream:
        size = data.draw(st.integers(1, len(stream)))
        frames.feed(stream[:size])
        stream = stream[size:]
        found += drain(frames)

    assert found == contents
    assert frames.is_empty


def test_a_frame_at_the_limit_is_accepted_and_a_longer_one_refused_at_its_header():
    frames = Frames(10)
    frames.feed(framed(b"x" * 10))
    frames.feed((11).to_bytes(4, "little"))

    assert frames.next() == b"x" * 10
    for _ in range(2):
        with pytest.raises(FrameError, match="announces 11 bytes, more than the limit of 10"):
            frames.next()


def test_missing_reports_how_many_bytes_are_known_to_be_missing():
    frames = Frames(1000)
    missing = [frames.missing]

    for piece in (b"\x05\0", b"\0\0", b"ab", b"cde"):
        frames.feed(piece)
        missing.append(frames.missing)

    assert missing == [4, 2, 5, 3, 1]


def test_many_small_frames_in_one_piece_are_not_copied_repeatedly():
    """If copied once per frame, this would be 500 GB, and would not end in time."""
    contents = [b"x" * 50] * 140_000
    frames = Frames(100)
    frames.feed(b"".join(map(framed, contents)))

    assert drain(frames) == contents


def test_a_long_frame_fed_in_small_pieces_is_not_copied_repeatedly():
    """If copied once per piece, this would be 2 TB, and would not end in time."""
    content = bytes(16 << 20)
    stream = framed(content)
    frames = Frames(1 << 24)
    found = []

    for position in range(0, len(stream), 64):
        frames.feed(stream[position : position + 64])
        found += drain(frames)

    assert found == [content]

"""Cuts a stream of bytes into the frames it carries."""

from __future__ import annotations

from typing import final

from envweave.sandbox.messages import HEADER_BYTES
from envweave.sandbox.own_builtins import OWN

__builtins__ = OWN

_number = int.from_bytes


class FrameError(ValueError):
    """A frame announces more than its reader takes. Nothing after it can be read."""


@final
class Frames:
    """The frames of one stream, in order, at a cost linear in its bytes however it is cut.

    Args:
        limit_bytes: The longest frame, its header not counted.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._buffer: bytes | bytearray = b""

    def feed(self, data: bytes) -> None:
        """Take what was read."""
        if not self._buffer:
            self._buffer = data  # most often a whole frame, and then never copied together
        elif isinstance(self._buffer, bytearray):
            self._buffer += data
        else:
            self._buffer = bytearray(self._buffer)
            self._buffer += data

    def next(self) -> bytes | None:
        """Return what the next whole frame holds; `None` if more must be fed first.

        Raises:
            FrameError: It announces more than the limit; raised again by every later call.
        """
        buffer = self._buffer
        size = len(buffer)
        if size < HEADER_BYTES:
            return None
        end = HEADER_BYTES + _number(buffer[:HEADER_BYTES], "little")
        if end > HEADER_BYTES + self._limit_bytes:
            raise FrameError(
                f"A frame announces {end - HEADER_BYTES} bytes, and {self._limit_bytes} is the "
                "most."
            )
        if size < end:
            return None
        if isinstance(buffer, bytes):
            if size == end:
                self._buffer = b""
                return buffer[HEADER_BYTES:]
            buffer = self._buffer = bytearray(buffer)
        with memoryview(buffer) as whole, whole[HEADER_BYTES:end] as part:
            frame = bytes(part)
        if size == end:
            self._buffer = b""
        else:
            del buffer[:end]  # moves the start of the buffer: nothing is copied
        return frame

    @property
    def is_empty(self) -> bool:
        """Whether all that was fed has been returned."""
        return not self._buffer

    @property
    def missing(self) -> int:
        """How many bytes the frame under way lacks, as far as is known; at least 1."""
        buffer = self._buffer
        if len(buffer) < HEADER_BYTES:
            return HEADER_BYTES - len(buffer)
        return max(1, HEADER_BYTES + _number(buffer[:HEADER_BYTES], "little") - len(buffer))

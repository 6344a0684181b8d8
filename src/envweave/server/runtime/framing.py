"""Messages between a server and its own worker processes: a length, then MessagePack.

What a stranger sends, or an author's code returns, is packed by itself inside a message, so that
it can spoil nothing but its own call.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, cast, final

import msgspec

LENGTH = struct.Struct("<Q")

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


@final
class FrameConnection(asyncio.Protocol):
    """One end of a private connection. Messages of one turn of the loop leave in one write.

    Args:
        heard: Given every message that comes.
        lost: Called when the other end is gone.
    """

    def __init__(self, heard: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self._heard = heard
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._received = bytearray()
        self._unsent: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, _: Exception | None) -> None:
        """Called by the loop."""
        self._transport = None
        self._lost()

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        received = self._received
        received += data
        at, end = 0, len(received)
        while end - at >= LENGTH.size:
            after = at + LENGTH.size + LENGTH.unpack_from(received, at)[0]
            if after > end:
                break
            with memoryview(received) as view:
                message = _unpack(view[at + LENGTH.size : after])
            at = after
            self._heard(message)
        if at:
            del received[:at]

    def send(self, message: Any) -> None:
        """Send a message; to nobody, if the other end is gone."""
        packed = _pack(message)
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent += (LENGTH.pack(len(packed)), packed)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._transport is not None:
            self._transport.write(b"".join(unsent))

    def close(self) -> None:
        """Hang up, once everything is sent."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

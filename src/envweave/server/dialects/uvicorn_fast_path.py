"""uvicorn's WebSocket protocol, with direct access to its frames once a client is accepted.

uvicorn puts each message into a queue, stops reading until it is fetched, and wakes a task, which
costs more than most steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from envweave.errors import WireError
from envweave.server.dialects.websocket import FAST_PATH
from envweave.server.event_loop import GatheringTransport
from envweave.wire.websocket import PROTOCOL_ERROR, FrameStream, Mask, Message, masked

if TYPE_CHECKING:
    from websockets.http11 import Request

_unmask: Mask = masked
try:
    from websockets import speedups

    _unmask = speedups.apply_mask
except ImportError:
    pass  # no wheel for this platform


@final
class FastPathProtocol(WebSocketsSansIOProtocol):
    """One WebSocket, which implements `FastPath`.

    uvicorn shakes hands. Once attached, all frames are read and written here.
    """

    _stream: FrameStream | None = None
    _on_message: Callable[[Message], None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the HTTP protocol when a client asks for a WebSocket."""
        if isinstance(transport, GatheringTransport):
            transport = transport.direct  # a message is written in one piece
        super().connection_made(transport)

    def handle_connect(self, event: Request) -> None:
        """Offer the fast path to the application."""
        super().handle_connect(event)
        if not self.close_sent:  # else the handshake failed
            extensions: dict[str, Any] = self.scope["extensions"]
            extensions[FAST_PATH] = self

    def attach(self, on_message: Callable[[Message], None]) -> None:
        """Pass every further message to a callback, instead of queueing it."""
        self._on_message = on_message
        self._stream = FrameStream(self.config.ws_max_size, is_server=True, unmask=_unmask)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        stream = self._stream
        if stream is None:
            super().data_received(data)
            return
        try:
            messages = stream.receive(data)
        except WireError:
            self._hang_up(PROTOCOL_ERROR)
            return
        for message in messages:
            self._on_message(message)
        if stream.has_answers:
            if stream.close_code is None:
                self.transport.write(stream.answers())
            else:
                self._hang_up(stream.close_code)

    def _hang_up(self, code: int) -> None:
        """End the connection with the close frame that the stream has ready."""
        assert self._stream is not None
        if self.close_sent or self.transport.is_closing():
            return
        self.close_sent = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": ""})
        self.transport.write(self._stream.answers())
        self.transport.close()

    def shutdown(self) -> None:
        """Close because the server stops, unless the client has closed just now."""
        if not self.transport.is_closing():
            super().shutdown()

    def write(self, data: bytes, *, is_text: bool) -> bool:
        """Send a message now; return whether that was possible."""
        stream = self._stream
        if (
            stream is None
            or not self.writable.is_set()
            or self.disconnected
            or self.close_sent
            or self.transport.is_closing()
        ):
            return False
        self.transport.write(stream.text(data) if is_text else stream.binary(data))
        return True

    def send_receive_event_to_app(self) -> None:
        """Queue a message; text that is not UTF-8 closes the connection without a log entry."""
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.send_close(1007)
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    async def send(self, message: Any) -> None:
        """Send a message of the application; a refused handshake is complete too."""
        await super().send(message)
        if self.close_sent and self.initial_response is not None:
            self.handshake_complete = True

    def pause(self) -> None:
        """Stop reading until `resume`."""
        self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if not self.transport.is_closing():
            self.transport.resume_reading()

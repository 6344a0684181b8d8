"""uvicorn's WebSocket protocol with a fast path that passes frames on directly.

uvicorn puts each message into a queue, stops reading until it is fetched, and wakes a task, which
costs more than most steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import WebSocketException

from envweave.server.dialects.websocket import FAST_PATH

if TYPE_CHECKING:
    from websockets.http11 import Request


@final
class FastPathProtocol(WebSocketsSansIOProtocol):
    """One WebSocket, which implements `FastPath`."""

    _on_message: Callable[[str | bytes], None] | None = None

    def handle_connect(self, event: Request) -> None:
        """Offer the fast path to the application."""
        super().handle_connect(event)
        if not self.close_sent:  # else the handshake failed
            extensions: dict[str, Any] = self.scope["extensions"]
            extensions[FAST_PATH] = self

    def send_receive_event_to_app(self) -> None:
        """Pass a complete message on."""
        if self.curr_msg_data_type == "text" and not self.close_sent and not self._is_utf8():
            return
        on_message = self._on_message
        if on_message is None or self.close_sent or self.curr_msg_data_type == "text":
            super().send_receive_event_to_app()
            return
        data = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)
        self.frames = []
        on_message(data)

    def _is_utf8(self) -> bool:
        """Whether text is valid UTF-8; if not, close the connection without logging an error."""
        try:
            b"".join(self.frames).decode()
        except UnicodeDecodeError:
            self.frames = []
            self.conn.send_close(1007)
            self.handle_parser_exception()
            return False
        return True

    async def send(self, message: Any) -> None:
        """Send a message of the application; a refused handshake is complete too."""
        await super().send(message)
        if self.close_sent and self.initial_response is not None:
            self.handshake_complete = True

    def attach(self, on_message: Callable[[str | bytes], None]) -> None:
        """Pass every further binary message to a callback, instead of queueing it."""
        self._on_message = on_message

    def write(self, data: bytes, *, is_text: bool) -> bool:
        """Send a message now; return whether that was possible."""
        if not self.writable.is_set() or self.disconnected or self.close_sent:
            return False
        try:
            (self.conn.send_text if is_text else self.conn.send_binary)(data)
        except WebSocketException:
            return False
        self.transport.write(b"".join(self.conn.data_to_send()))
        return True

    def pause(self) -> None:
        """Stop reading until `resume`."""
        self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if not self.transport.is_closing():
            self.transport.resume_reading()

"""WebSockets as uvicorn speaks them, with a short way for whoever takes frames as they come.

Its ordinary way puts each message into a queue, stops reading until it was fetched, and wakes up
a task: more work than most steps are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import WebSocketException

from envweave.server.dialects.websocket import SHORT_WAY

if TYPE_CHECKING:
    from websockets.http11 import Request


@final
class FastPathProtocol(WebSocketsSansIOProtocol):
    """One WebSocket, which is its own `ShortWay`."""

    _hear: Callable[[str | bytes], None] | None = None

    def handle_connect(self, event: Request) -> None:
        """Offer the short way to the application."""
        super().handle_connect(event)
        if not self.close_sent:  # else it was no WebSocket
            extensions: dict[str, Any] = self.scope["extensions"]
            extensions[SHORT_WAY] = self

    def send_receive_event_to_app(self) -> None:
        """Hand a whole message over."""
        if self.curr_msg_data_type == "text" and not self.close_sent and not self._is_utf8():
            return
        hear = self._hear
        if hear is None or self.close_sent or self.curr_msg_data_type == "text":
            super().send_receive_event_to_app()
            return
        data = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)
        self.frames = []
        hear(data)

    def _is_utf8(self) -> bool:
        """Whether a text is one; if not, the connection is closed, without an error in our log."""
        try:
            b"".join(self.frames).decode()
        except UnicodeDecodeError:
            self.frames = []
            self.conn.send_close(1007)
            self.handle_parser_exception()
            return False
        return True

    async def send(self, message: Any) -> None:
        """Send what the application says; a refusal is as good an answer as an agreement."""
        await super().send(message)
        if self.close_sent and self.initial_response is not None:
            self.handshake_complete = True

    def attach(self, hear: Callable[[str | bytes], None]) -> None:
        """Hand over every binary message from now on, instead of queueing it."""
        self._hear = hear

    def write(self, data: bytes, *, is_text: bool) -> bool:
        """Send a message now; return whether that could be done."""
        if not self.writable.is_set() or self.disconnected or self.close_sent:
            return False
        try:
            (self.conn.send_text if is_text else self.conn.send_binary)(data)
        except WebSocketException:
            return False
        self.transport.write(b"".join(self.conn.data_to_send()))
        return True

    def pause(self) -> None:
        """Read no more, until `resume`."""
        self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if not self.transport.is_closing():
            self.transport.resume_reading()

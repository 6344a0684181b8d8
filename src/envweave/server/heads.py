"""HTTP as uvicorn speaks it, with a limit to how large a request's head is, and how slow.

A body has its own limits, once it is known who sends it. A head comes before that, from anybody.
"""

from __future__ import annotations

import asyncio
from typing import Any, final

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from envweave.server.refusals import unreadable
from envweave.wire.messages import Fault

MAX_HEAD_BYTES = 64 * 1024
"""How many bytes may come before a head is whole, or between two parts of a body."""


@final
class HeadLimited(HttpToolsProtocol):
    """One connection, with limits for the size of a head and for the time that it takes.

    Args:
        *args: As uvicorn has them.
        head_timeout_s: How long a head may take, and a caller that connects and says nothing.
        **kwargs: As uvicorn has them.
    """

    _began: asyncio.TimerHandle | None = None
    _fruitless = 0  # bytes since the last head, or the last part of a body

    def __init__(self, *args: Any, head_timeout_s: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timeout_s = head_timeout_s

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Called by the loop."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._forget()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self._fruitless += len(data)
        super().data_received(data)
        if self._fruitless > MAX_HEAD_BYTES and not self.transport.is_closing():
            size = f"{MAX_HEAD_BYTES} bytes"
            self._refuse("431 Request Header Fields Too Large", f"The head has more than {size}.")
        elif self._fruitless and self._is_idle:  # blank lines, which may stand before a head
            self._expect_head()

    def on_message_begin(self) -> None:
        """Called by the parser."""
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._fruitless = 0
        self._forget()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._fruitless = 0
        super().on_body(body)

    @property
    def _is_idle(self) -> bool:
        """Whether every call so far is answered."""
        return self.cycle is None or self.cycle.response_complete

    def _expect_head(self) -> None:
        if self._began is None:
            self._began = self.loop.call_later(self._head_timeout_s, self._give_up)

    def _forget(self) -> None:
        began, self._began = self._began, None
        if began is not None:
            began.cancel()

    def _give_up(self) -> None:
        self._began = None
        self._refuse(
            "408 Request Timeout", f"The head did not come within {self._head_timeout_s:g} s."
        )

    def _refuse(self, status: str, message: str) -> None:
        if self._is_idle:  # else it would be taken for another
            body = _told(unreadable(message))
            head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()


def _told(fault: Fault) -> bytes:
    return msgspec.json.encode({"error": fault})

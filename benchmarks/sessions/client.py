"""A client process of the sessions benchmark: many WebSocket sessions at once, as raw frames.

    python -m benchmarks.sessions.client

It speaks OpenEnv's dialect, which both servers understand, and no client library stands between.
Each session connects, resets, takes one step that waits, and closes. Requests and replies are
JSON lines.

    {"command": "run", "port": 8000, "sessions": 1024, "wait_s": 1.0}
      → {"connect": [0.1, …], "reset": […], "step": […], "total": […], "failed": 0, "cause": ""}
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import struct
import sys
import time
from typing import Any

from benchmarks.measurement.machine import raise_file_limit
from benchmarks.measurement.processes import serve_requests

RUN_S = 100.0
"""How long all sessions together may take."""
_PARTS = ("connect", "reset", "step", "total")
_TEXT = 1

clock = time.perf_counter


class SessionFailedError(Exception):
    """The server refused the session, or ended it too early."""


class Session(asyncio.Protocol):
    """One WebSocket connection that counts the messages it receives and keeps none."""

    def __init__(self, port: int) -> None:
        self._buffer = b""
        self._is_open = False
        self._message: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        key = base64.b64encode(os.urandom(16)).decode()
        self._upgrade = (
            f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        ).encode()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._upgrade)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._is_open:
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            self._is_open, self._buffer = True, rest
            status = head.split(b"\r\n")[0].decode()
            self._arrived(None if " 101 " in status else f"the server answered {status!r}")
        while (message := self._next_frame()) is not None:
            is_error = b'"error"' in message[:40]
            self._arrived(message[:200].decode(errors="replace") if is_error else None)

    def connection_lost(self, error: Exception | None) -> None:
        self._arrived(f"the connection was closed: {error}")

    def _next_frame(self) -> bytes | None:
        """Return the payload of the next text frame, or `None` if it is not complete."""
        while len(self._buffer) >= 2:
            kind, size, start = self._buffer[0] & 15, self._buffer[1] & 127, 2
            if size == 126:
                size, start = int.from_bytes(self._buffer[2:4], "big"), 4
            elif size == 127:
                size, start = int.from_bytes(self._buffer[2:10], "big"), 10
            if len(self._buffer) < start + size:
                return None
            payload, self._buffer = (
                self._buffer[start : start + size],
                self._buffer[start + size :],
            )
            if kind == _TEXT:
                return payload
        return None

    def _arrived(self, problem: str | None) -> None:
        if self._message.done():
            return
        if problem is None:
            self._message.set_result(None)
        else:
            self._message.set_exception(SessionFailedError(problem))

    async def receive(self) -> None:
        """Wait for the next message; first of all for the answer to the upgrade."""
        await self._message
        self._message = asyncio.get_running_loop().create_future()

    async def call(self, message: dict[str, Any]) -> None:
        """Send a message and wait for the reply."""
        self.send(message)
        await self.receive()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message as one masked text frame."""
        payload = json.dumps(message).encode()
        assert len(payload) < 126
        # A mask of zeros changes nothing, and is as good for a benchmark as another.
        self._transport.write(struct.pack("!BB4x", 0x80 | _TEXT, 0x80 | len(payload)) + payload)

    def close(self) -> None:
        """Close the connection."""
        self._message.cancel()
        self._transport.close()


async def run_session(port: int, wait_s: float) -> tuple[float, float, float, float]:
    """Run one session; return how long it took to connect, reset and step, and all together."""
    start_s = clock()
    loop = asyncio.get_running_loop()
    _, session = await loop.create_connection(lambda: Session(port), "127.0.0.1", port)
    try:
        await session.receive()
        connected_s = clock()
        await session.call({"type": "reset", "data": {}})
        reset_s = clock()
        await session.call({"type": "step", "data": {"wait_seconds": wait_s}})
        end_s = clock()
        session.send({"type": "close"})
    finally:
        session.close()
    return connected_s - start_s, reset_s - connected_s, end_s - reset_s, end_s - start_s


async def run_all(port: int, sessions: int, wait_s: float) -> dict[str, Any]:
    """Start all sessions at once; return the times of those that succeeded."""
    work = [asyncio.create_task(run_session(port, wait_s)) for _ in range(sessions)]
    _, late = await asyncio.wait(work, timeout=RUN_S)
    for task in late:
        task.cancel()
    ended = await asyncio.gather(*work, return_exceptions=True)
    times = [one for one in ended if not isinstance(one, BaseException)]
    problems = [one for one in ended if isinstance(one, BaseException)]
    columns = zip(*times, strict=True) if times else ((),) * len(_PARTS)
    return {
        **{part: list(column) for part, column in zip(_PARTS, columns, strict=True)},
        "failed": len(problems),
        "cause": f"{type(problems[0]).__name__}: {problems[0]}" if problems else "",
    }


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """Carry out one request and return the reply."""
    if request["command"] != "run":
        return {}
    return asyncio.run(run_all(request["port"], request["sessions"], request["wait_s"]))


if __name__ == "__main__":
    raise_file_limit()
    serve_requests(handle)
    sys.exit(0)

"""`/ws` in envweave's own dialect: many sessions per connection, many calls per frame."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, final

from envweave.errors import WireError
from envweave.server.event_loop import ServerEventLoop
from envweave.server.service import Service
from envweave.wire.encoding import SUBPROTOCOLS, Encoding
from envweave.wire.faults import fault_of
from envweave.wire.messages import (
    MAX_CALLS,
    Call,
    Calls,
    Replies,
    Reply,
    Stepped,
    Steps,
    gather_replies,
    read_calls_in,
    split_replies,
)
from envweave.wire.websocket import Message

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from envweave.server.metrics import Metrics

MAX_WAITING = 2 * MAX_CALLS
"""How many calls of one connection may be unanswered before reading pauses."""

MAX_MESSAGES = 4
"""The same in bytes, in multiples of the largest message."""


class FastPath(Protocol):
    """Direct access to the frames of the socket, if the ASGI server provides it.

    Attributes:
        loop: The event loop of the socket.
    """

    loop: asyncio.AbstractEventLoop

    def attach(self, on_message: Callable[[Message], None]) -> None:
        """Pass every further message to a callback on the loop, instead of queueing it."""

    def write(self, data: bytes, *, is_text: bool) -> bool:
        """Send a message now; return whether that was possible."""
        ...

    def pause(self) -> None:
        """Stop reading until `resume`."""

    def resume(self) -> None:
        """Read again."""


FAST_PATH = "envweave.fast_path"
"""The key of a `FastPath` in the extensions of a scope."""


def encoding_of(scope: Scope) -> Encoding | None:
    """Return the first known encoding that a client offers; `None` if there is none."""
    offered = scope.get("subprotocols") or []
    return next((SUBPROTOCOLS[one] for one in offered if one in SUBPROTOCOLS), None)


async def serve_websocket(
    scope: Scope,
    receive: Receive,
    send: Send,
    service: Service,
    encoding: Encoding,
    metrics: Metrics,
) -> None:
    """Serve a client until it disconnects. Its sessions then wait for it to reconnect.

    Frames are counted here, since every layer of middleware costs time.
    """
    message = await receive()
    if message["type"] != "websocket.connect":
        return
    await send({"type": "websocket.accept", "subprotocol": encoding.subprotocol, "headers": []})
    fast_path: FastPath | None = scope.get("extensions", {}).get(FAST_PATH)
    if fast_path is not None and fast_path.loop is not asyncio.get_running_loop():
        fast_path = None  # the sessions run on another loop
    connection = _WebSocketConnection(send, service, encoding, metrics, fast_path)
    try:
        if fast_path is not None:
            fast_path.attach(connection.on_message)
        await connection.listen(receive)
        for _ in range(2):  # calls that are just starting need two turns of the loop
            await asyncio.sleep(0)
    finally:
        service.table.disconnect(connection)


@final
class _WebSocketConnection:
    """One connection. If it is lost, calls continue, and sessions store their replies."""

    def __init__(
        self,
        send: Send,
        service: Service,
        encoding: Encoding,
        metrics: Metrics,
        fast_path: FastPath | None,
    ) -> None:
        self._asgi_send = send
        self._service = service
        self._encoding = encoding
        self._metrics = metrics
        self._fast_path = fast_path
        self._loop = loop = asyncio.get_running_loop()
        self._own_loop = loop if type(loop) is ServerEventLoop else None
        self._is_alone = False  # whether no other connection is active
        self._work: set[asyncio.Task[None]] = set()
        self._has_room = asyncio.Event()
        self._is_gone = False
        self._is_paused = False
        self._waiting = self._waiting_bytes = 0  # unanswered calls, and the size of their frames
        self._max_bytes = MAX_MESSAGES * service.options.max_message_bytes
        self._ready: list[Reply] = []  # replies for the next frame
        # One frame is written at a time, so that a client that does not read cannot fill memory.
        self._write_lock = asyncio.Lock()

    async def listen(self, receive: Receive) -> None:
        """Receive messages until the client disconnects."""
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                self._is_gone = True
                return
            data = message.get("bytes")
            self.on_message(message.get("text") or "" if data is None else data)
            while self._is_full:
                self._has_room.clear()
                await self._has_room.wait()

    def on_message(self, data: Message) -> None:
        """Decode a message and start its calls."""
        size = len(data)
        self._metrics.received_bytes += size
        if self._own_loop is not None:
            self._is_alone = self._own_loop.note_peer(self)
        try:
            frame = read_calls_in(data, self._encoding)
        except WireError as error:
            self._send_message(Reply(id=0, fault=fault_of(error)), 0, 0)
            return
        if type(frame) is Call:
            self._start_calls((frame,), size)
        elif isinstance(frame, Calls) and not frame.together:
            self._start_calls(frame.calls, size)
        else:
            assert not isinstance(frame, Call)
            self._start_batch(frame, size)
        if self._fast_path is not None and not self._is_paused and self._is_full:
            self._is_paused = True
            self._fast_path.pause()

    @property
    def _is_full(self) -> bool:
        unanswered = self._waiting + len(self._ready)
        return unanswered >= MAX_WAITING or self._waiting_bytes > self._max_bytes

    def _mark_answered(self, calls: int, size: int) -> None:
        """Record that calls are answered, and resume reading."""
        self._waiting -= calls
        self._waiting_bytes -= size
        if (self._is_paused or self._fast_path is None) and not self._is_full:
            self._has_room.set()
            if self._is_paused and self._fast_path is not None:
                self._is_paused = False
                self._fast_path.resume()

    # Calls with separate replies

    def _start_calls(self, calls: Sequence[Call], size: int) -> None:
        each = size // max(len(calls), 1)
        self._waiting += len(calls)
        self._waiting_bytes += each * len(calls)
        deliver = partial(self._answer, each)
        for call in self._service.start_calls(calls, self, deliver):
            self._spawn(self._call(call, deliver))

    async def _call(self, call: Call, deliver: Callable[[Reply], None]) -> None:
        deliver(await self._service.call(call, self))

    def _answer(self, size: int, reply: Reply) -> None:
        """Send a reply, together with others of this turn of the loop."""
        self._waiting -= 1
        self._waiting_bytes -= size
        reply.alone = self._is_alone
        self._ready.append(reply)
        if len(self._ready) > 1:
            return  # the flush for the first one sends it too
        if self._waiting:
            self._loop.call_soon(self._flush)
        else:
            self._flush()

    def _flush(self) -> None:
        if self._fast_path is None or self._write_lock.locked():
            self._spawn(self._write_ready())
            return
        replies, self._ready = self._ready, []
        self._write_frames(gather_replies(self._encoding, map(self._encode_reply, replies)), 0, 0)

    async def _write_ready(self) -> None:
        async with self._write_lock:
            replies, self._ready = self._ready, []
            for data in gather_replies(self._encoding, map(self._encode_reply, replies)):
                await self._write(data)
        self._mark_answered(0, 0)

    # Batches with one reply

    def _start_batch(self, frame: Calls | Steps, size: int) -> None:
        calls = len(frame.sessions if isinstance(frame, Steps) else frame.calls)
        self._waiting += calls
        self._waiting_bytes += size
        if isinstance(frame, Calls):
            self._spawn(self._call_many(frame.calls, size))
        elif not self._service.step_many(frame, self, partial(self._send_stepped, calls, size)):
            self._spawn(self._call_many([frame.call(i) for i in range(calls)], size))

    async def _call_many(self, calls: Sequence[Call], size: int) -> None:
        replies = await self._service.call_many(calls, self)
        self._send_message(Replies(replies=replies), len(calls), size)

    def _send_stepped(self, calls: int, size: int, sent: Stepped) -> None:
        sent.alone = self._is_alone
        self._send_message(sent, calls, size)

    def _send_message(self, message: Reply | Replies | Stepped, calls: int, size: int) -> None:
        """Send a message that answers `calls` calls."""
        frames: Iterable[bytes] = ()
        if not self._is_gone:
            try:
                frames = (self._encoding.encode(message),)
            except WireError:  # one result may not be encodable; the others still are
                frames = gather_replies(
                    self._encoding, map(self._encode_reply, split_replies(message))
                )
        self._write_frames(frames, calls, size)

    async def _write_all(self, frames: Iterable[bytes], calls: int, size: int) -> None:
        async with self._write_lock:
            for data in frames:
                await self._write(data)
        self._mark_answered(calls, size)

    # Writing

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    def _encode_reply(self, reply: Reply) -> bytes:
        """Return an encoded reply; a result that cannot be encoded becomes a fault."""
        if self._is_gone:
            return b""
        try:
            return self._encoding.encode(reply)
        except WireError as error:
            failed = Reply(id=reply.id, session=reply.session, fault=fault_of(error))
            return self._encoding.encode(failed)

    def _write_frames(self, frames: Iterable[bytes], calls: int, size: int) -> None:
        """Write frames that answer `calls` calls: now if possible, the rest in a task.

        Each frame is encoded after the one before it is written: a small message can ask for a
        large result a thousand times, and all replies at once would fill the memory.
        """
        left = iter(frames)
        if self._fast_path is not None and not self._write_lock.locked():
            for data in left:
                if self._is_gone:
                    break
                if not self._fast_path.write(data, is_text=self._encoding.is_text):
                    left = chain((data,), left)
                    break
                self._metrics.sent_bytes += len(data)
            else:
                self._mark_answered(calls, size)
                return
        self._spawn(self._write_all(left, calls, size))

    async def _write(self, data: bytes) -> None:
        if self._is_gone:
            return
        self._metrics.sent_bytes += len(data)
        message: dict[str, Any] = {"type": "websocket.send"}
        if self._encoding.is_text:
            message["text"] = data.decode()
        else:
            message["bytes"] = data
        try:
            await self._asgi_send(message)
        except (RuntimeError, OSError):
            self._is_gone = True  # the reader will notice, and the session stores the reply

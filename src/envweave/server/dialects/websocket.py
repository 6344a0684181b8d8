"""`/ws` in envweave's own dialect: many sessions over one connection, frames of many calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, final

from envweave.errors import WireError
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
    read_calls,
    split_replies,
)

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from envweave.server.metrics import Metrics

MAX_WAITING = 2 * MAX_CALLS
"""How many calls of one connection may be unanswered before no more are read."""

MAX_MESSAGES = 4
"""How many of the largest messages they may fill."""


class FastPath(Protocol):
    """Frames straight from and to the socket, where the server that runs us offers that.

    Attributes:
        loop: Where they come and go.
    """

    loop: asyncio.AbstractEventLoop

    def attach(self, hear: Callable[[str | bytes], None]) -> None:
        """Hand over every message from now on, on the loop, instead of queueing it."""

    def write(self, data: bytes, *, is_text: bool) -> bool:
        """Send a message now; return whether that could be done."""
        ...

    def pause(self) -> None:
        """Read no more, until `resume`."""

    def resume(self) -> None:
        """Read again."""


SHORT_WAY = "envweave.short_way"
"""The extension of a scope that is a `FastPath`."""


def encoding_of(scope: Scope) -> Encoding | None:
    """Return the encoding that a client offers, the first that is known; `None` if it has none."""
    offered = scope.get("subprotocols") or []
    return next((SUBPROTOCOLS[one] for one in offered if one in SUBPROTOCOLS), None)


async def speak(
    scope: Scope,
    receive: Receive,
    send: Send,
    service: Service,
    encoding: Encoding,
    metrics: Metrics,
) -> None:
    """Answer a client until it is gone. Its sessions then wait for it to come back.

    Frames are counted here, since every layer between them and the server costs time.
    """
    message = await receive()
    if message["type"] != "websocket.connect":
        return
    await send({"type": "websocket.accept", "subprotocol": encoding.subprotocol, "headers": []})
    short: FastPath | None = scope.get("extensions", {}).get(SHORT_WAY)
    if short is not None and short.loop is not asyncio.get_running_loop():
        short = None  # the sessions are on a loop of their own
    line = _WebSocketConnection(send, service, encoding, metrics, short)
    try:
        if short is not None:
            short.attach(line.hear)
        await line.listen(receive)
        for _ in range(2):  # a frame takes a turn of the loop to its calls, and they to sessions
            await asyncio.sleep(0)
    finally:
        service.table.disconnect(line)


@final
class _WebSocketConnection:
    """One connection. Calls go on when it is lost; their replies are kept by their sessions."""

    def __init__(
        self,
        send: Send,
        service: Service,
        encoding: Encoding,
        metrics: Metrics,
        short: FastPath | None,
    ) -> None:
        self._put = send
        self._service = service
        self._encoding = encoding
        self._metrics = metrics
        self._short = short
        self._loop = asyncio.get_running_loop()
        self._work: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._is_gone = False
        self._is_paused = False
        self._waiting = self._waiting_bytes = 0  # calls that are not answered, and their frames
        self._max_bytes = MAX_MESSAGES * service.options.max_message_bytes
        self._ready: list[Reply] = []  # what the next frame of replies will hold
        # One frame is written out at a time: a caller that reads none shall not fill the memory.
        self._turn = asyncio.Lock()

    async def listen(self, receive: Receive) -> None:
        """Take what comes until the other end is gone."""
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                self._is_gone = True
                return
            data = message.get("bytes")
            self.hear(message.get("text") or "" if data is None else data)
            while self._is_full:
                self._room.clear()
                await self._room.wait()

    def hear(self, data: str | bytes) -> None:
        """Take a message, and begin what it asks for."""
        size = len(data)
        self._metrics.received_bytes += size
        try:
            frame = read_calls(self._encoding.decode(data))
        except WireError as error:
            self._say(Reply(id=0, fault=fault_of(error)), 0, 0)
            return
        if isinstance(frame, Call):
            self._take((frame,), size)
        elif isinstance(frame, Calls) and not frame.together:
            self._take(frame.calls, size)
        else:
            self._take_many(frame, size)
        if self._short is not None and self._is_full and not self._is_paused:
            self._is_paused = True
            self._short.pause()

    @property
    def _is_full(self) -> bool:
        unanswered = self._waiting + len(self._ready)
        return unanswered >= MAX_WAITING or self._waiting_bytes > self._max_bytes

    def _settle(self, calls: int, size: int) -> None:
        """Take note that calls are answered."""
        self._waiting -= calls
        self._waiting_bytes -= size
        if not self._is_full:
            self._room.set()
            if self._is_paused and self._short is not None:
                self._is_paused = False
                self._short.resume()

    # Calls that are answered one by one

    def _take(self, calls: Sequence[Call], size: int) -> None:
        each = size // max(len(calls), 1)
        self._waiting += len(calls)
        self._waiting_bytes += each * len(calls)
        tell = partial(self._answer, each)
        for call in self._service.start_calls(calls, self, tell):
            self._begin(self._call(call, tell))

    async def _call(self, call: Call, tell: Callable[[Reply], None]) -> None:
        tell(await self._service.call(call, self))

    def _answer(self, size: int, reply: Reply) -> None:
        """Send a reply, with the others of this turn of the loop if there are any."""
        self._waiting -= 1
        self._waiting_bytes -= size
        self._ready.append(reply)
        if len(self._ready) > 1:
            return  # whoever came first takes it along
        if self._waiting:
            self._loop.call_soon(self._flush)
        else:
            self._flush()

    def _flush(self) -> None:
        if self._short is None or self._turn.locked():
            self._begin(self._write_ready())
            return
        replies, self._ready = self._ready, []
        self._send_out(gather_replies(self._encoding, map(self._written, replies)), 0, 0)

    async def _write_ready(self) -> None:
        async with self._turn:
            replies, self._ready = self._ready, []
            for data in gather_replies(self._encoding, map(self._written, replies)):
                await self._write(data)
        self._settle(0, 0)

    # Calls that are answered together

    def _take_many(self, frame: Calls | Steps, size: int) -> None:
        calls = len(frame.sessions if isinstance(frame, Steps) else frame.calls)
        self._waiting += calls
        self._waiting_bytes += size
        if isinstance(frame, Calls):
            self._begin(self._call_many(frame.calls, size))
        elif not self._service.step_many(frame, self, lambda sent: self._say(sent, calls, size)):
            self._begin(self._call_many([frame.call(i) for i in range(calls)], size))

    async def _call_many(self, calls: Sequence[Call], size: int) -> None:
        replies = await self._service.call_many(calls, self)
        self._say(Replies(replies=replies), len(calls), size)

    def _say(self, message: Reply | Replies | Stepped, calls: int, size: int) -> None:
        """Send a message, by which so many calls are answered."""
        frames: Iterable[bytes] = ()
        if not self._is_gone:
            try:
                frames = (self._encoding.encode(message),)
            except WireError:  # of one of them, perhaps; the others are told what came of theirs
                frames = gather_replies(self._encoding, map(self._written, split_replies(message)))
        self._send_out(frames, calls, size)

    async def _write_all(self, frames: Iterable[bytes], calls: int, size: int) -> None:
        async with self._turn:
            for data in frames:
                await self._write(data)
        self._settle(calls, size)

    # Writing

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    def _written(self, reply: Reply) -> bytes:
        """Return a reply as bytes; what cannot be written is told to whoever waits for it."""
        if self._is_gone:
            return b""
        try:
            return self._encoding.encode(reply)
        except WireError as error:
            told = Reply(id=reply.id, session=reply.session, fault=fault_of(error))
            return self._encoding.encode(told)

    def _send_out(self, frames: Iterable[bytes], calls: int, size: int) -> None:
        """Write frames, by which so many calls are answered: now, and what is left when it can be.

        Each is encoded when the one before it is written: a thousand calls for one large result
        are a small message, and their replies would fill the memory.
        """
        left = iter(frames)
        if self._short is not None and not self._turn.locked():
            for data in left:
                if self._is_gone:
                    break
                if not self._short.write(data, is_text=self._encoding.is_text):
                    left = chain((data,), left)
                    break
                self._metrics.sent_bytes += len(data)
            else:
                self._settle(calls, size)
                return
        self._begin(self._write_all(left, calls, size))

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
            await self._put(message)
        except (RuntimeError, OSError):
            self._is_gone = True  # the reader finds out, and the session keeps the reply

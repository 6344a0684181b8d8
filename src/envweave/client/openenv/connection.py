"""Connections to OpenEnv servers, all on one thread of this process.

An OpenEnv server closes the connection of a client that does not answer its pings for about 40
seconds, and the episode is lost with it. A policy may take longer than that between two steps,
so a thread answers the pings as long as there is any connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from typing import Any, final

from envweave.client.address import Address
from envweave.client.async_socket import AsyncSocket, dial_in_thread
from envweave.client.socket import BlockingSocket
from envweave.errors import AccessError, ConnectionLostError, EnvWeaveError, WireError
from envweave.lifetime import OwnerProcess
from envweave.wire.encoding import PLAIN_JSON
from envweave.wire.websocket import Message


@final
class LoopSupervisor:
    """A thread with an event loop, which runs while there are users."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects the rest
        self._users = 0
        self._owner = OwnerProcess()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def acquire(self) -> asyncio.AbstractEventLoop:
        """Return the loop; `release` must follow, once."""
        with self._lock:
            if not self._owner.is_current:  # threads do not survive a fork
                self._owner, self._users, self._loop = OwnerProcess(), 0, None
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="envweave-openenv", daemon=True
                )
                self._thread.start()
            self._users += 1
            return self._loop

    def release(self) -> None:
        """Release the loop; the last user ends the thread."""
        with self._lock:
            if not self._owner.is_current:
                return
            self._users -= 1
            if self._users:
                return
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        assert loop is not None
        assert thread is not None
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


LOOP_SUPERVISOR = LoopSupervisor()


@final
class OpenEnvConnection:
    """One connection, which is one environment at the server. Used on the supervisor's loop.

    Requests are answered in order and have no ids: if a request is cancelled, the connection is
    dropped.
    """

    def __init__(self, address: Address, headers: Mapping[str, str]) -> None:
        self._address = address
        self._headers = dict(headers)
        self._socket: AsyncSocket | None = None
        self._waiting: asyncio.Future[Message] | None = None
        self._is_new = True  # nothing was requested yet
        self._early: Message | None = None
        self._lock = asyncio.Lock()  # one request at a time
        self._why = "it was never made"

    @property
    def is_open(self) -> bool:
        """Whether the connection is open, as far as is known."""
        return self._socket is not None

    async def request(self, request: dict[str, Any], *, may_dial: bool = False) -> dict[str, Any]:
        """Send a request and return its reply, which may be an error.

        Args:
            request: The message to send.
            may_dial: Whether to connect first, if there is no connection.

        Raises:
            ConnectionLostError: There is no connection, or it broke.
            AccessError: The server refuses this caller.
        """
        async with self._lock:
            if self._socket is None and may_dial:
                await self._dial()
            if self._early is not None:
                return self._read_early(self._early)
            if self._socket is None:
                raise self._lost(self._why)
            self._is_new = False
            waiting = self._waiting = asyncio.get_running_loop().create_future()
            self._socket.send_text(PLAIN_JSON.encode(request))
            try:
                message = await waiting
            except asyncio.CancelledError:
                self._drop("its last request was cancelled")
                raise
            finally:
                self._waiting = None
            return self._read(message)

    async def _dial(self) -> None:
        try:
            opened = await dial_in_thread(
                lambda: BlockingSocket(self._address, headers=self._headers)
            )
        except AccessError:
            raise
        except EnvWeaveError as error:
            why = error.__context__ or error
            raise unreachable(self._address, why) from None
        self._is_new, self._early = True, None
        self._socket = AsyncSocket(opened, self._address, self._deliver, self._fail)

    def _deliver(self, message: Message) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(message)
        elif self._is_new:
            self._early = message
        else:
            self._drop("the server sent an unexpected message")

    def _read_early(self, message: Message) -> dict[str, Any]:
        """Return why the server has no session for us, which it sends before any request."""
        self._early = None
        reply = self._read(message)
        self._drop("the server refused it")
        return reply

    def _fail(self, error: EnvWeaveError) -> None:
        self._socket = None
        self._why = str(error).rpartition(f"{self._address.url} broke: ")[2]
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(self._lost(self._why))

    def _read(self, message: Message) -> dict[str, Any]:
        try:
            reply = PLAIN_JSON.decode(message)
        except WireError as error:
            self._drop(str(error))
            raise self._lost(self._why) from None
        if not isinstance(reply, dict) or not isinstance(reply.get("data", {}), dict):
            self._drop("the server's reply is not an OpenEnv message")
            raise self._lost(self._why)
        return reply

    def _lost(self, why: str) -> ConnectionLostError:
        return ConnectionLostError(f"The connection to {self._address.url} is lost: {why}.")

    def _drop(self, why: str) -> None:
        socket, self._socket = self._socket, None
        self._why = why
        if socket is not None:
            socket.close()

    async def close(self) -> None:
        """Close the session, and disconnect. May be called twice."""
        if self._socket is not None and self._waiting is None:
            self._socket.send_text(PLAIN_JSON.encode({"type": "close"}))
        with contextlib.suppress(OSError):
            self._drop("it was closed")


def unreachable(address: Address, why: BaseException) -> ConnectionLostError:
    """Return the error for a server that does not answer, or not as an OpenEnv server."""
    reason = getattr(why, "strerror", None) or str(why) or type(why).__name__
    return ConnectionLostError(f"No OpenEnv server answers at {address.url}: {reason}.")

"""What a caller knows of a server: where it is, how to speak to it, and what it serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from envweave.client.address import Address
from envweave.client.blocking import BlockingConnection
from envweave.client.places import Place
from envweave.client.tasks import AskAsync, tasks_of
from envweave.wire.description import read_description
from envweave.wire.encoding import Encoding
from envweave.wire.schemas import Rebuilt, Types

if TYPE_CHECKING:
    from envweave.client.looping import AsyncConnection


@final
@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs somewhere.

    Attributes:
        address: Where it is.
        encoding: How messages are written.
        token: What to show it.
        place: Where it runs, if it was started for this caller and may be started again.
    """

    address: Address
    encoding: Encoding
    token: str | None = None
    place: Place | None = None

    def connect(self, on_end: Callable[[], None] | None = None) -> BlockingConnection:
        """Return a connection for a blocking caller, once the server has agreed to it.

        Args:
            on_end: Called when it has ended.

        Raises:
            ConnectionLostError: Nobody answers there.
            AccessError: The server refuses this caller.
            ServerError: It does not speak the dialect.
        """
        connection = self._connection(on_end)
        connection.reach()
        return connection

    def _connection(self, on_end: Callable[[], None] | None = None) -> BlockingConnection:
        return BlockingConnection(
            self.address, self.encoding, token=self.token, place=self.place, on_end=on_end
        )

    def connect_async(self, users: int) -> AsyncConnection:
        """Return a connection for so many async callers; it is made at the first call."""
        from envweave.client.looping import AsyncConnection

        return AsyncConnection(
            self.address, self.encoding, token=self.token, users=users, place=self.place
        )

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        """Ask the server something over a connection of its own."""
        connection = self.connect()
        try:
            return connection.ask(method, params)
        finally:
            connection.end()

    def ask_patiently(self, method: str, params: dict[str, Any]) -> Any:
        """Ask as `ask` does; a server that is away is tried for a while, as it is for a step."""
        connection = self._connection()
        try:
            return connection.ask(method, params)
        finally:
            connection.end()


@final
class Served:
    """What a server serves, as its description tells it.

    Attributes:
        interface: What the environment takes and shows.
        tasks: What episodes can be about.
        rebuild: Makes observations from plain data.
        rebuild_state: Makes states from plain data.
        max_message_bytes: How large a message the server takes; 0 if it does not say.

    Args:
        server: Where it is served.
        plain: The description.
        types: The author's classes, where they are known here.
        ask_async: Asks the server on an event loop, where its callers have one.

    Raises:
        WireError: The description cannot be read.
    """

    def __init__(
        self, server: Server, plain: Any, types: Types, ask_async: AskAsync | None = None
    ) -> None:
        description = read_description(plain)
        rebuilt = Rebuilt(description, types)
        self.interface = rebuilt.interface
        self.tasks = tasks_of(description.splits, server.ask_patiently, ask_async)
        self.rebuild = rebuilt.rebuild
        self.rebuild_state = rebuilt.rebuild_state
        self.max_message_bytes = description.max_message_bytes

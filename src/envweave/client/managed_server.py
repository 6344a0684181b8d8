"""A server that was started for a caller, and is replaced when it is lost."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar, final

from envweave.client.address import Address, parse_address
from envweave.errors import ConnectionLostError, EnvWeaveError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from envweave.providers import ContainerProvider

T = TypeVar("T")

START_S = 120.0
"""How long a server may take until it answers."""

AT_ONCE = 4
"""How many servers are started at the same time."""


class ServerGoneError(ConnectionLostError):
    """The server is gone for good; the message says why."""


class NoReplacementError(ServerGoneError):
    """A server is gone, and no other one could be started in its place."""


class ServerLostError(ServerGoneError):
    """A server was lost; the next attempt starts another one.

    Attributes:
        losses: How many servers have been lost so far.
    """

    def __init__(self, why: str, losses: int) -> None:
        super().__init__(why)
        self.losses = losses


@final
class ManagedServer:
    """A server that a provider starts, and starts again when it is lost.

    The sessions of a lost server are lost; its replacement knows nothing of them.

    Args:
        provider: Watches and stops the server.
        start: Starts a server through the provider, and returns its base URL.
        token: The access token; if omitted, the provider's.

    Attributes:
        address: Where the server is now.
        token: The access token.

    Raises:
        EnvWeaveError: It could not be started. Nothing is left running.
    """

    def __init__(
        self,
        provider: ContainerProvider,
        start: Callable[[], str],
        token: str | None = None,
    ) -> None:
        # Imported here: clients of a running server need not load the providers.
        from envweave.providers.base import WatchedProvider, bind_wait_for_ready

        self._provider = provider
        self._wait_for_ready = bind_wait_for_ready(provider)
        self._watched = provider if isinstance(provider, WatchedProvider) else None
        self._start_server = start
        self._given_token = token
        self._is_gone = False
        self._is_stopped = False
        self._losses = 0  # how many servers were lost
        self._why_lost = ""  # why the last of them was
        self._lock = threading.Lock()  # over all of these, and over starting and stopping
        self.token = token
        self.address = self._start()

    def _start(self) -> Address:
        base_url = self._start_server()
        try:
            self._wait_for_ready(base_url, START_S)
        except BaseException:
            self._provider.stop_container()
            raise
        if self._given_token is None and self._watched is not None:
            self.token = self._watched.token
        return parse_address(base_url)

    def locate(self, known: int | None = None) -> tuple[Address, int]:
        """Return where the server is. Starts a replacement if the caller knows of the loss.

        Args:
            known: How many losses the caller knows of; `None` if it was never connected.

        Returns:
            The address, and how many servers were lost before this one.

        Raises:
            ServerLostError: A server was lost since the caller connected.
            ServerGoneError: The server was stopped.
            NoReplacementError: A replacement could not be started.
        """
        with self._lock:
            if self._is_stopped:
                raise ServerGoneError(f"The server at {self.address.url} was stopped.")
            if known is not None and known < self._losses:
                raise ServerLostError(self._why_lost, self._losses)
            if self._is_gone:
                try:
                    self._provider.stop_container()
                    self.address = self._start()
                except EnvWeaveError as error:
                    raise NoReplacementError(
                        f"No other server could be started in place of a lost one: {error}"
                    ) from error
                self._is_gone = False
            return self.address, self._losses

    def explain(self, loss: ConnectionLostError, known: int) -> ConnectionLostError:
        """Return why the server could not be reached: a `ServerLostError` if it is gone for good.

        Args:
            loss: The error of the attempt.
            known: How many servers were lost before the one that was tried.
        """
        if self._watched is None:
            return loss
        with self._lock:
            if self._is_stopped:
                return loss
            if known == self._losses:
                why = self._watched.why_gone()
                if why is None:
                    return loss
                self._is_gone = True
                self._losses += 1
                self._why_lost = why
            return ServerLostError(self._why_lost, self._losses)

    def stop(self) -> None:
        """Stop the server for good. May be called twice."""
        with self._lock:
            if not self._is_stopped:
                self._is_stopped = True
                self._provider.stop_container()


@final
class Route:
    """How one connection finds its server; each loss is raised to it once."""

    def __init__(self, server: ManagedServer) -> None:
        self.server = server
        self._known: int | None = None

    def dial(self, dial: Callable[[Address], T]) -> T:
        """Return what `dial` opens at the current server.

        Raises:
            ServerGoneError: The server is gone for good, or was replaced since the last call.
            EnvWeaveError: As `dial`.
        """
        try:
            address, self._known = self.server.locate(self._known)
            try:
                return dial(address)
            except ConnectionLostError as loss:
                raise self.server.explain(loss, self._known) from None
        except ServerLostError as lost:
            self._known = lost.losses
            raise


def start_all(
    start: Callable[[ContainerProvider], ManagedServer], providers: Sequence[ContainerProvider]
) -> list[ManagedServer]:
    """Start several servers, some at a time; if one fails, the others are stopped again.

    Raises:
        EnvWeaveError: One could not be started.
    """
    if len(providers) == 1:
        return [start(providers[0])]
    from concurrent.futures import ThreadPoolExecutor, wait

    with ThreadPoolExecutor(AT_ONCE, "envweave-start") as threads:
        starting = [threads.submit(start, one) for one in providers]
        try:
            return [one.result() for one in starting]
        except BaseException:
            for one in starting:
                one.cancel()
            wait(starting)
            stop_all([one.result() for one in starting if _has_started(one)])
            raise


def _has_started(starting: Future[ManagedServer]) -> bool:
    return not starting.cancelled() and starting.exception() is None


def stop_all(servers: Sequence[ManagedServer]) -> None:
    """Stop every server, even if stopping one of them fails; then raise the failure."""
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.callback(server.stop)

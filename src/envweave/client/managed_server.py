"""A server that was started for a caller, whose place may end, and be followed by another."""

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
"""How many places are started at the same time."""


class ServerGoneError(ConnectionLostError):
    """Nobody will ever answer there again; the message says why."""


class NoReplacementError(ServerGoneError):
    """A server is gone, and no other one could be started in its place."""


class ServerLostError(ServerGoneError):
    """A server was lost; the next attempt starts another one.

    Attributes:
        losses: How many servers were lost there by now.
    """

    def __init__(self, why: str, losses: int) -> None:
        super().__init__(why)
        self.losses = losses


@final
class ManagedServer:
    """Where a server runs that a provider starts, and starts again when it is lost.

    What ran in a place that is lost is lost, and whoever had a session there is told so: the next
    place knows nothing of it.

    Args:
        provider: Who watches and stops it.
        start: Has the provider start a server, and returns its base URL.
        token: What to show it; left out, what the provider says.

    Attributes:
        address: Where the server is now.
        token: What to show it.

    Raises:
        EnvWeaveError: It could not be started. Nothing is left behind.
    """

    def __init__(
        self,
        provider: ContainerProvider,
        start: Callable[[], str],
        token: str | None = None,
    ) -> None:
        # Here, since whoever connects to a server that runs need not wait for providers.
        from envweave.providers.base import WatchedProvider, bind_wait_for_ready

        self._provider = provider
        self._wait_for_ready = bind_wait_for_ready(provider)
        self._watched = provider if isinstance(provider, WatchedProvider) else None
        self._start_server = start
        self._given_token = token
        self._is_gone = False
        self._is_stopped = False
        self._losses = 0  # how many servers were lost here
        self._why_lost = ""  # the last of them
        self._lock = threading.Lock()  # over all of these, and whatever starts or stops it
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

    def reach(self, known: int | None = None) -> tuple[Address, int]:
        """Return where the server is; in the place of one that is known to be lost starts another.

        Args:
            known: How many losses the caller knows of; `None` if it was never connected.

        Returns:
            The address, and how many servers were lost before this one.

        Raises:
            ServerLostError: One was lost that the caller was connected to, or may have been.
            PlaceGoneError: It was stopped.
            NoReplacementError: There is none, and there cannot be another now.
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
        """Return why a server could not be reached that was tried: it may be gone for good.

        Args:
            loss: What the caller saw.
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
        """End it for good. May be called twice."""
        with self._lock:
            if not self._is_stopped:
                self._is_stopped = True
                self._provider.stop_container()


@final
class Route:
    """How one connection finds its server; each loss is reported to it once."""

    def __init__(self, place: ManagedServer) -> None:
        self.place = place
        self._known: int | None = None

    def dial(self, dial: Callable[[Address], T]) -> T:
        """Return what `dial` opens at the server that is there now.

        Raises:
            PlaceGoneError: The server is gone for good, or was replaced since the last call.
            EnvWeaveError: As `dial`.
        """
        try:
            address, self._known = self.place.reach(self._known)
            try:
                return dial(address)
            except ConnectionLostError as loss:
                raise self.place.explain(loss, self._known) from None
        except ServerLostError as lost:
            self._known = lost.losses
            raise


def start_all(
    start: Callable[[ContainerProvider], ManagedServer], providers: Sequence[ContainerProvider]
) -> list[ManagedServer]:
    """Start several places, some at a time; if one cannot be, the others are stopped again.

    Raises:
        EnvWeaveError: Why one could not be started.
    """
    if len(providers) == 1:
        return [start(providers[0])]
    from concurrent.futures import ThreadPoolExecutor, wait

    with ThreadPoolExecutor(AT_ONCE, "envweave place") as threads:
        starting = [threads.submit(start, one) for one in providers]
        try:
            return [one.result() for one in starting]
        except BaseException:
            for one in starting:
                one.cancel()
            wait(starting)
            stop_all([one.result() for one in starting if _is_good(one)])
            raise


def _is_good(one: Future[ManagedServer]) -> bool:
    return not one.cancelled() and one.exception() is None


def stop_all(places: Sequence[ManagedServer]) -> None:
    """Stop several places, whatever comes of each; the first failure is raised at the end."""
    with contextlib.ExitStack() as stack:
        for one in places:
            stack.callback(one.stop)

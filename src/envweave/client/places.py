"""A server that was started for a caller, whose place may end, and be followed by another."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, final

from envweave.client.address import Address, parse_address
from envweave.errors import ConnectionLostError, EnvWeaveError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from envweave.providers import ContainerProvider

START_S = 120.0
"""How long a server may take until it answers."""

AT_ONCE = 4
"""How many places are started at the same time."""


class PlaceGoneError(ConnectionLostError):
    """Nobody will ever answer there again; the message says why."""


class NoReplacementError(PlaceGoneError):
    """A server is gone, and no other one could be started in its place."""


@final
class Place:
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
        from envweave.providers.watched import WatchedProvider

        self._provider = provider
        self._watched = provider if isinstance(provider, WatchedProvider) else None
        self._start_server = start
        self._given_token = token
        self._is_gone = False
        self._is_stopped = False
        self._lock = threading.Lock()  # over `_is_gone`, and whatever starts or stops it
        self.token = token
        self.address = self._start()

    def _start(self) -> Address:
        base_url = self._start_server()
        try:
            self._provider.wait_for_ready(base_url, START_S)
        except BaseException:
            self._provider.stop_container()
            raise
        if self._given_token is None and self._watched is not None:
            self.token = self._watched.token
        return parse_address(base_url)

    def reach(self) -> Address:
        """Return where the server is; in the place of one that is known to be lost starts another.

        Raises:
            PlaceGoneError: It was stopped.
            NoReplacementError: There is none, and there cannot be another now.
        """
        with self._lock:
            if self._is_stopped:
                raise PlaceGoneError(f"The server at {self.address.url} was stopped.")
            if self._is_gone:
                try:
                    self._provider.stop_container()
                    self.address = self._start()
                except EnvWeaveError as error:
                    raise NoReplacementError(
                        f"No other server could be started in place of a lost one: {error}"
                    ) from error
                self._is_gone = False
            return self.address

    def explain(self, loss: ConnectionLostError, tried: Address) -> ConnectionLostError:
        """Return why a server could not be reached that was tried: it may be gone for good."""
        if self._watched is None:
            return loss
        with self._lock:
            if self._is_stopped or self._is_gone or self.address is not tried:
                return loss
            why = self._watched.why_gone()
            if why is None:
                return loss
            self._is_gone = True
            return PlaceGoneError(why)

    def stop(self) -> None:
        """End it for good. May be called twice."""
        with self._lock:
            if not self._is_stopped:
                self._is_stopped = True
                self._provider.stop_container()


def start_all(
    start: Callable[[ContainerProvider], Place], providers: Sequence[ContainerProvider]
) -> list[Place]:
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


def _is_good(one: Future[Place]) -> bool:
    return not one.cancelled() and one.exception() is None


def stop_all(places: Sequence[Place]) -> None:
    """Stop several places, whatever comes of each; the first failure is raised at the end."""
    with contextlib.ExitStack() as stack:
        for one in places:
            stack.callback(one.stop)

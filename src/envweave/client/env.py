"""`make("http://…")`: one session at a server, for a blocking caller."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, final

from envweave.client.connection import BlockingConnection
from envweave.client.server_info import ServerInfo
from envweave.client.session import CLOSE_S, LOSSES, RemoteSession, as_it_is, spoken
from envweave.errors import (
    ActionError,
    BusyError,
    EnvWeaveError,
    StateFailedError,
)
from envweave.lifetime import CloseGuard
from envweave.session.episode_tracker import with_autoreset
from envweave.types import ResetResult, State, StepResult
from envweave.wire.protocol import EncodeError


@final
class RemoteDriver:
    """Carries a sync caller's calls to a session at a server.

    A session that is gone ends the episode; another one is opened for the next.

    Args:
        connection: To the server; the driver ends it.
        served: What is there.
        autoreset: Whether an end begins the next episode.
        timeout_s: How long each of the environment's own calls may take.
        wait_s: How long to wait for a session where the server is full.

    Raises:
        EnvWeaveError: The session could not be opened.
    """

    def __init__(
        self,
        connection: BlockingConnection,
        served: ServerInfo,
        *,
        autoreset: bool,
        timeout_s: float | None,
        wait_s: float | None = None,
    ) -> None:
        self.interface = served.interface
        self.tasks = served.tasks
        self._served = served
        self._connection = connection
        connection.exchange.limit_bytes = served.max_message_bytes
        self._autoreset = autoreset
        self._sitting = RemoteSession(
            served, autoreset=autoreset, timeout_s=timeout_s, wait_s=wait_s
        )
        self._ending = _PendingEnd(connection)
        self._caller: int | None = None  # the thread that is in a call
        self._open()
        self._unclosed = CloseGuard(
            self,
            self._ending.end,
            f"{self.interface.name} at a server was dropped without close(). Use it in a `with` "
            "block, or close it.",
        )

    @property
    def agents(self) -> list[str]:
        """Who takes part now."""
        return self._sitting.agents

    def _open(self) -> None:
        try:
            self._make("open", {}, as_it_is)
        except EnvWeaveError as error:
            if not self._sitting.has_lost_server(self._connection):  # else `reset` tries again
                self._sitting.lose_to(error, self._connection)
            raise
        self._ending.sitting = self._sitting

    def reset(self, **wanted: Any) -> ResetResult[Any]:
        """Begin an episode. See `Env.reset`."""
        sitting = self._sitting
        sitting.refuse_closed("reset")
        try:
            try:
                return self._begin(wanted)
            except LOSSES as loss:
                if not sitting.has_lost_server(self._connection):
                    raise
                sitting.replace(loss, self._connection)
            return self._begin(wanted)
        except EncodeError:
            raise
        except LOSSES as loss:
            self._sitting.lose_to(loss, self._connection)
            raise sitting.lost_reset(loss) from None

    def _begin(self, wanted: dict[str, Any]) -> ResetResult[Any]:
        """Begin an episode in the session that is open, or in a new one."""
        if not self._sitting.is_open:
            self._open()
        result: ResetResult[Any] = self._make("reset", wanted, self._sitting.result)
        return result

    def step(self, action: Any) -> StepResult[Any]:
        """Take one step. See `Env.step`."""
        sitting = self._sitting
        sitting.refuse_closed("step")
        try:
            result: StepResult[Any] = self._make("step", spoken(action), sitting.result)
        except EncodeError as error:
            raise ActionError(f"action: {error}") from None
        except LOSSES as loss:
            self._sitting.lose_to(loss, self._connection)
            return self._lost(loss)
        return result

    def _lost(self, loss: Exception) -> StepResult[Any]:
        result = self._sitting.lost_step(loss)
        if not self._autoreset:
            return result
        try:
            return with_autoreset(result, self.reset())
        except EnvWeaveError as error:
            return with_autoreset(result, error)

    def state(self) -> State:
        """Return the environment's state."""
        sitting = self._sitting
        sitting.refuse_closed("state")
        try:
            state: State = self._make("state", {}, self._served.rebuild_state)
        except LOSSES as loss:
            self._sitting.lose_to(loss, self._connection)
            raise StateFailedError(f"{sitting.name}.state failed: {loss}") from None
        return state

    def _make(self, method: str, params: dict[str, Any], read: Callable[[Any], Any]) -> Any:
        """Make a call, and return what `read` makes of its value.

        Raises:
            BusyError: Another thread is in a call. Each would read the other's reply.
            EnvWeaveError: As the call.
        """
        thread = threading.get_ident()
        if self._caller not in (None, thread):
            raise BusyError(
                f"{method}() while another thread is in a call on the same environment. Make one "
                "environment for each thread."
            )
        self._caller = thread
        try:
            return self._make_alone(method, params, read)
        finally:
            self._caller = None

    def _make_alone(self, method: str, params: dict[str, Any], read: Callable[[Any], Any]) -> Any:
        sitting = self._sitting
        limit_s = sitting.open_limit_s if method == "open" else sitting.limit_s
        try:
            call = sitting.opening() if method == "open" else sitting.call(method, params)
            return read(sitting.value(self._connection.call(call, limit_s)))
        except EncodeError:
            sitting.take_back()
            raise
        except Exception:
            raise
        except BaseException:
            sitting.interrupt(self._connection)
            raise

    def close(self) -> None:
        """Close the session and hang up, once."""
        self._sitting.is_closed = True
        if not self._unclosed.disarm():
            return
        try:
            if self._sitting.is_open:
                with contextlib.suppress(EnvWeaveError):
                    self._connection.call_briefly(self._sitting.call("close", {}), CLOSE_S)
                self._sitting.lose("it was closed")
        finally:
            self._ending.end()


@final
class _PendingEnd:
    """How a driver ends that nobody closed."""

    def __init__(self, connection: BlockingConnection) -> None:
        self.sitting: RemoteSession | None = None
        self._connection = connection

    def end(self) -> None:
        sitting, self.sitting = self.sitting, None
        is_open = sitting is not None and sitting.is_open
        self._connection.end([sitting.call("close", {})] if sitting and is_open else ())

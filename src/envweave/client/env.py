"""`make("http://…")`: one session at a server, for a blocking caller."""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import Any, final

from envweave.client.connection import BlockingConnection
from envweave.client.server_info import ServerInfo
from envweave.client.session import CLOSE_S, CallSequence, RemoteSession
from envweave.errors import BusyError, EnvWeaveError
from envweave.lifetime import CloseGuard
from envweave.session.kept_snapshots import KeptSnapshot
from envweave.types import ResetResult, State, StepResult


@final
class RemoteDriver:
    """Carries a sync caller's calls to a session at a server.

    A session that is gone ends the episode; another one is opened for the next.

    Args:
        connection: To the server; the driver ends it.
        served: What the server serves.
        autoreset: Whether the next episode begins when one ends.
        timeout_s: Time limit for each of the environment's own calls.
        wait_s: How long to wait for a free session if the server is full.
        opens: Whether to open the session now; otherwise the first operation does.

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
        opens: bool = True,
    ) -> None:
        self.interface = served.interface
        self.tasks = served.tasks
        self._served = served
        self._connection = connection
        self._session = session = RemoteSession(
            connection, served, autoreset=autoreset, timeout_s=timeout_s, wait_s=wait_s
        )
        self._thread: int | None = None  # the one that is in an operation
        if opens:
            self._run("open", session.open())
        self._end = partial(_end, connection, session)
        self._unclosed = CloseGuard(
            self,
            self._end,
            f"{self.interface.name} at a server was dropped without close(). Use it in a `with` "
            "block, or close it.",
        )

    def sibling(self) -> RemoteDriver:
        """Return a driver for another session at the server, over a connection of its own.

        A server that was started for the caller is stopped with the last of these connections.
        """
        connection = self._connection.another()
        return RemoteDriver(connection, self._served, **self._session.options, opens=False)

    @property
    def agents(self) -> list[str]:
        """The agents that take part now."""
        return self._session.agents

    def reset(self, **params: Any) -> ResetResult[Any]:
        """Begin an episode. See `Env.reset`."""
        self._session.refuse_closed("reset")
        result: ResetResult[Any] = self._run("reset", self._session.reset(params))
        return result

    def step(self, action: Any) -> StepResult[Any]:
        """Take one step. See `Env.step`."""
        self._session.refuse_closed("step")
        result: StepResult[Any] = self._run("step", self._session.step(action))
        return result

    def state(self) -> State:
        """Return the environment's state."""
        self._session.refuse_closed("state")
        state: State = self._run("state", self._session.state())
        return state

    def snapshot(self) -> KeptSnapshot:
        """Return the running episode, which the server keeps. See `Env.snapshot`."""
        self._session.refuse_closed("snapshot")
        point: KeptSnapshot = self._run("snapshot", self._session.snapshot())
        return point

    def restore(self, point: KeptSnapshot) -> ResetResult[Any]:
        """Continue from a snapshot. See `Env.restore`."""
        self._session.refuse_closed("restore")
        result: ResetResult[Any] = self._run("restore", self._session.restore(point))
        return result

    def _run(self, method: str, calls: CallSequence[Any]) -> Any:
        """Make the calls of an operation, and return its outcome.

        Raises:
            BusyError: Another thread is in an operation. Each would read the other's replies.
            EnvWeaveError: As the operation.
        """
        thread = threading.get_ident()
        if self._thread not in (None, thread):
            raise BusyError(
                f"{method}() while another thread is in a call on the same environment. Make one "
                "environment for each thread."
            )
        self._thread = thread
        try:
            call, limit_s = next(calls)
            while True:
                try:
                    reply = self._connection.call(call, limit_s)
                except Exception as error:  # noqa: BLE001 - the session decides
                    call, limit_s = calls.throw(error)
                else:
                    call, limit_s = calls.send(reply)
        except StopIteration as end:
            return end.value
        except Exception:
            raise
        except BaseException:
            self._session.interrupt()
            raise
        finally:
            self._thread = None

    def close(self) -> None:
        """Close the session and disconnect, once."""
        session = self._session
        session.is_closed = True
        if not self._unclosed.disarm():
            return
        try:
            if session.is_open:
                with contextlib.suppress(EnvWeaveError):
                    self._connection.call_briefly(session.call("close", {}), CLOSE_S)
                session.lose("it was closed")
        finally:
            self._end()


def _end(connection: BlockingConnection, session: RemoteSession) -> None:
    """Close the session, if it is open, and disconnect. May be called twice."""
    calls = [session.call("close", {})] if session.is_open else []
    session.lose("it was closed")
    connection.end(calls)

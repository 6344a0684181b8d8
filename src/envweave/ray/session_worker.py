"""Sessions in worker actors, for `make`, `make_async` and `pool`."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, final

from envweave.ray.actors import SessionActor
from envweave.ray.worker import RayJob, RayWorker
from envweave.workers.channel import decode_message, encode_message
from envweave.workers.launch import WorkerLostError


@final
class RaySessionLauncher:
    """Starts worker actors that run the same sessions, one after the other.

    Attributes:
        num_envs: How many sessions there are.
    """

    def __init__(self, job: RayJob, definition: bytes, num_envs: int) -> None:
        self.num_envs = num_envs
        self._job = job
        self._definition = definition
        self._lease = job.cluster.lease()

    def launch(self) -> RaySessionWorker:
        """Start one, without waiting until it is ready."""
        return RaySessionWorker(self._job, self._definition, self.num_envs)

    def close(self) -> None:
        """Release the cluster. May be called twice."""
        self._lease.release()


@final
class RaySessionWorker:
    """An actor that runs sessions. See `WorkerProcess`, whose calls it has."""

    def __init__(self, job: RayJob, definition: bytes, num_envs: int) -> None:
        self._connection = ActorConnection(self)
        self.process = RayWorker(
            job,
            SessionActor,
            definition,
            num_envs,
            on_loss=self._connection.notify,
            max_concurrency=2 * num_envs + 8,
        )
        self._has_started = False

    @property
    def is_gone(self) -> bool:
        """Whether the actor no longer exists."""
        return self.process.is_gone

    def send(self, payload: bytes) -> None:
        """Send a message.

        Raises:
            WorkerLostError: The actor is gone.
        """
        if self.is_gone:
            raise self.lost()
        self.submit(decode_message(payload))

    def submit(self, message: list[Any]) -> None:
        """Send a message that was decoded."""
        self.process.submit("call", message, on_reply=self._connection.deliver)

    def loop_connection(self) -> ActorConnection:
        """Return the connection to it, for an event loop."""
        return self._connection

    def receive(self, timeout_s: float | None = None) -> bytes:
        """Return the actor's next message; the first is its report.

        Raises:
            WorkerLostError: It is gone, or an environment's code took longer than `timeout_s`.
        """
        if not self._has_started:
            report = self.process.await_start().report
            self._has_started = True
            return report
        self.process.wait_for(self._connection.has_message, code_s=timeout_s)
        return encode_message(self._connection.take())

    def has_message(self, timeout_s: float) -> bool:
        """Wait for the next message; return whether one arrived."""
        try:
            return self.process.wait_for(self._connection.has_message, at_most_s=timeout_s)
        except WorkerLostError:
            return False

    def check_deadline(self, timeout_s: float) -> float:
        """Return how many seconds the code that is running has left.

        Raises:
            WorkerLostError: None, so the actor was ended.
        """
        return self.process.check_deadline(timeout_s)

    def lost(self) -> WorkerLostError:
        """End what is left of it, and return how it ended."""
        return self.process.lost()

    def end(self) -> None:
        """End it. May be called twice."""
        self.process.end()


@final
class ActorConnection:
    """The `LoopConnection` to an actor: messages go out as calls.

    Replies arrive in threads of Ray's, and wait here until the loop has taken them.
    """

    def __init__(self, worker: RaySessionWorker) -> None:
        self._worker = worker
        self._received: deque[list[Any]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_message: Callable[[Any], Any]
        self._on_lost: Callable[[], None]

    def attach(self, on_message: Callable[[Any], Any], on_lost: Callable[[], None]) -> None:
        """Deliver replies on the loop that runs."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._on_message, self._on_lost = on_message, on_lost
            self._loop = loop
            loop.call_soon(self._deliver)  # what a loop that has ended did not take

    def send(self, message: list[Any]) -> None:
        """Make a call."""
        if not self._worker.is_gone:  # else the loop is about to find that out
            self._worker.submit(message)

    def deliver(self, reply: list[Any] | None) -> None:
        """Take a reply, in a thread of Ray's; a cancelled call has none."""
        if reply is not None:
            self._received.append(reply)
            self.notify()

    def notify(self) -> None:
        """Wake the loop, in any thread: a reply has arrived, or the actor is gone."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended; the next one takes the reply
                loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        while self._received and self._loop is not None:
            self._on_message(self._received.popleft())
        if self._worker.is_gone and self._loop is not None:
            self.detach()
            self._on_lost()

    def has_message(self) -> bool:
        """Whether a reply has arrived."""
        return bool(self._received)

    def take(self) -> list[Any]:
        """Return the oldest reply."""
        return self._received.popleft()

    def detach(self) -> None:
        """Leave the loop. May be called twice."""
        self._loop = None

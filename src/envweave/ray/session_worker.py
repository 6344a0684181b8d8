"""Sessions in worker actors, for `make`, `make_async` and `pool`."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, final

from envweave.ray.actors import SessionActor
from envweave.ray.worker import RayJob, RayWorker
from envweave.vector.process.turns import EventFd
from envweave.workers.channel import FrameBuffer, decode_message, encode_message, frame
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
    """An actor that runs sessions. See `WorkerProcess`, whose calls it has.

    Attributes:
        connection: The connection to it, for an event loop.
    """

    def __init__(self, job: RayJob, definition: bytes, num_envs: int) -> None:
        self.connection = ActorConnection(self)
        self.process = RayWorker(
            job,
            SessionActor,
            definition,
            num_envs,
            on_loss=self.connection.notify,
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
        self.process.submit("call", *message[:4], on_reply=self.connection.deliver)

    def receive(self, timeout_s: float | None = None) -> bytes:
        """Return the actor's next message; the first is its report.

        Raises:
            WorkerLostError: It is gone, or an environment's code took longer than `timeout_s`.
        """
        if not self._has_started:
            report = self.process.await_start().report
            self._has_started = True
            return report
        self.process.wait_for(self.connection.has_message, code_s=timeout_s)
        return self.connection.take()

    def has_message(self, timeout_s: float) -> bool:
        """Wait for the next message; return whether one arrived."""
        try:
            return self.process.wait_for(self.connection.has_message, at_most_s=timeout_s)
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
        loss = self.process.lost()
        self.connection.close()
        return loss

    def end(self) -> None:
        """End it. May be called twice."""
        self.process.end()
        self.connection.close()


@final
class ActorConnection:
    """Looks like a socket to an event loop: frames go out as calls, replies come in as frames."""

    def __init__(self, worker: RaySessionWorker) -> None:
        self._worker = worker
        self._unsent = FrameBuffer()
        self._received: deque[bytes] = deque()
        self._event = EventFd.new()
        self._lock = threading.Lock()  # over `_event`: replies arrive in other threads

    def fileno(self) -> int:
        """Return the descriptor to poll; -1 once it is closed."""
        return self._event.fileno() if self._event.fds else -1

    def settimeout(self, _: float | None, /) -> None:
        """Do nothing: its calls never wait."""

    def send(self, data: Any, /) -> int:
        """Make the calls in these frames; an incomplete frame is kept until the rest is sent."""
        for message in self._unsent.feed(bytes(data)):
            if not self._worker.is_gone:  # else the event loop is about to find that out
                self._worker.submit(message)
        return len(data)

    def recv(self, _: int, /) -> bytes:
        """Return the replies that arrived, as frames; nothing when the actor is gone."""
        self._event.clear()
        received = b"".join(frame(self.take()) for _ in range(len(self._received)))
        if received and self._worker.is_gone:
            self.notify()  # read once more
        if not received and not self._worker.is_gone:
            raise BlockingIOError
        return received

    def deliver(self, reply: list[Any]) -> None:
        """Take a reply, in a thread of Ray's; a cancelled call has none."""
        if len(reply) > 1:
            self._received.append(encode_message(reply))
            self.notify()

    def notify(self) -> None:
        """Wake the event loop that reads it."""
        with self._lock:
            if self._event.fds:
                self._event.notify()

    def has_message(self) -> bool:
        """Whether a reply has arrived."""
        return bool(self._received)

    def take(self) -> bytes:
        """Return the oldest reply, without a frame."""
        return self._received.popleft()

    def close(self) -> None:
        """Close the descriptor. May be called twice."""
        with self._lock:
            self._event.close()

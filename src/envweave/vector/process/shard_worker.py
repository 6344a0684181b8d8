"""What a vector needs of a worker: a process of ours, or an actor on a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from envweave.vector.process.shared_columns import SharedColumns
from envweave.workers.launch import WorkerLostError
from envweave.workers.shared_memory import SharedMemory


class ShardProcess(Protocol):
    """The process of a worker, in which environments may hang or crash."""

    @property
    def has_ended(self) -> bool:
        """Whether it was found dead, or ended by us."""
        ...

    @property
    def is_gone(self) -> bool:
        """Whether the process no longer exists."""
        ...

    def poll_fd(self) -> int:
        """Return a descriptor that can be read once the process has ended."""
        ...

    def check_deadline(self, timeout_s: float) -> float:
        """Return how many seconds the code that is running has left.

        Raises:
            WorkerLostError: None, so the process was ended.
        """
        ...

    def lost(self) -> WorkerLostError:
        """End what is left of it, and return how it ended."""
        ...

    def kill(self) -> None:
        """End the process at once, from another thread than the one that waits for it."""
        ...

    def end(self) -> None:
        """End the process, and release what belongs to it. May be called twice."""
        ...


class ShardWorker(Protocol):
    """A worker as its shard sees it. It does one turn after the other, each with a number."""

    @property
    def process(self) -> ShardProcess:
        """The process that runs it."""
        ...

    def share(
        self,
        shared: SharedColumns,
        memory: SharedMemory,
        fill: Mapping[int, Any],
        timeout_s: float | None,
    ) -> None:
        """Fix the columns, and wait until the worker has done so too."""
        ...

    def next_turn(self) -> int:
        """Return the number of the next turn."""
        ...

    def start_turn(self, kind: int) -> int:
        """Start a turn; return its number."""
        ...

    def await_soon(self) -> None:
        """Wait for the turn that was started, for a moment, if that is cheaper than to sleep."""
        ...

    def notify_when_done(self) -> None:
        """Have the end of the turn that was started signaled, to who sleeps."""
        ...

    def has_begun(self, number: int) -> bool:
        """Whether this turn was started."""
        ...

    def has_done(self, number: int) -> bool:
        """Whether this turn is done."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether the last turn that was started is not done."""
        ...

    @property
    def has_more(self) -> bool:
        """Whether a reply goes with what the last turn wrote to the columns."""
        ...

    def pack(self, *message: Any) -> bytes:
        """Pickle a message so that the worker can read it."""
        ...

    def send(
        self, *message: Any, packed: bytes | None = None, timeout_s: float | None = None
    ) -> None:
        """Start a turn with a message, once the last one is done."""
        ...

    def drain(self, timeout_s: float | None) -> None:
        """Receive the reply to the last message, if the wait for it was interrupted."""
        ...

    def reply(self, *message: Any, timeout_s: float | None = None) -> Any:
        """Wait for the reply to a message, which may have to be sent again, and return it."""
        ...

    def request_close(self) -> None:
        """Send it a request to close its environments and end."""
        ...

    def await_close(self, timeout_s: float) -> Exception | None:
        """Wait until it has done so, or end it; return what failed, if anything did."""
        ...

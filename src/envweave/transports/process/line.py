"""A worker process with whole sessions, and how its callers reach it."""

from __future__ import annotations

import os
import pickle
from typing import Any, final

from envweave.errors import in_words
from envweave.transports.process.board import Bell, Board, Turn
from envweave.transports.process.channel import pack, pack_by_value
from envweave.transports.process.place import Seat, WorkerLostError, WorkerProcess
from envweave.transports.process.sending import check_actions
from envweave.transports.process.session_host import Answer, Call
from envweave.transports.process.vector_host import Hello

HOST = "envweave.transports.process.session_host:SessionHost"


@final
class Line:
    """One worker after the other, each with the same environments.

    Attributes:
        worker: The one there is; `None` after it was lost.
        generation: How many have been started.
        loss: How the last one was lost.
    """

    def __init__(self, definition: bytes, timeout_s: float | None) -> None:
        self.worker: WorkerProcess | None = None
        self.generation = 0
        self.loss = WorkerLostError("it has not begun")
        self.timeout_s = timeout_s
        self._definition = definition
        self._board = Board.of(1)
        self._bells = Bell.new(), Bell.new()
        self._by_value = False
        self._is_ended = False
        self._owner = os.getpid()
        self._numbers = 0

    def launch(self) -> WorkerProcess:
        """Start a process, and don't wait for it.

        Raises:
            WorkerLostError: It ended at once.
        """
        if self._is_ended:
            raise WorkerLostError("it was closed")
        worker = WorkerProcess(Seat(self._board, Turn.of(0), *self._bells, looks=0))
        try:
            worker.define(HOST, self._definition)
        except BaseException:
            worker.end()
            raise
        return worker

    def start(self, worker: WorkerProcess | None = None) -> Hello:
        """Start a worker, or take one that is on its way, and return what it says.

        Raises:
            WorkerLostError: It ended first.
            EnvWeaveError: One of its environments could not be made.
        """
        worker = self.launch() if worker is None else worker
        try:
            hello: Hello = worker.answer()
        except BaseException:
            worker.end()
            raise
        self.worker = worker
        self.generation += 1
        if self._is_ended:  # while it started
            worker.end()
        return hello

    def packed(self, index: int, method: str, *args: Any, **rest: Any) -> tuple[int, bytes]:
        """Return a call's number, and the call as a message."""
        self._numbers += 1
        call = Call(self._numbers, index, method, args, **rest)
        try:
            packed = (pack_by_value if self._by_value else pack)(call)
        except Exception:
            check_actions(args)
            raise
        return self._numbers, pickle.dumps((self._numbers, packed))

    def read(self, reply: bytes) -> Answer | None:
        """Return the answer in a reply; `None` if the call must be packed again, and is told anew.

        Raises:
            WorkerLostError: It cannot be read, so that nobody knows what came of the call.
            Exception: What the call raised.
        """
        try:
            kind, value = pickle.loads(reply)  # noqa: S301 - from our own worker
        except Exception as error:
            raise WorkerLostError(f"its answer cannot be read: {in_words(error)}") from error
        if kind == "done":
            answer: Answer = value
            return answer
        if kind == "unreadable" and not self._by_value:
            self._by_value = True
            return None
        raise value if isinstance(value, Exception) else WorkerLostError(f"it said: {value}")

    def lose(self, loss: WorkerLostError) -> None:
        """Book a worker that is gone."""
        if self.worker is not None:
            self.worker.end()
        self.worker, self.loss = None, loss

    def end(self) -> None:
        """End the worker, and let go of what was shared with it. May be called twice.

        A forked copy of the trainer does no such thing.
        """
        if self._owner != os.getpid():
            return
        self._is_ended = True
        self.lose(WorkerLostError("it was closed"))
        for bell in self._bells:
            bell.close()
        self._board.close()

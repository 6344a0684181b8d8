"""Rows of a vector in worker actors: a `ShardWorker` of the vector's `WorkerPool`.

Columns of actions go out with a call, columns of observations come back as its result, and are
written to the vector's columns as a worker process would write them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, NamedTuple, final

from envweave.errors import OptionError, format_error
from envweave.ray.actors import VectorActor, pack_actions, write_step
from envweave.ray.worker import RayJob, RayWorker
from envweave.vector.process.shared_columns import SharedColumns
from envweave.vector.process.turns import EventFd, MessagePickles, TurnSlot, TurnTable
from envweave.workers.channel import uninterrupted
from envweave.workers.launch import WorkerLostError
from envweave.workers.pickling import pack_by_value
from envweave.workers.shared_memory import SharedMemory


class VectorTurns(NamedTuple):
    """Where a worker notes its turns, in the caller's own memory.

    Attributes:
        table: The turns of all workers.
        slot: This worker's slot in it.
        event: Wakes the caller.
    """

    table: TurnTable
    slot: TurnSlot
    event: EventFd


@final
class RayVectorWorker:
    """An actor that steps some rows of a vector, one turn at a time.

    Attributes:
        process: The actor itself.
    """

    def __init__(self, job: RayJob, turns: VectorTurns, rows: range, definition: bytes) -> None:
        self._turns = turns
        self._words = turns.table.words
        self._rows = rows
        self._shared: SharedColumns | None = None
        self._pickles = MessagePickles()
        self._has_started = False
        self._owes_reply = False  # whether the reply to the last message was not received
        self._reply: Any = None  # that of the last turn
        turns.table.clear(turns.slot)
        self.process = RayWorker(job, VectorActor, definition, len(rows), turns.event.notify)

    # Turns

    def next_turn(self) -> int:
        """Return the number of the next turn."""
        number: int = self._words[self._turns.slot.go] + 1
        return number

    def start_turn(self, _: int) -> int:
        """Step every row, with the actions in the vector's columns; return the turn's number."""
        assert self._shared is not None
        chosen = slice(self._rows.start, self._rows.stop)
        actions = [column[chosen] for column in self._shared.actions]
        return self._begin("step_all", pack_actions(actions), rows=chosen, is_held=True)

    def await_soon(self) -> None:
        """Wait for the turn that was started, for a moment."""
        self.process.take_reply()

    def notify_when_done(self) -> None:
        """Have the end of the turn signaled."""
        self.process.release_reply()

    def has_begun(self, number: int) -> bool:
        """Whether this turn was started. Called after an interrupt, so its end is signaled."""
        self.process.release_reply()
        return bool(self._words[self._turns.slot.go] >= number)

    def has_done(self, number: int) -> bool:
        """Whether this turn is done."""
        return bool(self._words[self._turns.slot.done] >= number)

    @property
    def is_busy(self) -> bool:
        """Whether the last turn that was started is not done."""
        return not self.has_done(self.next_turn() - 1)

    @property
    def has_more(self) -> bool:
        """Whether a reply goes with what the last turn wrote to the columns."""
        return bool(self._words[self._turns.slot.more])

    def _begin(
        self,
        method: str,
        *args: Any,
        rows: slice | list[int] | None = None,
        is_held: bool = False,
    ) -> int:
        """Start a turn with a call of the actor; `rows` are those whose columns it returns."""
        number = self.next_turn()
        self._reply = None

        def finish(value: Any) -> None:
            words, slot = self._words, self._turns.slot
            if words[slot.done] >= number:
                return  # it was delivered just before an interrupt
            if rows is not None:
                assert self._shared is not None
                value = write_step(self._shared, rows, value)
            self._reply = value
            words[slot.more] = value is not None
            words[slot.done] = number
            self._turns.event.notify()

        if self.process.is_gone:
            raise self.process.lost()
        with uninterrupted():
            self.process.submit(method, *args, on_reply=finish, is_held=is_held)
            self._words[self._turns.slot.go] = number
        return number

    # Messages

    def share(
        self,
        shared: SharedColumns,
        memory: SharedMemory,  # noqa: ARG002 - of another machine than the actor's
        fill: Mapping[int, Any],
        timeout_s: float | None,
    ) -> None:
        """Fix the columns, and wait until the actor has done so too.

        Raises:
            WorkerLostError: It is gone, or an environment's code took longer than `timeout_s`.
        """
        self._shared = shared
        columns = shared.layout, shared.acts.kinds, len(shared.rewards), fill
        self.drain(timeout_s)
        self._owes_reply = True
        self._begin("share", pack_by_value(columns))
        self.reply(timeout_s=timeout_s)

    def pack(self, *message: Any) -> bytes:
        """Pickle a message so that the actor can read it."""
        return self._pickles.pack(message)

    def send(
        self, *message: Any, packed: bytes | None = None, timeout_s: float | None = None
    ) -> None:
        """Start a turn with a message, once the last one is done.

        Raises:
            WorkerLostError: It is gone, or an environment's code took longer than `timeout_s`.
            OptionError: The message cannot be pickled; nothing was sent.
        """
        name, *args = message
        if packed is None:
            try:
                packed = self.pack(*message)
            except Exception as error:
                raise OptionError(
                    f"The arguments of {name}() cannot be sent to a Ray worker: "
                    f"{format_error(error)}"
                ) from error
        self.drain(timeout_s)
        self._owes_reply = True
        if name == "step":
            self._begin_step(packed, slice(self._rows.start, self._rows.stop), len(self._rows))
        elif name == "step_some":
            self._begin_step(packed, list(args[0]), len(args[0]))
        else:
            self._begin("call", packed)

    def _begin_step(self, packed: bytes, rows: slice | list[int], count: int) -> None:
        self._begin("step", packed, rows, count, rows=rows)

    def drain(self, timeout_s: float | None) -> None:
        """Receive the reply to the last message, if the wait for it was interrupted.

        Raises:
            WorkerLostError: It is gone, or an environment's code took longer than `timeout_s`.
        """
        if self._owes_reply:
            self._receive(timeout_s)

    def reply(self, *message: Any, timeout_s: float | None = None) -> Any:
        """Wait for the reply to a message, which may have to be sent again, and return it.

        The first reply is the report of the actor's environments.

        Raises:
            WorkerLostError: It is gone, or an environment's code took longer than `timeout_s`.
        """
        return self._pickles.read_reply(
            lambda: self._receive(timeout_s),
            lambda: self.send(*message, timeout_s=timeout_s),
            self.process.end,
        )

    def _receive(self, timeout_s: float | None) -> bytes:
        """Return the reply to the last turn. May be called again after an interrupt."""
        if not self._has_started:
            report = self.process.await_start().report
            self._has_started = True
            return report
        number = self.next_turn() - 1
        self.process.wait_for(lambda: self.has_done(number), code_s=timeout_s)
        self._owes_reply = False
        reply: bytes = self._reply
        return reply

    # The end

    def request_close(self) -> None:
        """Send it a request to close its environments."""
        with contextlib.suppress(WorkerLostError):
            self.send("close")

    def await_close(self, timeout_s: float) -> Exception | None:
        """Wait until it has done so, and end it; return what failed, if anything did."""
        failure: Exception | None = None
        number = self.next_turn() - 1
        try:
            if self.process.wait_for(lambda: self.has_done(number), at_most_s=timeout_s):
                self.reply("close")
        except WorkerLostError:
            pass  # it is gone already
        except Exception as error:  # noqa: BLE001 - an author's close; the others go on
            failure = error
        finally:
            self.process.end()
        return failure

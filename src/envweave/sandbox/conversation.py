"""What host and session say to each other, as the host sees it. No I/O.

A driver sends what `start_*` returns, feeds in what it reads, and does what it is told: send
bytes, run a tool, hand over a result. Everything that a session says is hostile. What does not
answer the call under way is dropped, what cannot be read ends the session, and nothing that a
session sends makes the host hold more than one message and the first tools that were called.
"""

from __future__ import annotations

import math
import os
import struct
import time
from collections.abc import Callable
from typing import Any, final

from envweave.errors import BranchError, OptionError, PlainDataError
from envweave.sandbox import asking, endings
from envweave.sandbox.broker import Broker, Wanted, refusal
from envweave.sandbox.endings import Ending, EndingError
from envweave.sandbox.frames import Frames
from envweave.sandbox.limits import LONGEST_S, Limits
from envweave.sandbox.messages import (
    HEADER_BYTES,
    Called,
    Finished,
    Get,
    ListFiles,
    Put,
    ReadFile,
    Replied,
    Run,
    WriteFile,
)
from envweave.sandbox.packages import warn_of_import
from envweave.sandbox.plain import encode, pack, read_from_session
from envweave.sandbox.results import ExecutionResult
from envweave.sandbox.telling import is_plain_success, result_of, unsaid
from envweave.sandbox.tools import Tools

_IDS = struct.Struct("<16Q")
_LEAST_ASK_S = 2.0
_LEAST_BRANCH_S = 10.0
"""What runs no code of the agent's has this long, however short the time for code: it may be the
machine that is slow."""

_ROOM = 8 << 10
_MOST_ROOM = 256 << 10


@final
class Reply:
    """What came of a call that is no `run`."""

    __slots__ = ("error", "value")

    def __init__(self, value: Any, error: Exception | None = None) -> None:
        self.value = value
        self.error = error


Move = ExecutionResult | Reply | Wanted | bytes
"""What to do next: return a result or a reply, run a tool, send bytes."""


@final
class Conversation:
    """One session's calls, one after the other.

    Args:
        explain: Says why an import of a module failed, if it is for the author to know.

    Attributes:
        limits: What the session may use.
        start_s: When the call under way began, by the clock.
        deadline_s: When `due` must be asked.
        ending: Why the session is gone; `None` while it lives.
        worked_on: Whether it worked while no run was open; the next result says so.
    """

    def __init__(
        self,
        limits: Limits,
        tools: Tools,
        *,
        work: str | None = None,
        explain: Callable[[str], str | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self.start_s = 0.0
        self.deadline_s = math.inf
        self.ending: Ending | None = None
        self._broker = Broker(limits, tools, clock)
        self._work = work
        self._explain = explain
        self._clock = clock
        self._frames = Frames(limits.message_bytes)
        self._ids: list[int] = []
        self._id = -1
        self._call = ""
        self._reading: asking.Reading | None = None  # `None` while code runs
        self._is_open = False
        self._timeout_s = 0.0
        self._is_late = self._is_hurried = False
        self.worked_on = False

    @property
    def is_open(self) -> bool:
        """Whether a call waits for its reply."""
        return self._is_open

    def start_run(self, code: Any, timeout_s: float | None) -> bytes | ExecutionResult:
        """Return what to send so that the code runs; or the result, if it cannot even be sent.

        Raises:
            OptionError: No such time can be kept.
            PlainDataError: The code is not text.
            SandboxError: The session is gone.
        """
        if self.ending is not None:
            raise self.ending.error("run()")
        limit_s = self.limits.timeout_s if timeout_s is None else _seconds(timeout_s)
        if type(code) is not str:
            raise PlainDataError(f"run({type(code).__name__}): code is text.")
        start_s = self.start_s = self._clock()
        if not self._ids:
            self._ids.extend(_IDS.unpack(os.urandom(_IDS.size)))
        number = self._ids.pop() >> 2
        try:
            frame = encode(Run(number, code))
        except UnicodeEncodeError:
            return unsaid("SyntaxError", "The code holds half of a surrogate pair.", ())
        if len(frame) - HEADER_BYTES > self.limits.message_bytes:
            text = f"The code is longer than Limits(message_bytes={self.limits.message_bytes})."
            return unsaid("MessageLimit", text, ("message",))
        self._id = number
        self._call = "run()"
        self._reading = None
        self._is_open = True
        self._timeout_s = limit_s
        self.deadline_s = start_s + limit_s
        self._is_late = self._is_hurried = False
        self._broker.start_over()
        return frame

    def start_get(self, name: Any) -> bytes:
        """Return what to send to get a variable's value.

        Raises:
            OptionError: No variable can have this name.
            SandboxError: The session is gone.
        """
        call = f"get({name!r})"
        known = asking.variable(name, call)
        return self._start(call, lambda number: Get(number, known), asking.as_anything)

    def start_put(self, name: Any, value: Any) -> bytes:
        """Return what to send to set a variable.

        Raises:
            OptionError: No variable can have this name, or the value is too large.
            PlainDataError: The value is not plain data.
            SandboxError: The session is gone.
        """
        call = f"put({name!r})"
        known, packed = asking.variable(name, call), pack(value, name=f"{call}: value")
        return self._start(call, lambda number: Put(number, known, packed), asking.as_nothing)

    def start_read(self, path: Any) -> bytes:
        """Return what to send to read a file.

        Raises:
            OptionError: The path leads out of the work folder.
            SandboxError: The session is gone.
        """
        call = f"read_file({path!r})"
        inside = asking.file_path(path, self._work, call)
        return self._start(call, lambda number: ReadFile(number, inside), asking.as_bytes)

    def start_write(self, path: Any, data: Any) -> bytes:
        """Return what to send to write a file.

        Raises:
            OptionError: The path leads out of the work folder, or the content is too large.
            PlainDataError: The content is no bytes.
            SandboxError: The session is gone.
        """
        call = f"write_file({path!r})"
        inside = asking.file_path(path, self._work, call)
        content = asking.content(data, call)
        return self._start(
            call, lambda number: WriteFile(number, inside, content), asking.as_nothing
        )

    def start_list(self, path: Any) -> bytes:
        """Return what to send to list the files below a folder.

        Raises:
            OptionError: The path leads out of the work folder.
            SandboxError: The session is gone.
        """
        call = f"list_files({path!r})"
        inside = asking.work_path(path, self._work, call)
        return self._start(call, lambda number: ListFiles(number, inside), asking.as_paths)

    def prepare_branch(self, seed: Any) -> float:
        """Make sure that the session can be copied now; return until when that may take.

        Raises:
            OptionError: No such seed can be used.
            BranchError: It is in the middle of a message.
            SandboxError: The session is gone.
        """
        if self.ending is not None:
            raise self.ending.error("branch()")
        asking.seed_of(seed, "branch")
        if not self._frames.is_empty:
            raise BranchError(
                "branch() while a thread of the session calls a tool. End the thread, or run "
                "something that waits for it."
            )
        self.start_s = self._clock()
        return self.start_s + max(self.limits.timeout_s, _LEAST_BRANCH_S)

    def _start(self, call: str, message: Callable[[int], Any], reading: asking.Reading) -> bytes:
        if self.ending is not None:
            raise self.ending.error(call)
        number = int.from_bytes(os.urandom(8), "little") >> 2
        frame = encode(message(number))
        if len(frame) - HEADER_BYTES > self.limits.message_bytes:
            raise OptionError(
                f"{call}: this takes {len(frame):,} bytes, and what goes in at once is at most "
                f"Limits(message_bytes={self.limits.message_bytes}). Send it in pieces."
            )
        self._id = number
        self._call = call
        self._reading = reading
        self._is_open = True
        self._is_late = self._is_hurried = False
        self.start_s = self._clock()
        self._timeout_s = max(self.limits.timeout_s, _LEAST_ASK_S)
        self.deadline_s = self.start_s + self._timeout_s
        return frame

    def room(self) -> int:
        """Return how many bytes to read at once. Room that stays empty costs time to make."""
        frames = self._frames
        if frames.is_empty:
            return _ROOM
        return min(max(_ROOM, frames.missing), _MOST_ROOM)

    def receive(self, data: bytes) -> Move | None:
        """Take what was read, and return what to do first; then ask `next`.

        Raises:
            EndingError: The session is to be killed.
        """
        self._frames.feed(data)
        return self.next()

    def next(self) -> Move | None:
        """Return what to do next; `None` if there is nothing until more is read.

        Raises:
            EndingError: The session is to be killed.
        """
        while True:
            try:
                data = self._frames.next()
                if data is None:
                    return None
                said: Any = read_from_session(data)
            except Exception:  # noqa: BLE001 - hostile bytes may raise whatever a decoder can
                raise EndingError(endings.of_violation("what cannot be read")) from None
            kind = type(said)
            if kind is Called:
                return self._called(said, len(data))
            if kind is Finished:
                if said.id == self._id and self._is_open and self._reading is None:
                    return self._finished(said)
            elif kind is Replied:
                if said.id == self._id and self._is_open and self._reading is not None:
                    return self._replied(said, self._reading)
            else:
                raise EndingError(endings.of_violation("what only a new session says"))

    def _finished(self, said: Finished) -> ExecutionResult:
        self._is_open = False
        duration_s = self._clock() - self.start_s
        broker = self._broker
        is_unusual = self._is_late or broker.is_overdrawn or self.worked_on
        if is_plain_success(said, self.limits) and not is_unusual:
            return ExecutionResult(
                success=True,
                stdout=said.stdout,
                stderr=said.stderr,
                return_value=said.value if said.plain else None,
                return_repr=said.shown,
                duration_s=duration_s,
                tool_calls=broker.calls(),
            )
        worked_on, self.worked_on = self.worked_on, False
        if self._explain is not None:
            warn_of_import(said.failure, self._explain)
        return result_of(
            said,
            self.limits,
            duration_s,
            broker.calls(),
            is_late=self._is_late,
            is_hurried=self._is_hurried,
            overcalled=broker.is_overdrawn,
            worked_on=worked_on,
        )

    def _replied(self, said: Replied, reading: asking.Reading) -> Reply:
        if said.failure is not None:
            reply = Reply(None, asking.failure_error(self._call, said.failure))
        else:
            try:
                reply = Reply(reading(said.value))
            except TypeError as error:
                raise EndingError(endings.of_violation(str(error))) from None
        self._is_open = False
        return reply

    def _called(self, said: Called, size: int) -> Wanted | bytes:
        if self._is_open and self._reading is None:
            return self._broker.look_up(said, size)
        return refusal(said, "RuntimeError: No code is running.")

    def answer(self, wanted: Wanted, value: Any) -> bytes:
        """Return what to send now that a tool returned."""
        return self._broker.answer(wanted, value)

    def fail(self, wanted: Wanted, why: str) -> bytes:
        """Return what to send now that a tool failed."""
        return self._broker.fail(wanted, why)

    def due(self) -> None:
        """Take note that the deadline has passed: the code is to be interrupted, and has a new one.

        Raises:
            EndingError: It was interrupted before, and is to be killed.
        """
        if self._is_hurried:
            raise EndingError(endings.of_interrupt(self.limits))
        if self._is_late:
            if self._reading is None:
                raise EndingError(endings.of_time(self.limits, self._timeout_s))
            raise EndingError(endings.of_silence(self.limits, self._timeout_s))
        self._is_late = True
        self.deadline_s = self._clock() + self.limits.grace_s

    @property
    def is_interrupted(self) -> bool:
        """Whether the code under way was told to end."""
        return self._is_late or self._is_hurried

    def hurry(self) -> None:
        """Take note that the caller interrupted the code, which has the grace period left."""
        if not (self._is_late or self._is_hurried):
            self._is_hurried = True
            self.deadline_s = min(self.deadline_s, self._clock() + self.limits.grace_s)

    def abandon(self) -> None:
        """Take note that the call under way was given up, and the session with it."""
        self._is_open = False
        if self.ending is None:
            self.ending = endings.ABANDONED

    def end(self, ending: Ending) -> ExecutionResult:
        """Take note that the session is gone; return what the run under way came to.

        Raises:
            SandboxError: No code was running, or the session was lost to no fault of its code.
        """
        if self.ending is None:
            self.ending = ending
        is_open, self._is_open = self._is_open, False
        if ending.is_lost or not is_open or self._reading is not None:
            raise ending.error(self._call or "The session")
        limits_hit = ending.limits_hit
        if self._broker.is_overdrawn:
            limits_hit = (*limits_hit, "tool_calls")
        if self.worked_on:
            limits_hit = (*limits_hit, "idle")
        return ExecutionResult(
            success=False,
            exception_type=ending.type,
            exception_message=ending.message,
            duration_s=self._clock() - self.start_s,
            limits_hit=limits_hit,
            session_ended=True,
            tool_calls=self._broker.calls(),
        )


def _seconds(timeout_s: Any) -> float:
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if is_number and 0 < timeout_s <= LONGEST_S:
        return float(timeout_s)
    raise OptionError(
        f"run(timeout_s={timeout_s!r}): expected seconds above 0, and at most {LONGEST_S:g}."
    )

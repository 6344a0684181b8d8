"""What host and session say to each other, as the host sees it. No I/O.

A driver sends what `start_*` returns, feeds in what it reads, and does what it is told: send
bytes, run a tool, hand over a result. Everything that a session says is hostile. What does not
answer the call under way is dropped, what cannot be read ends the session, and nothing that a
session sends makes the host hold more than one message and the first tools that were called.
"""

from __future__ import annotations

import math
import os
import posixpath
import struct
import time
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, final

from envweave.errors import (
    BranchError,
    NameNotFoundError,
    OptionError,
    PlainDataError,
    SandboxError,
    WorkFileError,
)
from envweave.sandbox.host.packages import warn_of_import
from envweave.sandbox.limits import LONGEST_S, Limits
from envweave.sandbox.protocol import termination
from envweave.sandbox.protocol.broker import Broker, ToolInvocation, refusal
from envweave.sandbox.protocol.framing import Frames
from envweave.sandbox.protocol.messages import (
    HEADER_BYTES,
    Called,
    Failure,
    Get,
    ListFiles,
    Put,
    ReadFile,
    Replied,
    Run,
    RunFinished,
    WriteFile,
)
from envweave.sandbox.protocol.plain_values import encode, pack, read_from_session
from envweave.sandbox.protocol.termination import Termination, TerminationError
from envweave.sandbox.results import ExecutionResult, Limit, ToolCall
from envweave.sandbox.tools import SandboxTools

_SLACK_BYTES = 512
"""A session adds to cut output how much was lost."""

_TYPE_CHARACTERS = 200
_TEXT_BYTES = 64 << 10
"""How long what is said of a value or an exception may be. A session keeps to less."""

_NO_SPACE = ("[Errno 27]", "[Errno 28]", "[Errno 122]")


def result_of(
    said: RunFinished,
    limits: Limits,
    duration_s: float,
    tool_calls: tuple[ToolCall, ...],
    *,
    is_late: bool,
    is_hurried: bool,
    overcalled: bool,
    worked_on: bool,
) -> ExecutionResult:
    """Return the result of a run. Texts longer than the limits allow are cut here too."""
    most = limits.output_bytes + _SLACK_BYTES
    failure = said.failure
    stdout, stderr = _cut(said.stdout, most), _cut(said.stderr, most)
    is_cut = said.cut or len(stdout) < len(said.stdout) or len(stderr) < len(said.stderr)
    limits_hit: list[Limit] = ["time"] if is_late else []
    if failure is not None:
        limits_hit += _limits_of(failure)
        if is_hurried and said.interrupted:
            failure = Failure("Interrupted", "The caller interrupted the code.", failure.traceback)
    if is_cut:
        limits_hit.append("output")
    if overcalled:
        limits_hit.append("tool_calls")
    if worked_on:
        limits_hit.append("idle")
    return ExecutionResult(
        success=failure is None,
        stdout=stdout,
        stderr=stderr,
        return_value=said.value if said.plain and failure is None else None,
        return_repr=None if said.shown is None else _cut(said.shown, _TEXT_BYTES),
        exception_type=None if failure is None else failure.type[:_TYPE_CHARACTERS],
        exception_message=None if failure is None else _cut(failure.message, _TEXT_BYTES),
        traceback=None if failure is None else _cut(failure.traceback, _TEXT_BYTES),
        duration_s=duration_s,
        limits_hit=tuple(limits_hit),
        tool_calls=tool_calls,
    )


def is_plain_success(said: RunFinished, limits: Limits) -> bool:
    """Whether all that was said can be taken as it is: the quick way, which most runs go."""
    shown = said.shown
    length = len(said.stdout) + len(said.stderr) + (0 if shown is None else len(shown))
    return said.failure is None and not said.cut and 4 * length <= limits.output_bytes


def unsaid(kind: str, message: str, limits_hit: tuple[Limit, ...]) -> ExecutionResult:
    """Return the result of code that could not be sent. The session is unharmed."""
    return ExecutionResult(
        success=False, exception_type=kind, exception_message=message, limits_hit=limits_hit
    )


def _limits_of(failure: Failure) -> list[Limit]:
    """Return the limit that an exception tells of."""
    if failure.type == "MemoryError":
        return ["memory"]
    if failure.type == "OSError" and failure.message.startswith(_NO_SPACE):
        return ["disk"]
    return []


def _cut(text: str, most: int) -> str:
    if len(text) * 4 <= most:
        return text
    data = text.encode()
    return text if len(data) <= most else data[:most].decode(errors="ignore")


_IDS = struct.Struct("<16Q")
_LEAST_ASK_S = 2.0
_LEAST_BRANCH_S = 10.0
"""What runs no code of the agent's has this long, however short the time for code: it may be the
machine that is slow."""

_ROOM = 8 << 10
_MOST_ROOM = 256 << 10


@final
class SessionReply:
    """What came of a call that is no `run`."""

    __slots__ = ("error", "value")

    def __init__(self, value: Any, error: Exception | None = None) -> None:
        self.value = value
        self.error = error


Move = ExecutionResult | SessionReply | ToolInvocation | bytes
"""What to do next: return a result or a reply, run a tool, send bytes."""


@final
class SessionProtocol:
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
        tools: SandboxTools,
        *,
        work: str | None = None,
        explain: Callable[[str], str | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self.start_s = 0.0
        self.deadline_s = math.inf
        self.ending: Termination | None = None
        self._broker = Broker(limits, tools, clock)
        self._work = work
        self._explain = explain
        self._clock = clock
        self._frames = Frames(limits.message_bytes)
        self._ids: list[int] = []
        self._id = -1
        self._call = ""
        self._reading: Reading | None = None  # `None` while code runs
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
        known = variable(name, call)
        return self._start(call, lambda number: Get(number, known), as_anything)

    def start_put(self, name: Any, value: Any) -> bytes:
        """Return what to send to set a variable.

        Raises:
            OptionError: No variable can have this name, or the value is too large.
            PlainDataError: The value is not plain data.
            SandboxError: The session is gone.
        """
        call = f"put({name!r})"
        known, packed = variable(name, call), pack(value, name=f"{call}: value")
        return self._start(call, lambda number: Put(number, known, packed), as_nothing)

    def start_read(self, path: Any) -> bytes:
        """Return what to send to read a file.

        Raises:
            OptionError: The path leads out of the work folder.
            SandboxError: The session is gone.
        """
        call = f"read_file({path!r})"
        inside = file_path(path, self._work, call)
        return self._start(call, lambda number: ReadFile(number, inside), as_bytes)

    def start_write(self, path: Any, data: Any) -> bytes:
        """Return what to send to write a file.

        Raises:
            OptionError: The path leads out of the work folder, or the content is too large.
            PlainDataError: The content is no bytes.
            SandboxError: The session is gone.
        """
        call = f"write_file({path!r})"
        inside = file_path(path, self._work, call)
        content = file_content(data, call)
        return self._start(call, lambda number: WriteFile(number, inside, content), as_nothing)

    def start_list(self, path: Any) -> bytes:
        """Return what to send to list the files below a folder.

        Raises:
            OptionError: The path leads out of the work folder.
            SandboxError: The session is gone.
        """
        call = f"list_files({path!r})"
        inside = work_path(path, self._work, call)
        return self._start(call, lambda number: ListFiles(number, inside), as_paths)

    def prepare_branch(self, seed: Any) -> float:
        """Make sure that the session can be copied now; return until when that may take.

        Raises:
            OptionError: No such seed can be used.
            BranchError: It is in the middle of a message.
            SandboxError: The session is gone.
        """
        if self.ending is not None:
            raise self.ending.error("branch()")
        seed_of(seed, "branch")
        if not self._frames.is_empty:
            raise BranchError(
                "branch() while a thread of the session calls a tool. End the thread, or run "
                "something that waits for it."
            )
        self.start_s = self._clock()
        return self.start_s + max(self.limits.timeout_s, _LEAST_BRANCH_S)

    def _start(self, call: str, message: Callable[[int], Any], reading: Reading) -> bytes:
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
                raise TerminationError(termination.of_violation("what cannot be read")) from None
            kind = type(said)
            if kind is Called:
                return self._called(said, len(data))
            if kind is RunFinished:
                if said.id == self._id and self._is_open and self._reading is None:
                    return self._finished(said)
            elif kind is Replied:
                if said.id == self._id and self._is_open and self._reading is not None:
                    return self._replied(said, self._reading)
            else:
                raise TerminationError(termination.of_violation("what only a new session says"))

    def _finished(self, said: RunFinished) -> ExecutionResult:
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

    def _replied(self, said: Replied, reading: Reading) -> SessionReply:
        if said.failure is not None:
            reply = SessionReply(None, failure_error(self._call, said.failure))
        else:
            try:
                reply = SessionReply(reading(said.value))
            except TypeError as error:
                raise TerminationError(termination.of_violation(str(error))) from None
        self._is_open = False
        return reply

    def _called(self, said: Called, size: int) -> ToolInvocation | bytes:
        if self._is_open and self._reading is None:
            return self._broker.look_up(said, size)
        return refusal(said, "RuntimeError: No code is running.")

    def answer(self, wanted: ToolInvocation, value: Any) -> bytes:
        """Return what to send now that a tool returned."""
        return self._broker.answer(wanted, value)

    def fail(self, wanted: ToolInvocation, why: str) -> bytes:
        """Return what to send now that a tool failed."""
        return self._broker.fail(wanted, why)

    def due(self) -> None:
        """Take note that the deadline has passed: the code is to be interrupted, and has a new one.

        Raises:
            EndingError: It was interrupted before, and is to be killed.
        """
        if self._is_hurried:
            raise TerminationError(termination.of_interrupt(self.limits))
        if self._is_late:
            if self._reading is None:
                raise TerminationError(termination.of_time(self.limits, self._timeout_s))
            raise TerminationError(termination.of_silence(self.limits, self._timeout_s))
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
            self.ending = termination.ABANDONED

    def end(self, ending: Termination) -> ExecutionResult:
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


Reading = Callable[[Any], Any]
"""Returns the value of a reply. A `TypeError` says that no session of ours sends such a one."""

_TEXT_LIMIT = 2000
_FILE_CALLS = ("read_file", "write_file", "list_files")
_FILE_ERRORS = (
    "FileExistsError",
    "FileNotFoundError",
    "IsADirectoryError",
    "NotADirectoryError",
    "OSError",
    "PermissionError",
)


def work_path(path: Any, work: str | None, call: str) -> str:
    """Return a path of the work folder, relative to it.

    Raises:
        OptionError: It leads elsewhere, or is no path.
    """
    if isinstance(path, PurePath):
        path = str(path)
    if not isinstance(path, str) or "\0" in path:
        raise OptionError(f"{call}: a path is text without NUL characters.")
    inside = path
    if path.startswith("/"):
        if work is None or not (path + "/").startswith(work.rstrip("/") + "/"):
            where = f", or begins with {work}" if work else ""
            raise OptionError(
                f"{call}: the path leads out of the session. It is relative to the work "
                f"folder{where}."
            )
        inside = path[len(work.rstrip("/")) :].lstrip("/")
    if not is_inside(inside or "."):
        raise OptionError(
            f"{call}: a path is relative to the work folder, and does not go up with '..'."
        )
    try:
        inside.encode()
    except UnicodeEncodeError:
        raise OptionError(f"{call}: a path is text that UTF-8 can say.") from None
    return posixpath.normpath(inside) if inside else "."


def is_inside(path: str) -> bool:
    """Whether a relative path stays in its folder, whoever joins the two."""
    return bool(path) and path[0] != "/" and "\0" not in path and ".." not in path.split("/")


def file_path(path: Any, work: str | None, call: str) -> str:
    """Return the path of a file of the work folder, relative to it.

    Raises:
        OptionError: It leads elsewhere, or is no path of a file.
    """
    inside = work_path(path, work, call)
    if inside == "." or str(path).endswith("/"):
        raise OptionError(f"{call}: this names a folder. Name a file in it.")
    return inside


def variable(name: Any, call: str) -> str:
    """Return the name of a variable.

    Raises:
        OptionError: No variable can have it.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise OptionError(f"{call}: a variable's name is a Python identifier.")
    return name


def seed_of(seed: Any, call: str) -> int | None:
    """Return a seed.

    Raises:
        OptionError: It is none.
    """
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 63:
        raise OptionError(f"{call}(seed={seed!r}): expected a whole number from 0 to 2**63 - 1.")
    return seed


def file_content(data: Any, call: str) -> bytes:
    """Return what a file is to hold.

    Raises:
        PlainDataError: It is no bytes.
    """
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise PlainDataError(
        f"{call}: a file holds bytes, and this is {type(data).__name__}. Encode text first."
    )


def as_anything(value: Any) -> Any:
    """Read plain data."""
    return value


def as_nothing(value: Any) -> None:
    """Read the reply to what returns nothing."""
    if value is not None:
        raise TypeError("a value where there is none")


def as_bytes(value: Any) -> bytes:
    """Read what a file holds."""
    if type(value) is not bytes:
        raise TypeError("a file that is not bytes")
    return value


def as_paths(value: Any) -> list[str]:
    """Read paths. Whoever joins one of them to a folder stays in that folder."""
    if type(value) is not list or not all(type(path) is str and is_inside(path) for path in value):
        raise TypeError("a list of files that are none of its own")
    return value


def failure_error(call: str, failure: Failure) -> SandboxError:
    """Return the error for a call that the session could not carry out, in its own words."""
    text = failure.message[:_TEXT_LIMIT]
    if failure.type == "NameError":
        return NameNotFoundError(f"{call}: {text}")
    if failure.type == "PlainDataError":
        return PlainDataError(f"{call}: {text}")
    if failure.type in _FILE_ERRORS or (
        failure.type == "ValueError" and call.startswith(_FILE_CALLS)
    ):
        return WorkFileError(f"{call}: {text}")
    return SandboxError(f"{call}: {failure.type[:100]}: {text}")

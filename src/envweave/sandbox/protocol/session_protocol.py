"""The host's side of the protocol with a session, without I/O.

A driver sends what `start_*` returns, feeds in what it reads, and performs the returned moves:
send bytes, run a tool, hand over a result. Everything that a session sends is hostile. A message
that does not answer the call under way is dropped, one that cannot be decoded ends the session,
and nothing a session sends makes the host hold more than one message and the record of its tool
calls.
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
from envweave.sandbox.execution import LONGEST_S, ExecutionResult, Limit, Limits, ToolCall
from envweave.sandbox.host.packages import warn_of_import
from envweave.sandbox.protocol import termination
from envweave.sandbox.protocol.broker import Broker, ToolInvocation, refusal
from envweave.sandbox.protocol.decoding import read_from_session
from envweave.sandbox.protocol.encoding import encode, pack
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
from envweave.sandbox.protocol.termination import Termination, TerminationError
from envweave.sandbox.tools import SandboxTools

_SLACK_BYTES = 512
"""Truncated output ends with a note of how much was lost."""

_TYPE_CHARACTERS = 200
_TEXT_BYTES = 64 << 10
"""The longest `repr`, message or traceback. Our own sessions send less."""

_NO_SPACE = ("[Errno 27]", "[Errno 28]", "[Errno 122]")


def result_of(
    message: RunFinished,
    limits: Limits,
    duration_s: float,
    tool_calls: tuple[ToolCall, ...],
    *,
    is_late: bool,
    is_interrupt_requested: bool,
    over_call_limit: bool,
    worked_while_idle: bool,
) -> ExecutionResult:
    """Return the result of a run. Texts longer than the limits are truncated here too."""
    max_bytes = limits.output_bytes + _SLACK_BYTES
    failure = message.failure
    stdout, stderr = _truncate(message.stdout, max_bytes), _truncate(message.stderr, max_bytes)
    is_cut = message.cut or len(stdout) < len(message.stdout) or len(stderr) < len(message.stderr)
    limits_hit: list[Limit] = ["time"] if is_late else []
    if failure is not None:
        limits_hit += _limits_of(failure)
        if is_interrupt_requested and message.interrupted:
            failure = Failure("Interrupted", "The caller interrupted the code.", failure.traceback)
    if is_cut:
        limits_hit.append("output")
    if over_call_limit:
        limits_hit.append("tool_calls")
    if worked_while_idle:
        limits_hit.append("idle")
    return ExecutionResult(
        success=failure is None,
        stdout=stdout,
        stderr=stderr,
        return_value=message.value if message.plain and failure is None else None,
        return_repr=None if message.shown is None else _truncate(message.shown, _TEXT_BYTES),
        exception_type=None if failure is None else failure.type[:_TYPE_CHARACTERS],
        exception_message=None if failure is None else _truncate(failure.message, _TEXT_BYTES),
        traceback=None if failure is None else _truncate(failure.traceback, _TEXT_BYTES),
        duration_s=duration_s,
        limits_hit=tuple(limits_hit),
        tool_calls=tool_calls,
    )


def is_plain_success(message: RunFinished, limits: Limits) -> bool:
    """Whether the message can be used as it is: the fast path, which most runs take."""
    shown = message.shown
    length = len(message.stdout) + len(message.stderr) + (0 if shown is None else len(shown))
    return message.failure is None and not message.cut and 4 * length <= limits.output_bytes


def unsendable(kind: str, message: str, limits_hit: tuple[Limit, ...]) -> ExecutionResult:
    """Return the result of code that could not be sent. The session is unharmed."""
    return ExecutionResult(
        success=False, exception_type=kind, exception_message=message, limits_hit=limits_hit
    )


def _limits_of(failure: Failure) -> list[Limit]:
    """Return the limit that an exception stands for."""
    if failure.type == "MemoryError":
        return ["memory"]
    if failure.type == "OSError" and failure.message.startswith(_NO_SPACE):
        return ["disk"]
    return []


def _truncate(text: str, max_bytes: int) -> str:
    if len(text) * 4 <= max_bytes:
        return text
    data = text.encode()
    return text if len(data) <= max_bytes else data[:max_bytes].decode(errors="ignore")


_IDS = struct.Struct("<16Q")
_MIN_REQUEST_S = 2.0
_MIN_BRANCH_S = 10.0
"""Time for calls that run none of the agent's code, however short `timeout_s` is: the machine may
be slow."""

_READ_BYTES = 8 << 10
_MAX_READ_BYTES = 256 << 10


@final
class SessionReply:
    """The outcome of a call other than `run`."""

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
        explain: Returns why an import of a module failed, where the author should know.

    Attributes:
        limits: What the session may use.
        start_s: When the call under way began, by the clock.
        deadline_s: When `on_deadline` must be called.
        termination: Why the session is gone; `None` while it lives.
        worked_while_idle: Whether it used CPU while no run was open; the next result reports it.
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
        self.termination: Termination | None = None
        self._broker = Broker(limits, tools, clock)
        self._work = work
        self._explain = explain
        self._clock = clock
        self._frames = Frames(limits.message_bytes)
        self._ids: list[int] = []
        self._id = -1
        self._call = ""
        self._read_reply: ReplyReader | None = None  # `None` while code runs
        self._is_open = False
        self._timeout_s = 0.0
        self._is_late = self._is_interrupt_requested = False
        self.worked_while_idle = False

    @property
    def is_open(self) -> bool:
        """Whether a call waits for its reply."""
        return self._is_open

    def start_run(
        self, code: Any, timeout_s: float | None, *, counted: bool = True
    ) -> bytes | ExecutionResult:
        """Return the frame that runs the code; or a result, if the code cannot be sent.

        Raises:
            OptionError: `timeout_s` is not a valid number of seconds.
            PlainDataError: The code is not a `str`.
            SandboxError: The session is gone.
        """
        if self.termination is not None:
            raise self.termination.error("run()")
        limit_s = self.limits.timeout_s if timeout_s is None else _seconds(timeout_s)
        if type(code) is not str:
            raise PlainDataError(f"run({type(code).__name__}): code must be a str.")
        start_s = self.start_s = self._clock()
        if not self._ids:
            self._ids.extend(_IDS.unpack(os.urandom(_IDS.size)))
        number = self._ids.pop() >> 2
        try:
            frame = encode(Run(number, code, counted))
        except UnicodeEncodeError:
            return unsendable("SyntaxError", "The code contains half of a surrogate pair.", ())
        if len(frame) - HEADER_BYTES > self.limits.message_bytes:
            text = f"The code is longer than Limits(message_bytes={self.limits.message_bytes})."
            return unsendable("MessageLimit", text, ("message",))
        self._id = number
        self._call = "run()"
        self._read_reply = None
        self._is_open = True
        self._timeout_s = limit_s
        self.deadline_s = start_s + limit_s
        self._is_late = self._is_interrupt_requested = False
        self._broker.reset()
        return frame

    def start_get(self, name: Any) -> bytes:
        """Return the frame that requests the value of a variable.

        Raises:
            OptionError: The name is not a valid identifier.
            SandboxError: The session is gone.
        """
        call = f"get({name!r})"
        identifier = variable(name, call)
        return self._start(call, lambda number: Get(number, identifier), as_anything)

    def start_put(self, name: Any, value: Any) -> bytes:
        """Return the frame that sets a variable.

        Raises:
            OptionError: The name is not a valid identifier, or the value is too large.
            PlainDataError: The value is not plain data.
            SandboxError: The session is gone.
        """
        call = f"put({name!r})"
        identifier, packed = variable(name, call), pack(value, name=f"{call}: value")
        return self._start(call, lambda number: Put(number, identifier, packed), as_nothing)

    def start_read(self, path: Any) -> bytes:
        """Return the frame that requests the content of a file.

        Raises:
            OptionError: The path leads out of the work folder.
            SandboxError: The session is gone.
        """
        call = f"read_file({path!r})"
        inside = file_path(path, self._work, call)
        return self._start(call, lambda number: ReadFile(number, inside), as_bytes)

    def start_write(self, path: Any, data: Any) -> bytes:
        """Return the frame that writes a file.

        Raises:
            OptionError: The path leads out of the work folder, or the content is too large.
            PlainDataError: The content is not bytes.
            SandboxError: The session is gone.
        """
        call = f"write_file({path!r})"
        inside = file_path(path, self._work, call)
        content = file_content(data, call)
        return self._start(call, lambda number: WriteFile(number, inside, content), as_nothing)

    def start_list(self, path: Any) -> bytes:
        """Return the frame that lists the files below a folder.

        Raises:
            OptionError: The path leads out of the work folder.
            SandboxError: The session is gone.
        """
        call = f"list_files({path!r})"
        inside = work_path(path, self._work, call)
        return self._start(call, lambda number: ListFiles(number, inside), as_paths)

    def prepare_branch(self, seed: Any, *, reseed: bool = True) -> float:
        """Make sure that the session can be copied now; return the deadline for that.

        Raises:
            OptionError: The seed is not valid, or has no effect.
            BranchError: It is in the middle of a message.
            SandboxError: The session is gone.
        """
        if self.termination is not None:
            raise self.termination.error("branch()")
        if seed_of(seed, "branch") is not None and not reseed:
            raise OptionError(
                f"branch(seed={seed!r}, reseed=False): with reseed=False the copy continues the "
                "random sequences of this session, so it takes no seed."
            )
        if not self._frames.is_empty:
            raise BranchError(
                "branch() while a thread of the session is calling a tool. End the thread, or run "
                "code that waits for it."
            )
        self.start_s = self._clock()
        return self.start_s + max(self.limits.timeout_s, _MIN_BRANCH_S)

    def _start(self, call: str, message: Callable[[int], Any], read_reply: ReplyReader) -> bytes:
        if self.termination is not None:
            raise self.termination.error(call)
        number = int.from_bytes(os.urandom(8), "little") >> 2
        frame = encode(message(number))
        if len(frame) - HEADER_BYTES > self.limits.message_bytes:
            raise OptionError(
                f"{call}: the message has {len(frame):,} bytes, more than "
                f"Limits(message_bytes={self.limits.message_bytes}). Send it in pieces."
            )
        self._id = number
        self._call = call
        self._read_reply = read_reply
        self._is_open = True
        self._is_late = self._is_interrupt_requested = False
        self.start_s = self._clock()
        self._timeout_s = max(self.limits.timeout_s, _MIN_REQUEST_S)
        self.deadline_s = self.start_s + self._timeout_s
        return frame

    def read_size(self) -> int:
        """Return how many bytes to read at once. Allocating more than is needed costs time."""
        frames = self._frames
        if frames.is_empty:
            return _READ_BYTES
        return min(max(_READ_BYTES, frames.missing), _MAX_READ_BYTES)

    def receive(self, data: bytes) -> Move | None:
        """Take what was read and return the first move; get the rest from `next`.

        Raises:
            TerminationError: The session must be killed.
        """
        self._frames.feed(data)
        return self.next()

    def next(self) -> Move | None:
        """Return the next move; `None` if more must be read first.

        Raises:
            TerminationError: The session must be killed.
        """
        while True:
            try:
                data = self._frames.next()
                if data is None:
                    return None
                message: Any = read_from_session(data)
            except Exception:  # noqa: BLE001 - hostile bytes may raise whatever a decoder can
                raise TerminationError(termination.of_violation("an unreadable message")) from None
            kind = type(message)
            if kind is Called:
                return self._called(message, len(data))
            if kind is RunFinished:
                if message.id == self._id and self._is_open and self._read_reply is None:
                    return self._finished(message)
            elif kind is Replied:
                if message.id == self._id and self._is_open and self._read_reply is not None:
                    return self._replied(message, self._read_reply)
            else:
                raise TerminationError(termination.of_violation("a message of a new session"))

    def _finished(self, message: RunFinished) -> ExecutionResult:
        self._is_open = False
        duration_s = self._clock() - self.start_s
        broker = self._broker
        is_unusual = self._is_late or broker.is_over_limit or self.worked_while_idle
        if is_plain_success(message, self.limits) and not is_unusual:
            return ExecutionResult(
                success=True,
                stdout=message.stdout,
                stderr=message.stderr,
                return_value=message.value if message.plain else None,
                return_repr=message.shown,
                duration_s=duration_s,
                tool_calls=broker.calls(),
            )
        worked_while_idle, self.worked_while_idle = self.worked_while_idle, False
        if self._explain is not None:
            warn_of_import(message.failure, self._explain)
        return result_of(
            message,
            self.limits,
            duration_s,
            broker.calls(),
            is_late=self._is_late,
            is_interrupt_requested=self._is_interrupt_requested,
            over_call_limit=broker.is_over_limit,
            worked_while_idle=worked_while_idle,
        )

    def _replied(self, message: Replied, read_reply: ReplyReader) -> SessionReply:
        if message.failure is not None:
            reply = SessionReply(None, failure_error(self._call, message.failure))
        else:
            try:
                reply = SessionReply(read_reply(message.value))
            except TypeError as error:
                raise TerminationError(termination.of_violation(str(error))) from None
        self._is_open = False
        return reply

    def _called(self, message: Called, size: int) -> ToolInvocation | bytes:
        if self._is_open and self._read_reply is None:
            return self._broker.look_up(message, size)
        return refusal(message, "RuntimeError: No code is running.")

    def answer(self, invocation: ToolInvocation, value: Any) -> bytes:
        """Return the frame to send for what a tool returned."""
        return self._broker.answer(invocation, value)

    def fail(self, invocation: ToolInvocation, why: str) -> bytes:
        """Return the frame to send for a tool that failed."""
        return self._broker.fail(invocation, why)

    def on_deadline(self) -> None:
        """Record that the deadline has passed: interrupt the code, which now has the grace period.

        Raises:
            TerminationError: It was interrupted before, and must be killed.
        """
        if self._is_interrupt_requested:
            raise TerminationError(termination.of_interrupt(self.limits))
        if self._is_late:
            if self._read_reply is None:
                raise TerminationError(termination.of_time(self.limits, self._timeout_s))
            raise TerminationError(termination.of_silence(self.limits, self._timeout_s))
        self._is_late = True
        self.deadline_s = self._clock() + self.limits.grace_s

    @property
    def is_interrupted(self) -> bool:
        """Whether the running code has been interrupted."""
        return self._is_late or self._is_interrupt_requested

    def request_interrupt(self) -> None:
        """Record that the caller interrupts the code, which now has the grace period."""
        if not (self._is_late or self._is_interrupt_requested):
            self._is_interrupt_requested = True
            self.deadline_s = min(self.deadline_s, self._clock() + self.limits.grace_s)

    def abandon(self) -> None:
        """Record that the call under way was given up, and the session with it."""
        self._is_open = False
        if self.termination is None:
            self.termination = termination.ABANDONED

    def end(self, reason: Termination) -> ExecutionResult:
        """Record that the session is gone; return the result of the run under way.

        Raises:
            SandboxError: No code was running, or the session was lost and not because of its code.
        """
        if self.termination is None:
            self.termination = reason
        is_open, self._is_open = self._is_open, False
        if reason.is_lost or not is_open or self._read_reply is not None:
            raise reason.error(self._call or "The session")
        limits_hit = reason.limits_hit
        if self._broker.is_over_limit:
            limits_hit = (*limits_hit, "tool_calls")
        if self.worked_while_idle:
            limits_hit = (*limits_hit, "idle")
        return ExecutionResult(
            success=False,
            exception_type=reason.type,
            exception_message=reason.message,
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
        f"run(timeout_s={timeout_s!r}): expected seconds, more than 0 and at most {LONGEST_S:g}."
    )


ReplyReader = Callable[[Any], Any]
"""Returns the value of a reply. A `TypeError` means that no session of ours sends such a value."""

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
    """Return a path in the work folder, relative to it.

    Raises:
        OptionError: It leads elsewhere, or is not a path.
    """
    if isinstance(path, PurePath):
        path = str(path)
    if not isinstance(path, str) or "\0" in path:
        raise OptionError(f"{call}: the path must be a str or a Path without NUL characters.")
    inside = path
    if path.startswith("/"):
        if work is None or not (path + "/").startswith(work.rstrip("/") + "/"):
            hint = f", or starts with {work}" if work else ""
            raise OptionError(
                f"{call}: the path is outside the session. It must be relative to the work "
                f"folder{hint}."
            )
        inside = path[len(work.rstrip("/")) :].lstrip("/")
    if not is_inside(inside or "."):
        raise OptionError(f"{call}: the path must be relative to the work folder, without '..'.")
    try:
        inside.encode()
    except UnicodeEncodeError:
        raise OptionError(f"{call}: the path cannot be encoded as UTF-8.") from None
    return posixpath.normpath(inside) if inside else "."


def is_inside(path: str) -> bool:
    """Whether a relative path stays below the folder that it is joined to."""
    return bool(path) and path[0] != "/" and "\0" not in path and ".." not in path.split("/")


def file_path(path: Any, work: str | None, call: str) -> str:
    """Return the path of a file in the work folder, relative to it.

    Raises:
        OptionError: It leads elsewhere, or is not the path of a file.
    """
    inside = work_path(path, work, call)
    if inside == "." or str(path).endswith("/"):
        raise OptionError(f"{call}: the path is a folder. Name a file in it.")
    return inside


def variable(name: Any, call: str) -> str:
    """Return the name of a variable.

    Raises:
        OptionError: It is not a valid identifier.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise OptionError(f"{call}: the name of a variable must be a Python identifier.")
    return name


def seed_of(seed: Any, call: str) -> int | None:
    """Return a seed.

    Raises:
        OptionError: It is not valid.
    """
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 63:
        raise OptionError(f"{call}(seed={seed!r}): expected an integer from 0 to 2**63 - 1.")
    return seed


def file_content(data: Any, call: str) -> bytes:
    """Return the content of a file to write.

    Raises:
        PlainDataError: It is not bytes.
    """
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise PlainDataError(
        f"{call}: the content must be bytes, got {type(data).__name__}. Encode text first."
    )


def as_anything(value: Any) -> Any:
    """Read plain data."""
    return value


def as_nothing(value: Any) -> None:
    """Read the reply to a call that returns nothing."""
    if value is not None:
        raise TypeError("a value where none was expected")


def as_bytes(value: Any) -> bytes:
    """Read the content of a file."""
    if type(value) is not bytes:
        raise TypeError("a file whose content is not bytes")
    return value


def as_paths(value: Any) -> list[str]:
    """Read relative paths. Joined to a folder, each stays below that folder."""
    if type(value) is not list or not all(type(path) is str and is_inside(path) for path in value):
        raise TypeError("paths that lead out of its work folder")
    return value


def failure_error(call: str, failure: Failure) -> SandboxError:
    """Return the error for a call that the session could not carry out, with its message."""
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

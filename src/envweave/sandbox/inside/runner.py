"""The main loop of a session: it runs cells and serves the host's requests, beside hostile code.

The code may replace whatever it can reach. So everything that the loop needs is bound when this
module is imported, before any code runs, and what fails is reported to the host.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, final

from msgspec.structs import replace

from envweave.sandbox.inside.cells import Cells
from envweave.sandbox.inside.channel import SessionChannel, TooLargeError
from envweave.sandbox.inside.interrupts import Interrupts
from envweave.sandbox.inside.output import CapturedOutput, TextStream
from envweave.sandbox.inside.reprs import show_briefly, show_failure, show_value
from envweave.sandbox.inside.seeding import reseed
from envweave.sandbox.inside.tool_stubs import ToolError, make_tool
from envweave.sandbox.inside.work_files import WorkFiles
from envweave.sandbox.protocol.encoding import OWN, encode, pack
from envweave.sandbox.protocol.messages import (
    DESCRIPTOR,
    Begin,
    Branch,
    Failure,
    Get,
    ListFiles,
    Put,
    ReadFile,
    Replied,
    Run,
    RunFinished,
    SpawnRequest,
    ToolAnswer,
    ToolSignature,
    ToSession,
    WriteFile,
)

if TYPE_CHECKING:
    import msgspec


__builtins__ = OWN

_RESERVE_BYTES = 4 << 20
_map = mmap.mmap


@final
class MemoryReserve:
    """A few megabytes that count against the limit and, never touched, use no memory."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self.fill()

    def fill(self) -> None:
        """Allocate it again, if it was released and there is room."""
        if self._memory is None:
            with suppress(OSError, MemoryError):
                self._memory = _map(-1, _RESERVE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def release(self) -> None:
        """Free it for the next allocation."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()


_pack = pack
_get_trace = sys.gettrace
_set_trace = sys.settrace
_get_profile = sys.getprofile
_set_profile = sys.setprofile
_get_recursion_limit = sys.getrecursionlimit
_set_recursion_limit = sys.setrecursionlimit
_MIN_RECURSION_LIMIT = 500  # more than anything here needs
_TRIES = 3


@final
class SessionRunner:
    """A session. It is made in the template, and started in a process behind its walls.

    Args:
        request: The parameters of a session; others may have another work folder and user.
        statuses: The memory to which the status of descriptors 1 and 2 is written before `start`.

    Attributes:
        namespace: The variables of the code.
        on_branch: Called with each `Branch` message; it sends the replies itself.
    """

    def __init__(
        self, request: SpawnRequest, statuses: tuple[bytearray, bytearray] | None = None
    ) -> None:
        self._interrupts = Interrupts()
        self._channel = SessionChannel(request.message_bytes, self._interrupts)
        self._cells = Cells()
        self._files = WorkFiles(request.message_bytes)
        self._reserve = MemoryReserve()
        self._stdout = CapturedOutput(1, request.output_bytes)
        self._stderr = CapturedOutput(2, request.output_bytes)
        self._recursion_limit: int | None = None
        self.namespace = self._cells.namespace
        self.on_branch: Callable[[Branch], None] = self._refuse_branch
        sys.stdout = sys.__stdout__ = TextStream(self._stdout, 1, "<stdout>")  # type: ignore[misc, assignment]
        sys.stderr = sys.__stderr__ = TextStream(self._stderr, 2, "<stderr>")  # type: ignore[misc, assignment]
        self.namespace["ToolError"] = ToolError
        self._statuses = statuses
        self._work = ""
        if statuses is not None:
            self._use(request.work)

    def start(self, request: SpawnRequest) -> None:
        """Initialize after the fork. All before this may happen in the template."""
        if request.work != self._work:  # what is written to is copied
            self._use(request.work)
        os.register_at_fork(after_in_child=self._detach_child)
        reseed(request.seed)

    def _use(self, work: str) -> None:
        self._work = work
        self._files.start(work)
        stdout, stderr = self._statuses or (None, None)
        self._stdout.start(work, stdout)
        self._stderr.start(work, stderr)

    def _begin(self, seed: int | None, tools: list[ToolSignature]) -> None:
        self._cells.forget()  # what it ran while it was kept warm
        for signature in tools:
            tool = make_tool(signature, self._channel, self._interrupts)
            self.namespace[signature.name] = tool
        reseed(seed)

    def send(self, message: msgspec.Struct) -> None:
        """Send a message to the host."""
        self._channel.send(message)

    def receive(self) -> ToSession:
        """Return the next message of the host; exit if the host is gone."""
        return self._channel.receive()

    def reset_after_fork(self) -> None:
        """Drop what belongs to the process that this one was forked from: all but variables."""
        self._channel.reset()
        self._stdout.reset_after_fork()
        self._stderr.reset_after_fork()
        self._cells.reset_after_fork()

    def async_state(self) -> tuple[int, set[int]]:
        """Return how many asyncio tasks are not done, and the descriptors of event loops."""
        return self._cells.async_state()

    def serve(self) -> NoReturn:
        """Serve the host until it hangs up."""
        while True:
            self.serve_next()

    def serve_next(self) -> None:
        """Serve the next message of the host."""
        message = self._channel.receive()
        if type(message) is Run:
            self._run(message)
        elif type(message) is ToolAnswer:
            self._channel.deliver(message)
        elif type(message) is Branch:
            self.on_branch(message)
        elif type(message) is Begin:
            self._begin(message.seed, message.tools)
        else:
            self._reply(message)

    def forget(self) -> None:
        """Forget all cells, as if none had run."""
        self._cells.forget()
        self._channel.reset()

    def _run(self, message: Run) -> None:
        value: Any = None
        plain = True
        shown: str | None = None
        failure: Failure | None = None
        self._stdout.reopen()
        self._stderr.reopen()
        self._channel.share()
        self._reserve.fill()
        if self._recursion_limit is not None:
            self._lower_recursion_limit()
        self._interrupts.begin()
        try:
            try:
                value = self._cells.run(message.code, message.counted)
            except BaseException as error:  # noqa: BLE001 - the code may raise anything
                if _get_trace() is not None:
                    _set_trace(None)  # before calling any function, which it would trace
                self._undo_hooks()
                if isinstance(error, MemoryError):
                    self._reserve.release()
                failure = show_failure(error)
            else:
                if _get_trace() is not None:
                    _set_trace(None)
                self._undo_hooks()
                if value is not None:
                    shown = show_value(value)
                    value, plain = _as_plain(value)
        except BaseException as error:  # noqa: BLE001 - interrupted, or no memory left to format it
            self._reserve.release()
            value, plain = None, shown is None
            failure = failure or show_briefly(error)
        interrupted = self._interrupts.end()
        if interrupted and failure is None:
            failure = _INTERRUPT_IGNORED
        stdout, out_cut = self._stdout.take()
        stderr, err_cut = self._stderr.take()
        self._send_finished(
            RunFinished(
                message.id,
                stdout,
                stderr,
                value,
                plain,
                shown,
                failure,
                out_cut or err_cut,
                interrupted,
            )
        )

    def _send_finished(self, finished: RunFinished) -> None:
        try:
            self._channel.send(finished)
        except (MemoryError, TooLargeError):
            self._reserve.release()
            self._send_smaller(finished)

    def _send_smaller(self, finished: RunFinished) -> None:
        """Send it without its value, and if that is too large, without its output."""
        dropped: dict[str, Any] = {"value": None, "plain": False}
        silent: dict[str, Any] = {**dropped, "stdout": "", "stderr": "", "cut": True}
        bare: dict[str, Any] = {**silent, "shown": None, "failure": _TOO_LARGE}
        for changed in (dropped, silent, bare):
            try:
                self._channel.send(replace(finished, **changed))
            except TooLargeError:
                continue
            return

    def _reply(self, message: ToSession) -> None:
        value: Any = None
        failure: Failure | None = None
        try:
            value = self._serve_request(message)
        except BaseException as error:  # noqa: BLE001 - reported to the host
            self._reserve.release()
            failure = show_failure(error)
        try:
            self._channel.send(Replied(message.id, failure, value))  # type: ignore[union-attr]
        except (MemoryError, TooLargeError) as error:
            self._reserve.release()
            failure = Failure("PlainDataError", f"The value is too large to be sent: {error}", "")
            self._channel.send(Replied(message.id, failure, None))  # type: ignore[union-attr]

    def _serve_request(self, message: ToSession) -> Any:
        if isinstance(message, Get):
            if message.name not in self.namespace:
                raise NameError(f"name {message.name!r} is not defined")
            return _pack(self.namespace[message.name], name=message.name)
        if isinstance(message, Put):
            self.namespace[message.name] = message.value
            return None
        if isinstance(message, ReadFile):
            return _pack(self._files.read(message.path))
        if isinstance(message, WriteFile):
            self._files.write(message.path, message.content)
            return None
        if isinstance(message, ListFiles):
            return _pack(self._files.list(message.path))
        raise TypeError("An unknown message.")

    def _undo_hooks(self) -> None:
        """Undo settings of the code that would make the runner's own functions fail."""
        for _ in range(_TRIES):
            try:
                if _get_profile() is None:
                    break
                _set_profile(None)
            except BaseException:  # noqa: BLE001, S112 - a profiler that raises is removed
                continue
        limit = _get_recursion_limit()
        if limit < _MIN_RECURSION_LIMIT:
            self._recursion_limit = limit
            _set_recursion_limit(_MIN_RECURSION_LIMIT)

    def _lower_recursion_limit(self) -> None:
        limit, self._recursion_limit = self._recursion_limit, None
        with suppress(RecursionError):
            _set_recursion_limit(limit)  # type: ignore[arg-type]

    def _detach_child(self) -> None:
        """Detach from the host: this process was forked by the code."""
        self._channel.disconnect()
        self._stdout.pass_through()
        self._stderr.pass_through()

    def _refuse_branch(self, message: Branch) -> None:
        failure = Failure("BranchError", "This session cannot be copied.", "")
        self._channel.send(Replied(message.id, failure, None))


_INTERRUPT_IGNORED = Failure(
    "TimeLimit",
    "The code exceeded its time limit, and continued after it was interrupted.",
    "",
)
_TOO_LARGE = Failure("ValueError", "The result of the code is too large to be sent.", "")


def _as_plain(value: Any) -> tuple[Any, bool]:
    try:
        return _pack(value), True
    except Exception:  # noqa: BLE001 - a dict that a thread changes, an array that does not fit
        return None, False


_WARM_UP_RUNS = 30
"""More than the interpreter takes to specialize a function."""

_ANSWER_BYTES = 1 << 16


def warm_up(runner: SessionRunner) -> None:
    """Run some cells in the template as a session would, and forget them."""
    ours, theirs = socket.socketpair()
    with ours, theirs, _restoring((1, 2, DESCRIPTOR)):
        os.dup2(theirs.fileno(), DESCRIPTOR)
        for number in range(_WARM_UP_RUNS):
            ours.sendall(encode(Run(number, f"_ = {number}\nprint(_)\n_")))
            runner.serve_next()
            ours.recv(_ANSWER_BYTES)
    runner.forget()


@contextlib.contextmanager
def _restoring(numbers: tuple[int, ...]) -> Iterator[None]:
    """Restore these descriptors afterwards; close those that are closed now."""
    copies: dict[int, int] = {}
    for number in numbers:
        with contextlib.suppress(OSError):
            copies[number] = os.dup(number)
    try:
        yield
    finally:
        for number in numbers:
            if number in copies:
                os.dup2(copies[number], number, inheritable=os.get_inheritable(number))
                os.close(copies[number])
            else:
                os.closerange(number, number + 1)

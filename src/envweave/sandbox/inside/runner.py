"""The loop of a session: what the host asks for is done here, among the code's own objects.

The code may replace whatever it can reach. So what the loop needs is bound when this module is
imported, before any code runs, and what it cannot do is told to the host as a failure.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, final

from msgspec.structs import replace

from envweave.sandbox.inside.cells import Cells
from envweave.sandbox.inside.channel import SessionChannel, TooLargeError
from envweave.sandbox.inside.interrupts import Interrupts
from envweave.sandbox.inside.output import Kept, TextStream
from envweave.sandbox.inside.reprs import show_briefly, show_failure, show_value
from envweave.sandbox.inside.seeding import reseed
from envweave.sandbox.inside.tool_stubs import ToolError, make_tool
from envweave.sandbox.inside.work_files import WorkFiles
from envweave.sandbox.protocol.encoding import OWN
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
from envweave.sandbox.protocol.plain_values import encode, pack

if TYPE_CHECKING:
    import msgspec


__builtins__ = OWN

_BYTES = 4 << 20
_map = mmap.mmap


@final
class MemoryReserve:
    """A few megabytes that count against the limit and, never touched, take none."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self.fill()

    def fill(self) -> None:
        """Take it again, if it was spent and there is room."""
        if self._memory is None:
            with suppress(OSError, MemoryError):
                self._memory = _map(-1, _BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def spend(self) -> None:
        """Give it back to whoever asks for memory next."""
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
_RECURSION = 500  # more than anything here takes
_TRIES = 3


@final
class SessionRunner:
    """A session. It is made in the template, and started in a process whose walls stand.

    Attributes:
        namespace: The variables of the code.
        on_branch: Called with each `Branch` message; it answers by itself.
    """

    def __init__(self, request: SpawnRequest) -> None:
        self._interrupts = Interrupts()
        self._line = SessionChannel(request.message_bytes, self._interrupts)
        self._cells = Cells()
        self._files = WorkFiles(request.message_bytes)
        self._reserve = MemoryReserve()
        self._stdout = Kept(1, request.output_bytes)
        self._stderr = Kept(2, request.output_bytes)
        self._recursion_limit: int | None = None
        self.namespace = self._cells.namespace
        self.on_branch: Callable[[Branch], None] = self._refuse_branch
        sys.stdout = sys.__stdout__ = TextStream(self._stdout, 1, "<stdout>")  # type: ignore[misc, assignment]
        sys.stderr = sys.__stderr__ = TextStream(self._stderr, 2, "<stderr>")  # type: ignore[misc, assignment]
        self.namespace["ToolError"] = ToolError

    def start(self, request: SpawnRequest) -> None:
        """Be the session of this process. What came before may have been done in the template."""
        self._files.start(request.work)
        self._stdout.start(request.work)
        self._stderr.start(request.work)
        os.register_at_fork(after_in_child=self._be_child)
        reseed(request.seed)

    def _begin(self, seed: int | None, tools: list[ToolSignature]) -> None:
        for face in tools:
            self.namespace[face.name] = make_tool(face, self._line, self._interrupts)
        reseed(seed)

    def send(self, message: msgspec.Struct) -> None:
        """Send a message to the host."""
        self._line.send(message)

    def receive(self) -> ToSession:
        """Return the next message of the host; end this process if there is no host any more."""
        return self._line.receive()

    def start_over(self) -> None:
        """Forget what belongs to the process of which this one is a copy: all but variables."""
        self._line.start_over()
        self._stdout.start_over()
        self._stderr.start_over()
        self._cells.start_over()

    def serve(self) -> NoReturn:
        """Do what the host asks, until it hangs up."""
        while True:
            self.serve_next()

    def serve_next(self) -> None:
        """Do the next thing that the host asks for."""
        message = self._line.receive()
        if type(message) is Run:
            self._run(message)
        elif type(message) is ToolAnswer:
            self._line.deliver(message)
        elif type(message) is Branch:
            self.on_branch(message)
        elif type(message) is Begin:
            self._begin(message.seed, message.tools)
        else:
            self._reply(message)

    def forget(self) -> None:
        """Forget all cells, as if none had been run."""
        self._cells.forget()
        self._line.start_over()

    def _run(self, message: Run) -> None:
        value: Any = None
        plain = True
        shown: str | None = None
        failure: Failure | None = None
        self._stdout.reopen()
        self._stderr.reopen()
        self._line.share()
        self._reserve.fill()
        if self._recursion_limit is not None:
            self._lower_recursion_limit()
        self._interrupts.begin()
        try:
            try:
                value = self._cells.run(message.code)
            except BaseException as error:  # noqa: BLE001 - the code's own, whatever it is
                if _get_trace() is not None:
                    _set_trace(None)  # before any function is called, which it would trace
                self._steady()
                if isinstance(error, MemoryError):
                    self._reserve.spend()
                failure = show_failure(error)
            else:
                if _get_trace() is not None:
                    _set_trace(None)
                self._steady()
                if value is not None:
                    shown = show_value(value)
                    value, plain = _as_plain(value)
        except BaseException as error:  # noqa: BLE001 - interrupted, or no memory left to show it
            self._reserve.spend()
            value, plain = None, shown is None
            failure = failure or show_briefly(error)
        interrupted = self._interrupts.end()
        if interrupted and failure is None:
            failure = _SWALLOWED
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
            self._line.send(finished)
        except (MemoryError, TooLargeError):
            self._reserve.spend()
            self._send_smaller(finished)

    def _send_smaller(self, finished: RunFinished) -> None:
        """Send it without its value, and if that is too large, without what it printed."""
        dropped: dict[str, Any] = {"value": None, "plain": False}
        silent: dict[str, Any] = {**dropped, "stdout": "", "stderr": "", "cut": True}
        bare: dict[str, Any] = {**silent, "shown": None, "failure": _TOO_LARGE}
        for changed in (dropped, silent, bare):
            try:
                self._line.send(replace(finished, **changed))
            except TooLargeError:
                continue
            return

    def _reply(self, message: ToSession) -> None:
        value: Any = None
        failure: Failure | None = None
        try:
            value = self._do(message)
        except BaseException as error:  # noqa: BLE001 - told to the host
            self._reserve.spend()
            failure = show_failure(error)
        try:
            self._line.send(Replied(message.id, failure, value))  # type: ignore[union-attr]
        except (MemoryError, TooLargeError) as error:
            self._reserve.spend()
            failure = Failure(
                "PlainDataError", f"It is too large to leave the session: {error}", ""
            )
            self._line.send(Replied(message.id, failure, None))  # type: ignore[union-attr]

    def _do(self, message: ToSession) -> Any:
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
        raise TypeError("A message that nobody here understands.")

    def _steady(self) -> None:
        """Undo what would make the runner's own functions fail."""
        for _ in range(_TRIES):
            try:
                if _get_profile() is None:
                    break
                _set_profile(None)
            except BaseException:  # noqa: BLE001, S112 - the code's profiler; once it raised it is gone
                continue
        limit = _get_recursion_limit()
        if limit < _RECURSION:
            self._recursion_limit = limit
            _set_recursion_limit(_RECURSION)

    def _lower_recursion_limit(self) -> None:
        limit, self._recursion_limit = self._recursion_limit, None
        with suppress(RecursionError):
            _set_recursion_limit(limit)  # type: ignore[arg-type]

    def _be_child(self) -> None:
        """Part from the session: this process was forked by its code, and has no host."""
        self._line.cut()
        self._stdout.be_child()
        self._stderr.be_child()

    def _refuse_branch(self, message: Branch) -> None:
        failure = Failure("BranchError", "This session cannot be copied.", "")
        self._line.send(Replied(message.id, failure, None))


_SWALLOWED = Failure(
    "TimeLimit",
    "The code ran for longer than it may, and went on when it was told.",
    "",
)
_TOO_LARGE = Failure("ValueError", "What came of the code is too large to be sent.", "")


def _as_plain(value: Any) -> tuple[Any, bool]:
    try:
        return _pack(value), True
    except Exception:  # noqa: BLE001 - a dict that a thread changes, an array that does not fit
        return None, False


_TIMES = 30
"""More than the interpreter takes to be done with a function."""

_ANSWER_BYTES = 1 << 16


def rehearse(runner: SessionRunner) -> None:
    """Have a runner run cells and answer, as in a session, and forget them."""
    ours, theirs = socket.socketpair()
    with ours, theirs, _put_back((1, 2, DESCRIPTOR)):
        os.dup2(theirs.fileno(), DESCRIPTOR)
        for number in range(_TIMES):
            ours.sendall(encode(Run(number, f"_ = {number}\nprint(_)\n_")))
            runner.serve_next()
            ours.recv(_ANSWER_BYTES)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    runner.forget()


@contextlib.contextmanager
def _put_back(numbers: tuple[int, ...]) -> Iterator[None]:
    """Have these descriptors lead afterwards where they lead now, or nowhere."""
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

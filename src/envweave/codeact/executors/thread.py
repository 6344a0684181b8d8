"""Runs code in threads of this process: time limits and tools for its interpreters.

Each episode has a daemon thread. The event loop of the caller waits for it, answers the tools that
it calls, and interrupts it at the time limit by an exception in the thread. A thread cannot be
killed: code that does not end when it is interrupted is left behind, and its episode is over.

`InprocExecutor` and `SmolagentsExecutor` document what is not isolated.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import logging
import os
import random
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from tempfile import gettempdir
from types import TracebackType
from typing import Any, final

from numpy.random import MT19937
from numpy.random.mtrand import get_bit_generator, set_bit_generator

from envweave.codeact.executors.base import Executor, Functions
from envweave.codeact.executors.thread_output import CapturedStream, capture_output
from envweave.codeact.injected.prelude import file_functions, permission_stubs
from envweave.codeact.injected.variables import LOOK_S, read_variables
from envweave.codeact.injected.variables_inside import show
from envweave.codeact.models import Variable
from envweave.errors import SandboxError, SessionLostError
from envweave.sandbox.execution import ExecutionResult, Limits, ToolCall
from envweave.sandbox.host.work_dirs import WorkFolder, remove_tree
from envweave.sandbox.inside.cells import CELL
from envweave.sandbox.inside.channel import TooLargeError
from envweave.sandbox.inside.interrupts import TimeLimit
from envweave.sandbox.inside.reprs import show_briefly, show_failure, show_value
from envweave.sandbox.inside.seeding import reseed
from envweave.sandbox.inside.tool_stubs import ToolError, make_tool
from envweave.sandbox.processes.async_bridge import awaited, called
from envweave.sandbox.processes.polling import WATCH_S
from envweave.sandbox.protocol import termination
from envweave.sandbox.protocol.broker import LATE, Broker, ToolInvocation
from envweave.sandbox.protocol.decoding import read_from_host, read_from_session
from envweave.sandbox.protocol.encoding import encode, pack
from envweave.sandbox.protocol.messages import (
    HEADER_BYTES,
    Called,
    Failure,
    RunFinished,
    ToolAnswer,
)
from envweave.sandbox.protocol.session_protocol import result_of, unsendable
from envweave.sandbox.protocol.termination import Termination
from envweave.sandbox.tools import SandboxTools, describe_error

logger = logging.getLogger("envweave.codeact")

# A separate prototype: `ctypes.pythonapi` has one function object for the whole process.
_set_exception = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)
_TOO_LONG = "The code exceeded its time limit."
_CAUGHT = Failure("TimeLimit", f"{_TOO_LONG[:-1]}, and caught the interrupt.", "")


class Interpreter(ABC):
    """Runs the code of one episode, one piece after the other."""

    @abstractmethod
    def run(self, code: str) -> Any:
        """Run code and return the value of its last expression, or `None`."""

    @abstractmethod
    def variables(self) -> Mapping[str, Any]:
        """Return all names that are bound, by the code and for it."""

    @abstractmethod
    def format_failure(self, error: BaseException) -> Failure:
        """Return an exception of `run` as text, with the lines of the code."""

    @abstractmethod
    def close(self) -> None:
        """Forget everything. Called once, after the last `run`."""

    def wake(self) -> None:  # noqa: B027 - most have nothing to do
        """End a wait in C that the interpreter knows of, so that an interrupt can arrive."""


class ThreadExecutor(Executor):
    """Runs the code of an episode in threads of this process.

    Args:
        limits: What the code may use. Memory, open files and processes are not limited.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._episode: _Episode | None = None
        self.names: list[str] = []

    @abstractmethod
    def interpreter(self, names: Mapping[str, Any]) -> Interpreter:
        """Return the interpreter of a new episode, which has these names bound."""

    @property
    def isolation(self) -> str:
        """None."""
        return "none"

    async def begin(self, *, seed: int | None, tools: Functions, files: bool) -> None:
        """End the old episode, and start one without variables."""
        await self.close()
        self._episode = _Episode(self.interpreter, self._limits, seed, tools, files=files)
        self.names = self._episode.names

    async def run(self, code: str) -> ExecutionResult:
        """Run code among the variables of the episode."""
        if self._episode is None:
            raise SessionLostError("No episode has begun.")
        return await self._episode.run(code)

    async def variables(self) -> dict[str, Variable]:
        """Return what the code has bound; after a second, names and types only."""
        return {} if self._episode is None else await self._episode.variables()

    async def close(self) -> None:
        """End the episode, and remove its folder."""
        episode, self._episode = self._episode, None
        if episode is not None:
            await episode.close()


@final
class _Episode:
    """The code of one episode: its interpreter, tools, generators and folder.

    Attributes:
        names: The functions that code may call besides Python's own.
    """

    def __init__(
        self,
        make: Callable[[Mapping[str, Any]], Interpreter],
        limits: Limits,
        seed: int | None,
        tools: Functions,
        *,
        files: bool,
    ) -> None:
        table = SandboxTools({**tools, **permission_stubs()} if files else dict(tools))
        bound: dict[str, Any] = {"ToolError": ToolError}
        for signature in table.signatures():
            bound[signature.name] = make_tool(signature, self, self)  # type: ignore[arg-type] # has `call_tool` and `running`
        self.names = [one.name for one in table.signatures()]
        self._limits = limits
        self._broker = Broker(limits, table, time.monotonic)
        self._generators = _Generators(seed)
        self._worker = _Worker()
        self._bound = list(bound)
        self._run: _Run | None = None  # the one in progress
        self._ended: Termination | None = None
        self._called: tuple[ToolCall, ...] = ()  # since the last run, by a `__repr__`
        self._folder: WorkFolder | None = None
        if files:
            folder = WorkFolder(Path(gettempdir()), None, limits.disk_bytes, limits.files)
            # Also for an episode that is never closed.
            self._remove = weakref.finalize(folder, _remove_here, folder.path, os.getpid())
            self._folder = folder
            for name, function in file_functions(str(folder.path)).items():
                bound[name] = _with_stub(bound[name], function)
        self._interpreter = make(bound)

    async def run(self, code: str) -> ExecutionResult:
        """Run code. See `Executor.run`."""
        limit = self._limits.message_bytes
        try:
            size = len(code.encode())
        except UnicodeEncodeError:
            return unsendable("SyntaxError", "The code contains half of a surrogate pair.", ())
        if size > limit:
            text = f"The code is longer than Limits(message_bytes={limit})."
            return unsendable("MessageLimit", text, ("message",))
        before, self._called = self._called, ()
        result = await self._execute(
            functools.partial(self._interpreter.run, code), self._limits.timeout_s
        )
        result.tool_calls = before + result.tool_calls
        return result

    async def variables(self) -> dict[str, Variable]:
        """Return what the code has bound. See `Executor.variables`."""
        for call_repr in (True, False):
            if self._ended is not None:
                break
            result = await self._execute(functools.partial(self._show, call_repr=call_repr), LOOK_S)
            self._called += result.tool_calls
            if result.success:
                return read_variables(result.return_value, self._bound)
        return {}

    def _show(self, *, call_repr: bool) -> list[list[str]]:
        return show(self._interpreter.variables(), self._bound, call_repr=call_repr)

    async def close(self) -> None:
        """Clear the variables, in a thread since that may run code, and remove the folder."""
        with contextlib.suppress(SandboxError):  # code was left behind, and still uses them
            await self._execute(self._interpreter.close, self._limits.timeout_s)
        self._worker.close()
        if self._folder is not None:
            self._remove()

    async def _execute(self, do: Callable[[], Any], timeout_s: float) -> ExecutionResult:
        """Call something in a thread, and return its outcome as the result of a run.

        Raises:
            SandboxError: The episode is over.
        """
        if self._ended is not None:
            raise self._ended.error("run()")
        start_s = time.monotonic()
        self._broker.reset()
        run = self._run = _Run(do, self._interpreter, self._generators, self._limits)
        try:
            self._worker.submit(run)
            ended = await self._wait(run, start_s + timeout_s)
        except BaseException:
            await self._stop(run)
            raise
        finally:
            self._run = None
        duration_s = time.monotonic() - start_s
        if ended is not None:
            self._leave_behind(run, ended)
        if run.tool_error is not None:
            raise run.tool_error
        if ended is None:
            return result_of(
                run.finished(),
                self._limits,
                duration_s,
                self._broker.calls(),
                is_late=run.is_expired,
                is_interrupt_requested=False,
                over_call_limit=self._broker.is_over_limit,
                worked_while_idle=False,
            )
        overdrawn = ("tool_calls",) if self._broker.is_over_limit else ()
        return ExecutionResult(
            success=False,
            exception_type=ended.type,
            exception_message=ended.message,
            duration_s=duration_s,
            limits_hit=(*ended.limits_hit, *overdrawn),
            session_ended=True,
            tool_calls=self._broker.calls(),
        )

    async def _wait(self, run: _Run, deadline_s: float) -> Termination | None:
        """Wait until the code ends; return the reason if it exceeds a limit and does not stop."""
        watch_s = WATCH_S if self._folder is not None else self._limits.timeout_s
        while True:
            left_s = deadline_s - time.monotonic()
            await asyncio.wait([run.done], timeout=max(0.0, min(left_s, watch_s)))
            if run.is_over:
                return None
            if self._folder is not None and self._folder.is_over():
                return termination.of_excess("disk", self._limits)
            if time.monotonic() < deadline_s:
                continue
            if run.is_expired:
                return Termination(
                    "TimeLimit",
                    f"The code ran longer than {self._limits.timeout_s:g} s, was interrupted, and "
                    f"did not stop within another {self._limits.grace_s:g} s. A thread cannot be "
                    "killed, so it was left behind.",
                    ("time",),
                )
            run.expire()
            deadline_s = time.monotonic() + self._limits.grace_s

    async def _stop(self, run: _Run) -> None:
        """Interrupt the code of a run that was cancelled, and wait for the grace period."""
        try:
            run.expire()
            await asyncio.wait([run.done], timeout=self._limits.grace_s)
        finally:
            if not run.is_over:
                self._leave_behind(run, termination.ABANDONED)

    def _leave_behind(self, run: _Run, ended: Termination) -> None:
        self._ended = ended
        self._worker.abandon()
        run.leave_behind()
        logger.warning("code did not stop when it was interrupted; its thread is left behind")

    @property
    def running(self) -> bool:
        """Whether code runs that may call tools."""
        run = self._run
        return run is not None and not run.is_expired

    def call_tool(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> ToolAnswer:
        """Have the event loop run a tool, and wait for its answer. Called by threads of code.

        Raises:
            TooLargeError: The arguments are larger than one message.
        """
        run = self._run
        if run is None:
            return ToolAnswer(0, ok=False, value="RuntimeError: No code is running.")
        # Encoded for the copy: neither side can change what the other one holds.
        data = encode(Called(0, name, args, kwargs))[HEADER_BYTES:]
        if len(data) > self._limits.message_bytes:
            raise TooLargeError(
                f"{len(data)} bytes, more than the limit of {self._limits.message_bytes}."
            )
        call: Any = read_from_session(data)
        answer: Future[bytes] = asyncio.run_coroutine_threadsafe(
            self._answer(run, call, len(data)), run.loop
        )
        message: Any = read_from_host(answer.result()[HEADER_BYTES:])
        assert isinstance(message, ToolAnswer)
        return message

    async def _answer(self, run: _Run, call: Called, size: int) -> bytes:
        """Run a tool until the time limit; return its encoded answer."""
        found = self._broker.look_up(call, size)
        if not isinstance(found, ToolInvocation):
            return found
        running = awaited(found) if found.tool.is_async else asyncio.to_thread(called, found)
        task = run.loop.create_task(running)
        try:
            either: list[asyncio.Future[Any]] = [task, run.expired]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()  # harmless if it is done
        if not task.done() or task.cancelled():
            return self._broker.fail(found, LATE)
        error = task.result().error
        if error is None:
            return self._broker.answer(found, task.result().value)
        if not isinstance(error, Exception):
            run.tool_error = error
            run.expire()
        return self._broker.fail(found, describe_error(error))


@final
class _Run:
    """One call in a thread: its output, its outcome, and how it is interrupted.

    Attributes:
        loop: The event loop that waits for it.
        done: Done when the thread is done with it.
        expired: Done when the time limit is exceeded.
        tool_error: An exception of a tool that is not an `Exception`, for the caller of the run.
    """

    def __init__(
        self,
        do: Callable[[], Any],
        interpreter: Interpreter,
        generators: _Generators,
        limits: Limits,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self.loop.create_future()
        self.expired: asyncio.Future[None] = self.loop.create_future()
        self.tool_error: BaseException | None = None
        self._do = do
        self._interpreter = interpreter
        self._generators = generators
        self._limits = limits
        self._stdout = CapturedStream(limits.output_bytes, "<stdout>")
        self._stderr = CapturedStream(limits.output_bytes, "<stderr>")
        self._thread = 0
        self._lock = threading.Lock()  # protects the three that follow
        self._is_running_code = False
        self._is_interrupted = False
        self._is_left_behind = False
        self._value: Any = None
        self._is_plain = True
        self._shown: str | None = None
        self._failure: Failure | None = None

    @property
    def is_expired(self) -> bool:
        """Whether the time limit is exceeded."""
        return self.expired.done()

    @property
    def is_over(self) -> bool:
        """Whether the thread is done with it."""
        return self.done.done()

    def expire(self) -> None:
        """Interrupt the code, then let the tools that it waits for give up. Harmless twice."""
        self._interrupt()
        _resolve(self.expired)

    def leave_behind(self) -> None:
        """Interrupt the code once more, and give back what it shares with the host."""
        with self._lock:
            self._is_left_behind = True
            self._is_interrupted = False
        self._interrupt()
        _resolve(self.expired)
        self._generators.leave()

    def _interrupt(self) -> None:
        with self._lock:
            if not self._is_running_code or self._is_interrupted:
                return
            self._is_interrupted = True
            _set_exception(self._thread, id(TimeLimit))
        self._interpreter.wake()

    def finished(self) -> RunFinished:
        """Return the outcome, when it is over."""
        failure = self._failure
        if self._is_interrupted and failure is None:
            failure = _CAUGHT
        stdout, stdout_cut = self._stdout.text()
        stderr, stderr_cut = self._stderr.text()
        return RunFinished(
            0,
            stdout,
            stderr,
            self._value,
            self._is_plain,
            self._shown,
            failure,
            stdout_cut or stderr_cut,
            self._is_interrupted,
        )

    def execute(self) -> None:
        """Do it, in the thread that calls this."""
        self._thread = threading.get_ident()
        try:
            with capture_output(self._stdout.stream(), self._stderr.stream(), self.is_left_behind):
                self._generators.enter()
                try:
                    self._evaluate()
                    self._disarm()
                except TimeLimit:  # it came after the code had ended
                    self._disarm()
                finally:
                    self._generators.leave()
        except BaseException:  # an interrupt that came late, in code that was left behind
            logger.debug("a thread of code that was left behind has ended", exc_info=True)
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(_resolve, self.done)

    def is_left_behind(self) -> bool:
        """Whether the host no longer waits for it."""
        return self._is_left_behind

    def _evaluate(self) -> None:
        """Run the code. May raise an interrupt."""
        try:
            try:
                with self._lock:
                    self._is_running_code = True
                value = self._do()
                if value is not None:
                    self._shown = show_value(value)
                    self._value, self._is_plain = _copy_plain(value, self._limits.message_bytes)
            except BaseException as error:  # noqa: BLE001 - the agent's code may raise anything
                if type(error) is TimeLimit and not error.args:
                    error.args = (_TOO_LONG,)  # the interpreter made it, without a message
                self._failure = self._interpreter.format_failure(error)
        except BaseException as error:  # noqa: BLE001 - interrupted while that was formatted
            self._failure = show_briefly(error)

    def _disarm(self) -> None:
        """Prevent further interrupts. Harmless twice."""
        with self._lock:
            self._is_running_code = False
            if self._is_interrupted:
                _set_exception(self._thread, None)  # it may not have been raised yet


@final
class _Worker:
    """The thread of an episode, started when it is first needed. Ends with this object."""

    def __init__(self) -> None:
        self._runs: SimpleQueue[_Run | None] = SimpleQueue()
        self._end = weakref.finalize(self, self._runs.put, None)
        self._end.atexit = False
        self._thread: threading.Thread | None = None

    def submit(self, run: _Run) -> None:
        """Have the thread execute a run."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=_serve, args=(self._runs,), name="envweave-code", daemon=True
            )
            self._thread.start()
        self._runs.put(run)

    def abandon(self) -> None:
        """End the thread after its current run, without waiting for it."""
        self._thread = None
        self._end()

    def close(self) -> None:
        """End the thread, which is idle."""
        self._end()
        if self._thread is not None:
            self._thread.join()


def _serve(runs: SimpleQueue[_Run | None]) -> None:
    while (run := runs.get()) is not None:
        run.execute()
        del run  # or its values would live until the next one


def _copy_plain(value: Any, limit_bytes: int) -> tuple[Any, bool]:
    """Return a copy of a value, and whether it is plain data that fits one message."""
    try:
        data = encode(ToolAnswer(0, ok=True, value=pack(value)))[HEADER_BYTES:]
        if len(data) > limit_bytes:
            return None, False
        message: Any = read_from_host(data)
    except Exception:  # noqa: BLE001 - not plain, or a dict that a thread changes
        return None, False
    return message.value, True


def without_ours(error: BaseException) -> BaseException:
    """Take the frames before the first cell, and those of this package, out of a traceback."""
    entries: list[TracebackType] = []
    entry = error.__traceback__
    while entry is not None:
        name = entry.tb_frame.f_code.co_filename
        if (entries or name.startswith(CELL)) and not name.startswith(_OURS):
            entries.append(entry)
        entry = entry.tb_next
    kept: TracebackType | None = None
    for entry in reversed(entries):
        kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return error.with_traceback(kept)


_OURS = str(Path(__file__).parent)


def format_python_failure(error: BaseException) -> Failure:
    """Return an exception as text, without frames of ours."""
    return show_failure(without_ours(error))


def _with_stub(stub: Callable[..., Any], do: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that first calls the stub on the host, which records the call."""

    @functools.wraps(stub)
    def tool(*args: Any, **kwargs: Any) -> Any:
        stub(*args, **kwargs)
        return do(*args, **kwargs)

    return tool


def _remove_here(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked process
        remove_tree(folder)


@final
class _Generators:
    """The global generators of `random` and numpy, in the state of one episode.

    They are installed while code of the episode runs; those of the host are restored after the
    last code has run. Episodes that run at the same time share the same generators meanwhile.
    """

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self._state: tuple[Any, Any] | None = None

    def enter(self) -> None:
        """Install them."""
        with _generators_lock:
            if not _installed:
                _host_states.append(_get_state())
            _installed.add(self)
            if self._state is not None:
                _set_state(self._state)
            else:
                set_bit_generator(MT19937())
                reseed(self._seed)

    def leave(self) -> None:
        """Restore those of the host, unless other code runs. Harmless twice."""
        with _generators_lock:
            if self not in _installed:
                return
            self._state = _get_state()
            _installed.remove(self)
            if not _installed:
                _set_state(_host_states.pop())


_generators_lock = threading.Lock()  # protects the two that follow
_installed: set[_Generators] = set()
_host_states: list[tuple[Any, Any]] = []  # the host's state, while another one is installed


def _get_state() -> tuple[Any, Any]:
    # Not numpy's state, which takes a tenth of a millisecond to copy.
    return random.getstate(), get_bit_generator()


def _set_state(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    set_bit_generator(state[1])


def _resolve(future: asyncio.Future[None]) -> None:
    """Resolve a future, unless it is done."""
    if not future.done():
        future.set_result(None)

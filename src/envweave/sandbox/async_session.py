"""A session for a caller on an event loop: `Session`'s twin, with no thread of its own."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, final

from envweave.errors import BranchError, BusyError, SandboxError
from envweave.sandbox.limits import Limits
from envweave.sandbox.processes.async_bridge import Outcome, awaited, called
from envweave.sandbox.processes.polling import WATCH_S, AsyncSocketPoller, release_late, settle
from envweave.sandbox.processes.process import SessionHandle
from envweave.sandbox.protocol import termination
from envweave.sandbox.protocol.broker import LATE, ToolInvocation
from envweave.sandbox.protocol.session_protocol import SessionProtocol, SessionReply
from envweave.sandbox.protocol.termination import Termination, TerminationError
from envweave.sandbox.results import ExecutionResult
from envweave.sandbox.session_base import (
    SessionFinalizer,
    closed,
    dropped,
    forked,
    has_hung_up,
    standing,
    wake,
    wake_to_branch,
)
from envweave.sandbox.tools import SandboxTools, described

_CLOSE_S = 5.0
_SEND_FLAGS = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)  # macOS has none


@final
class AsyncSession:
    """Runs code, one piece after the other, in a process of its own behind the sandbox's walls.

    The twin of `Session`; see there for what each call promises. It belongs to no event loop: each
    call uses the one it is awaited on. One call at a time: a second one is refused.

    Cancelling a call interrupts the code, waits for it to end, at most the grace period, and then
    lets the cancellation pass. Code that ended in time keeps its variables, and the session can be
    used. Otherwise, or if it is cancelled twice, the session is killed, and later calls raise
    `SessionLostError`.

    Args:
        body: Its process, whose `Ready` has been read.
        limits: What it may use.
        tools: What its code may call. An `async` function is awaited here and cancelled at the
            deadline; any other runs in a thread of the loop's, and at the deadline is waited for
            no longer.
        work: The work folder, as the code sees it.
        explain: See `SessionProtocol`.
        on_close: Called once, after the process is gone.
        adopt: Makes the session of a branch; without it, branches are like this one.
    """

    def __init__(
        self,
        body: SessionHandle,
        limits: Limits,
        tools: SandboxTools,
        *,
        work: str | None = None,
        explain: Callable[[str], str | None] | None = None,
        on_close: Callable[[], None] | None = None,
        adopt: Callable[[SessionHandle], AsyncSession] | None = None,
    ) -> None:
        self._body = body
        self._tools = tools
        self._work = work
        self._adopt = adopt
        self._talk = SessionProtocol(limits, tools, work=work, explain=explain)
        self._socket = body.socket
        self._socket.setblocking(False)  # noqa: FBT003 - the standard library's
        self._descriptor = body.socket.fileno()
        self._owner = os.getpid()
        self._look_s = 0.0
        self._is_closed = False
        self._is_half_sent = False
        self._wanted: ToolInvocation | None = None  # the tool that runs
        self._lock = threading.Lock()  # held by the call under way, and while letting go
        self._closers: list[asyncio.Future[None]] = []  # who wait for that call to let go
        self._letting_go = SessionFinalizer(body, on_close)
        body.watch(self._talk, self._lock)
        self._unclosed = weakref.finalize(self, dropped, self._letting_go)
        self._unclosed.atexit = False

    async def run(self, code: str, *, timeout_s: float | None = None) -> ExecutionResult:
        """Run code, and return what it came to. See `Session.run`."""
        self._enter("run")
        try:
            frame = self._talk.start_run(code, timeout_s)
            if type(frame) is ExecutionResult:
                return frame
            return await self._converse(frame)  # type: ignore[no-any-return, arg-type]
        finally:
            self._leave()

    async def get(self, name: str) -> Any:
        """Return the value of a variable, as plain data. See `Session.get`."""
        return await self._ask("get", self._talk.start_get, name)

    async def put(self, name: str, value: Any) -> None:
        """Set a variable to plain data. See `Session.put`."""
        await self._ask("put", self._talk.start_put, name, value)

    async def read_file(self, path: str) -> bytes:
        """Return what a file of the work folder holds. See `Session.read_file`."""
        data: bytes = await self._ask("read_file", self._talk.start_read, path)
        return data

    async def write_file(self, path: str, data: bytes) -> None:
        """Write a file of the work folder, and the folders above it. See `Session.write_file`."""
        await self._ask("write_file", self._talk.start_write, path, data)

    async def list_files(self, path: str = ".") -> list[str]:
        """Return the paths of the files below a folder, sorted. See `Session.list_files`."""
        paths: list[str] = await self._ask("list_files", self._talk.start_list, path)
        return paths

    async def branch(self, seed: int | None = None) -> AsyncSession:
        """Return a live copy. See `Session.branch`. It is made in a thread of the loop's.

        A cancellation waits until the copy is made, and ends that.
        """
        self._enter("branch")
        try:
            deadline_s = self._talk.prepare_branch(seed)
            wake_to_branch(self._body, self._talk)
            body = await self._branch(seed, deadline_s)
        finally:
            self._leave()
        if self._adopt is not None:
            return self._adopt(body)
        return AsyncSession(body, self._talk.limits, self._tools, work=self._work)

    def interrupt(self) -> None:
        """Interrupt the code that runs. See `Session.interrupt`. Harmless when nothing runs."""
        if self._talk.is_open and self._owner == os.getpid():
            self._talk.hurry()
            self._body.interrupt()

    @property
    def alive(self) -> bool:
        """Whether code can be run here: the session is not closed, ended or lost."""
        if self._is_closed or self._talk.ending is not None:
            return False
        return not has_hung_up(self._socket)

    async def close(self) -> None:
        """End the session and everything in it. May be called twice."""
        self._is_closed = True
        if self._owner != os.getpid():
            self._unclosed.detach()
            return
        if self._letting_go.is_done:
            return
        self._body.kill()
        if not self._lock.acquire(blocking=False):
            # The call under way sees the end, and lets go.
            idle = asyncio.get_running_loop().create_future()
            self._closers.append(idle)
            await asyncio.wait([idle], timeout=_CLOSE_S)
            return
        try:
            self._let_go()
        finally:
            self._lock.release()

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncSession: {standing(self._talk, is_closed=self._is_closed)}>"

    def _enter(self, call: str) -> None:
        if self._owner != os.getpid():
            raise forked(call)
        if not self._lock.acquire(blocking=False):
            raise BusyError(
                f"{call}() while another call on the same session is under way. Await that first, "
                "or take one session for each task."
            )
        if self._is_closed:
            self._leave()
            raise closed(call)

    def _leave(self) -> None:
        try:
            if self._is_closed:
                self._let_go()
        finally:
            self._lock.release()
        while self._closers:
            idle = self._closers.pop()
            idle.get_loop().call_soon_threadsafe(settle, idle)

    def _let_go(self) -> None:
        self._unclosed.detach()
        self._letting_go()

    async def _ask(self, call: str, start: Callable[..., bytes], *args: Any) -> Any:
        self._enter(call)
        try:
            reply: SessionReply = await self._converse(start(*args))
        finally:
            self._leave()
        if reply.error is not None:
            raise reply.error
        return reply.value

    async def _branch(self, seed: int | None, deadline_s: float) -> SessionHandle:
        self._socket.setblocking(True)  # noqa: FBT003 - the standard library's
        making = asyncio.ensure_future(asyncio.to_thread(self._body.branch, seed, deadline_s))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(release_late)
            try:
                await asyncio.wait([making])
            except asyncio.CancelledError:
                self._abandon()
            raise
        except SandboxError as error:
            if not isinstance(error, BranchError) or has_hung_up(self._socket):
                self._talk.ending = termination.of_branch(error)
                self._body.kill()
            raise
        except BaseException:
            self._abandon()
            raise
        finally:
            self._socket.setblocking(False)  # noqa: FBT003 - the standard library's

    async def _converse(self, frame: bytes) -> Any:
        """Send a call, do what the session asks for, and return what the call came to."""
        self._look_s = self._talk.start_s + WATCH_S
        waiting = AsyncSocketPoller(asyncio.get_running_loop(), self._descriptor)
        try:
            if self._body.is_stopped:
                wake(self._body, self._talk)
            return await self._exchange(frame, waiting, self._answer)
        except TerminationError as over:
            ending = over.ending
        except asyncio.CancelledError:
            await self._stop(waiting)
            raise
        except BaseException:
            self._abandon()
            raise
        finally:
            waiting.close()
        self._body.kill()
        return self._talk.end(termination.CLOSED if self._is_closed else ending)

    async def _exchange(
        self,
        frame: bytes | None,
        waiting: AsyncSocketPoller,
        answer: Callable[..., Awaitable[bytes]],
    ) -> Any:
        talk = self._talk
        if frame is not None:
            await self._send(frame, waiting)
        move = talk.next()  # what came between the calls
        while True:
            while move is not None:
                kind = type(move)
                if kind is ExecutionResult or kind is SessionReply:
                    return move
                if kind is ToolInvocation:
                    move = await answer(move, waiting)
                await self._send(move, waiting)  # type: ignore[arg-type]
                self._look(time.monotonic())
                move = talk.next()
            move = talk.receive(await self._receive(waiting))

    async def _stop(self, waiting: AsyncSocketPoller) -> None:
        """Interrupt the code of a call that was cancelled, and wait for its end or bring it."""
        if self._is_half_sent:
            self._abandon()
            return
        self.interrupt()
        wanted, self._wanted = self._wanted, None
        try:
            # A thread of the code may wait for the tool as well, and is not interrupted.
            answer = None if wanted is None else await self._refuse(wanted, waiting)
            await self._exchange(answer, waiting, self._refuse)
        except TerminationError as over:
            self._body.kill()
            self._talk.ending = over.ending
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        """Give up a session of which nobody knows how far it came."""
        self._talk.abandon()
        self._body.kill()

    async def _refuse(self, wanted: ToolInvocation, _waiting: AsyncSocketPoller) -> bytes:
        return self._talk.fail(wanted, "RuntimeError: The run was cancelled.")

    async def _answer(self, wanted: ToolInvocation, waiting: AsyncSocketPoller) -> bytes:
        """Run a tool, and return what to send."""
        talk = self._talk
        self._wanted = wanted
        running = awaited(wanted) if wanted.tool.is_async else asyncio.to_thread(called, wanted)
        task: asyncio.Task[Outcome] = waiting.loop.create_task(running)
        try:
            while not await waiting.done(task, talk.deadline_s - time.monotonic()):
                if time.monotonic() >= talk.deadline_s:
                    break
                self._look(time.monotonic())
        finally:
            task.cancel()  # harmless if it is done
        self._wanted = None
        now_s = time.monotonic()
        if now_s >= talk.deadline_s:
            self._look(now_s)  # the code is interrupted before it can go on
            return talk.fail(wanted, LATE)
        outcome = task.result()
        if outcome.error is None:
            return talk.answer(wanted, outcome.value)
        if not isinstance(outcome.error, Exception):
            raise outcome.error
        return talk.fail(wanted, described(outcome.error))

    def _look(self, now_s: float) -> None:
        """Interrupt code whose time is over, and look at the limits that only the host watches.

        Raises:
            EndingError: It was interrupted before, or is beyond another limit.
        """
        if self._is_closed:
            raise TerminationError(termination.CLOSED)
        if now_s >= self._talk.deadline_s:
            self._talk.due()
            self._body.interrupt()
        if now_s >= self._look_s:
            self._look_s = now_s + WATCH_S
            if self._talk.is_interrupted:
                self._body.interrupt()  # the first may have come before the code began
            excess = self._body.excess()
            if excess is not None:
                raise TerminationError(termination.of_excess(excess, self._talk.limits))

    async def _receive(self, waiting: AsyncSocketPoller) -> bytes:
        """Return what the session sends next.

        Raises:
            EndingError: It is gone, or must go.
        """
        talk = self._talk
        while True:
            now_s = time.monotonic()
            if now_s >= talk.deadline_s or now_s >= self._look_s:
                self._look(now_s)
            data = await waiting.read(talk.room(), talk.deadline_s - now_s)
            if data:
                return data
            if data is not None:
                raise TerminationError(await self._ending())

    async def _send(self, frame: bytes, waiting: AsyncSocketPoller) -> None:
        """Send a frame.

        Raises:
            EndingError: The session is gone, or does not read and must go.
        """
        rest = memoryview(frame)
        self._is_half_sent = True
        while rest:
            try:
                rest = rest[self._socket.send(rest, _SEND_FLAGS) :]
            except BlockingIOError:
                now_s = time.monotonic()
                self._look(now_s)
                await waiting.writable(self._talk.deadline_s - now_s)
            except OSError:
                raise TerminationError(await self._ending()) from None
        self._is_half_sent = False

    async def _ending(self) -> Termination:
        """Return why the process is gone. The template is asked, which may take a moment."""
        return termination.of_death(await asyncio.to_thread(self._body.death))

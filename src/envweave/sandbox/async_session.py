"""A session for a caller on an event loop: the async twin of `Session`, without its own thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, final

from envweave.errors import SandboxError
from envweave.sandbox.execution import ExecutionResult, Limits
from envweave.sandbox.processes.async_bridge import ToolReturn, awaited, called
from envweave.sandbox.processes.polling import WATCH_S, AsyncSocketPoller
from envweave.sandbox.processes.process import SessionHandle
from envweave.sandbox.protocol import termination
from envweave.sandbox.protocol.broker import LATE, ToolInvocation
from envweave.sandbox.protocol.session_protocol import SessionReply
from envweave.sandbox.protocol.termination import Termination, TerminationError
from envweave.sandbox.session_base import CLOSE_S, SEND_FLAGS, SessionBase
from envweave.sandbox.tools import SandboxTools, describe_error


@final
class AsyncSession(SessionBase["AsyncSession"]):
    """Runs pieces of code, one after the other, in its own process behind the sandbox's walls.

    The async twin of `Session`, which documents what each call promises. It is bound to no event
    loop: each call uses the loop that it is awaited on. One call at a time: a second one is
    refused.

    Cancelling a call interrupts the code, waits for it to end, at most the grace period, and then
    propagates the cancellation. Code that ended in time keeps its variables, and the session can
    be used. Otherwise, or if it is cancelled twice, the session is killed, and later calls raise
    `SessionLostError`.

    Args:
        handle: Its process, whose `Ready` has been read.
        limits: What it may use.
        tools: The host functions that its code may call. An `async` function is awaited here and
            cancelled at the deadline; any other runs in a thread of the loop's executor, and is
            not waited for after the deadline.
        work: The work folder, as the code sees it.
        explain: See `SessionProtocol`.
        on_close: Called once, after the process is gone.
        adopt: Makes the session of a branch, given its tools; without it, branches are like this
            one.
    """

    _BUSY_HINT = "Await that first, or use one session per task."

    def __init__(
        self,
        handle: SessionHandle,
        limits: Limits,
        tools: SandboxTools,
        *,
        work: str | None = None,
        explain: Callable[[str], str | None] | None = None,
        on_close: Callable[[], None] | None = None,
        adopt: Callable[[SandboxTools, SessionHandle], AsyncSession] | None = None,
    ) -> None:
        super().__init__(
            handle, limits, tools, work=work, explain=explain, on_close=on_close, adopt=adopt
        )
        self._socket.setblocking(False)  # noqa: FBT003 - the standard library's
        self._descriptor = self._socket.fileno()
        self._is_half_sent = False
        self._running: ToolInvocation | None = None
        self._closers: list[asyncio.Future[None]] = []  # waiting for the call under way to leave

    async def run(
        self, code: str, *, timeout_s: float | None = None, counted: bool = True
    ) -> ExecutionResult:
        """Run code and return its result. See `Session.run`."""
        self._enter("run")
        try:
            frame = self._protocol.start_run(code, timeout_s, counted=counted)
            if type(frame) is ExecutionResult:
                return frame
            return await self._exchange(frame)  # type: ignore[no-any-return, arg-type]
        finally:
            self._leave()

    async def get(self, name: str) -> Any:
        """Return the value of a variable, as plain data. See `Session.get`."""
        return await self._request("get", self._protocol.start_get, name)

    async def put(self, name: str, value: Any) -> None:
        """Set a variable to plain data. See `Session.put`."""
        await self._request("put", self._protocol.start_put, name, value)

    async def read_file(self, path: str) -> bytes:
        """Return the content of a file in the work folder. See `Session.read_file`."""
        data: bytes = await self._request("read_file", self._protocol.start_read, path)
        return data

    async def write_file(self, path: str, data: bytes) -> None:
        """Write a file in the work folder. See `Session.write_file`."""
        await self._request("write_file", self._protocol.start_write, path, data)

    async def list_files(self, path: str = ".") -> list[str]:
        """Return the paths of the files below a folder, sorted. See `Session.list_files`."""
        paths: list[str] = await self._request("list_files", self._protocol.start_list, path)
        return paths

    async def branch(
        self,
        seed: int | None = None,
        *,
        reseed: bool = True,
        strict: bool = False,
        tools: Mapping[str, Callable[..., Any]] | None = None,
    ) -> AsyncSession:
        """Return a live copy. See `Session.branch`. It is made in a thread of the loop's executor.

        A cancellation waits until the copy is made, and then ends the copy.
        """
        self._enter("branch")
        try:
            table = self._tools_for_branch(tools)
            deadline_s = self._start_branch(seed, reseed=reseed)
            handle = await self._branch(
                partial(self._handle.branch, seed, deadline_s, reseed=reseed, strict=strict)
            )
        finally:
            self._leave()
        if self._adopt is not None:
            return self._adopt(table, handle)
        return AsyncSession(handle, self._protocol.limits, table, work=self._work)

    async def close(self) -> None:
        """End the session and everything in it. May be called twice."""
        if not self._start_close():
            return
        if not self._lock.acquire(blocking=False):
            # The call under way sees the end, and releases the process.
            idle = asyncio.get_running_loop().create_future()
            self._closers.append(idle)
            await asyncio.wait([idle], timeout=CLOSE_S)
            return
        try:
            self._release_process()
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

    def _leave(self) -> None:
        try:
            if self._is_closed:
                self._release_process()
        finally:
            self._lock.release()
        while self._closers:
            idle = self._closers.pop()
            idle.get_loop().call_soon_threadsafe(_resolve, idle)

    async def _request(self, call: str, start: Callable[..., bytes], *args: Any) -> Any:
        self._enter(call)
        try:
            reply: SessionReply = await self._exchange(start(*args))
        finally:
            self._leave()
        if reply.error is not None:
            raise reply.error
        return reply.value

    async def _branch(self, make: Callable[[], SessionHandle]) -> SessionHandle:
        self._socket.setblocking(True)  # noqa: FBT003 - the standard library's
        making = asyncio.ensure_future(asyncio.to_thread(make))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_release_result)
            try:
                await asyncio.wait([making])
            except asyncio.CancelledError:
                self._abandon()
            raise
        except SandboxError as error:
            self._branch_failed(error)
            raise
        except BaseException:
            self._abandon()
            raise
        finally:
            self._socket.setblocking(False)  # noqa: FBT003 - the standard library's

    async def _exchange(self, frame: bytes) -> Any:
        """Send a call, serve the session's tool calls, and return the result or reply."""
        self._next_check_s = self._protocol.start_s + WATCH_S
        poller = AsyncSocketPoller(asyncio.get_running_loop(), self._descriptor)
        try:
            if self._handle.is_stopped:
                self._wake()
            return await self._serve(frame, poller, self._run_tool)
        except TerminationError as error:
            reason = error.termination
        except asyncio.CancelledError:
            await self._stop(poller)
            raise
        except BaseException:
            self._abandon()
            raise
        finally:
            poller.close()
        self._handle.kill()
        return self._protocol.end(termination.CLOSED if self._is_closed else reason)

    async def _serve(
        self,
        frame: bytes | None,
        poller: AsyncSocketPoller,
        run_tool: Callable[..., Awaitable[bytes]],
    ) -> Any:
        protocol = self._protocol
        if frame is not None:
            await self._send(frame, poller)
        move = protocol.next()  # messages that arrived between calls
        while True:
            while move is not None:
                kind = type(move)
                if kind is ExecutionResult or kind is SessionReply:
                    return move
                if kind is ToolInvocation:
                    move = await run_tool(move, poller)
                await self._send(move, poller)  # type: ignore[arg-type]
                self._check_limits(time.monotonic())
                move = protocol.next()
            move = protocol.receive(await self._receive(poller))

    async def _stop(self, poller: AsyncSocketPoller) -> None:
        """Interrupt the code of a cancelled call, and wait for it to end or kill it."""
        if self._is_half_sent:
            self._abandon()
            return
        self.interrupt()
        running, self._running = self._running, None
        try:
            # A thread of the code may wait for the tool too, and is not interrupted.
            frame = None if running is None else await self._refuse_tool(running, poller)
            await self._serve(frame, poller, self._refuse_tool)
        except TerminationError as error:
            self._handle.kill()
            self._protocol.termination = error.termination
        except BaseException:
            self._abandon()
            raise

    async def _refuse_tool(self, invocation: ToolInvocation, _poller: AsyncSocketPoller) -> bytes:
        return self._protocol.fail(invocation, "RuntimeError: The run was cancelled.")

    async def _run_tool(self, invocation: ToolInvocation, poller: AsyncSocketPoller) -> bytes:
        """Run a tool, and return the frame to send."""
        protocol = self._protocol
        self._running = invocation
        is_async = invocation.tool.is_async
        running = awaited(invocation) if is_async else asyncio.to_thread(called, invocation)
        task: asyncio.Task[ToolReturn] = poller.loop.create_task(running)
        try:
            while not await poller.done(task, protocol.deadline_s - time.monotonic()):
                if time.monotonic() >= protocol.deadline_s:
                    break
                self._check_limits(time.monotonic())
        finally:
            task.cancel()  # harmless if it is done
        self._running = None
        now_s = time.monotonic()
        if now_s >= protocol.deadline_s:
            self._check_limits(now_s)  # interrupts the code before it can continue
            return protocol.fail(invocation, LATE)
        outcome = task.result()
        if outcome.error is None:
            return protocol.answer(invocation, outcome.value)
        if not isinstance(outcome.error, Exception):
            raise outcome.error
        return protocol.fail(invocation, describe_error(outcome.error))

    async def _receive(self, poller: AsyncSocketPoller) -> bytes:
        """Return what the session sends next.

        Raises:
            TerminationError: It is gone, or must be killed.
        """
        protocol = self._protocol
        while True:
            now_s = time.monotonic()
            if now_s >= protocol.deadline_s or now_s >= self._next_check_s:
                self._check_limits(now_s)
            data = await poller.read(protocol.read_size(), protocol.deadline_s - now_s)
            if data:
                return data
            if data is not None:
                raise TerminationError(await self._exit_reason())

    async def _send(self, frame: bytes, poller: AsyncSocketPoller) -> None:
        """Send a frame.

        Raises:
            TerminationError: The session is gone, or does not read and must be killed.
        """
        rest = memoryview(frame)
        self._is_half_sent = True
        while rest:
            try:
                rest = rest[self._socket.send(rest, SEND_FLAGS) :]
            except BlockingIOError:
                now_s = time.monotonic()
                self._check_limits(now_s)
                await poller.wait_writable(self._protocol.deadline_s - now_s)
            except OSError:
                raise TerminationError(await self._exit_reason()) from None
        self._is_half_sent = False

    async def _exit_reason(self) -> Termination:
        """Return why the process is gone. This asks the template, which may take a moment."""
        return termination.of_exit(await asyncio.to_thread(self._handle.exit_reason))


def _release_result(making: asyncio.Future[SessionHandle]) -> None:
    """Release a branch whose caller was cancelled."""
    if not making.cancelled() and making.exception() is None:
        making.result().release()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

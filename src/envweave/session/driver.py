"""Running the author's code under a session's rules, from sync and from async callers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar, final

from envweave.errors import BusyError
from envweave.session.rules import Session
from envweave.types import ResetResult, State, StepResult, ToolResult

T = TypeVar("T")


class Driver:
    """What every driver knows of its environment."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.interface = session.interface
        self.tasks = session.environment.tasks

    @property
    def agents(self) -> list[str]:
        """Who takes part now."""
        return self.session.agents


@final
class SyncDriver(Driver):
    """Runs a sync environment in the caller's thread."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._reset = session.environment.reset
        self._step = session.environment.step
        self._answer = session.environment.answer

    def reset(self, **wanted: Any) -> ResetResult[Any]:
        """Begin an episode. See `Env.reset`."""
        session = self.session
        keywords = session.begin(**wanted)
        try:
            return session.started(self._reset(**keywords))
        except Exception as error:
            raise session.reset_failed(error) from error
        except BaseException:
            session.abandon()
            raise

    def step(self, action: Any) -> StepResult[Any]:
        """Take one step. See `Env.step`."""
        session = self.session
        action = session.admit(action)
        try:
            try:
                outcome = self._answer(action) if type(action) is ToolResult else self._step(action)
            except Exception as error:  # noqa: BLE001 - the author's code, the boundary itself
                result = session.fail(error)
            else:
                result = session.conclude(outcome)
            return self.go_on(result) if session.reset_due else result
        except BaseException:
            session.abandon()
            raise

    def go_on(self, result: StepResult[Any]) -> StepResult[Any]:
        """Begin the next episode, if an autoreset is due, and put it into the result."""
        session = self.session
        if not session.reset_due:
            return result
        try:
            outcome = self._reset(**session.begin_next())
        except Exception as error:  # noqa: BLE001 - the author's code, the boundary itself
            return session.join_failed(result, error)
        return session.joined(result, outcome)

    def state(self) -> State:
        """Return the environment's state."""
        return self.session.state()

    def close(self) -> None:
        """Close the environment, once."""
        if self.session.close():
            self.session.environment.close()


@final
class AsyncDriver(Driver):
    """Runs an environment, sync or async, on the caller's event loop."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        methods = session.interface.async_methods
        environment = session.environment
        self._reset = _awaitable(environment.reset, is_async="reset" in methods)
        self._step = _awaitable(environment.step, is_async="step" in methods)
        self._answer = _awaitable(environment.answer, is_async="answer" in methods)
        self._close = _awaitable(environment.close, is_async="close" in methods)
        self._running: str | None = None
        self._rest: asyncio.Event | None = None  # set when the call that runs is over

    @contextmanager
    def _alone(self, call: str) -> Iterator[None]:
        if self._running is not None:
            raise BusyError(
                f"{call}() while {self._running}() is still under way on the same environment. "
                "Await it first, or make one environment for each task."
            )
        self._running = call
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception):
                self.session.abandon()  # cancelled in the middle of the author's code
            raise
        finally:
            self._running = None
            if self._rest is not None:
                self._rest.set()

    async def reset(self, **wanted: Any) -> ResetResult[Any]:
        """Begin an episode. See `AsyncEnv.reset`."""
        session = self.session
        with self._alone("reset"):
            keywords = session.begin(**wanted)
            try:
                return session.started(await _own(self._reset(**keywords)))
            except Exception as error:
                raise session.reset_failed(error) from error

    async def step(self, action: Any) -> StepResult[Any]:
        """Take one step. See `AsyncEnv.step`."""
        session = self.session
        with self._alone("step"):
            action = session.admit(action)
            run = self._answer if type(action) is ToolResult else self._step
            try:
                outcome = await _own(run(action))
            except Exception as error:  # noqa: BLE001 - the author's code, the boundary itself
                result = session.fail(error)
            else:
                result = session.conclude(outcome)
            if not session.reset_due:
                return result
            try:
                outcome = await _own(self._reset(**session.begin_next()))
            except Exception as error:  # noqa: BLE001 - the author's code again
                return session.join_failed(result, error)
            return session.joined(result, outcome)

    async def state(self) -> State:
        """Return the environment's state."""
        return self.session.state()

    async def close(self) -> None:
        """Close the environment, once, when the call under way is over."""
        if self.session.close():
            if self._running is not None:
                self._rest = asyncio.Event()
                await self._rest.wait()
            await self._close()


@final
class LoopDriver(Driver):
    """Runs an async environment for a sync caller, on a private event loop."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._driver = AsyncDriver(session)
        self._loop = PrivateLoop()

    def reset(self, **wanted: Any) -> ResetResult[Any]:
        """Begin an episode. See `Env.reset`."""
        if self._loop.is_closed:
            self.session.begin()  # refuses
        return self._loop.run(self._driver.reset(**wanted))

    def step(self, action: Any) -> StepResult[Any]:
        """Take one step. See `Env.step`."""
        if self._loop.is_closed:
            self.session.admit(action)  # refuses
        return self._loop.run(self._driver.step(action))

    def state(self) -> State:
        """Return the environment's state."""
        return self.session.state()

    def close(self) -> None:
        """Close the environment and the loop, once."""
        if not self._loop.is_closed:
            try:
                self._loop.run(self._driver.close())
            finally:
                self._loop.close()


@final
class PrivateLoop:
    """An event loop that nobody else runs on.

    It runs in the caller's thread. Where the caller is itself inside a running loop (a
    notebook), which allows no second one in the same thread, it runs in one owned thread,
    which `close` joins.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread: ThreadPoolExecutor | None = None

    @property
    def is_closed(self) -> bool:
        """Whether `close` has been called."""
        return self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end and return what it returns. An interrupt cancels it first."""
        if self._loop.is_running():
            work.close()
            raise BusyError("Another thread is in a call on the same environment. Wait for it.")
        task = self._loop.create_task(work)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._complete(task)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="envweave-loop")
        running = self._thread.submit(self._complete, task)
        try:
            return running.result()
        except BaseException:
            if not running.done():
                self._loop.call_soon_threadsafe(task.cancel)
                wait([running])
            raise

    def _complete(self, task: asyncio.Task[T]) -> T:
        try:
            return self._run_on(task)
        except BaseException:
            if not task.done():
                task.cancel()
                self._run_on(self._loop.create_task(asyncio.wait([task])))
            raise

    def _run_on(self, task: asyncio.Task[T]) -> T:
        while True:
            try:
                return self._loop.run_until_complete(task)
            except RuntimeError:
                if task.done() or self._loop.is_closed() or self._loop.is_running():
                    raise
                # A stop was left over from a run that was interrupted; go on.

    def close(self) -> None:
        """Cancel what still runs, close the loop and join the thread."""
        try:
            self.run(self._wind_up())
        finally:
            if self._thread is not None:
                self._thread.shutdown(wait=True)
            self._loop.close()

    async def _wind_up(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()


async def _own(call: Awaitable[Any]) -> Any:
    """Await an author's coroutine; a cancellation that nobody asked for is its own failure."""
    try:
        return await call
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling() == 0:
            raise RuntimeError("something that the environment awaits was cancelled") from error
        raise


def _awaitable(call: Callable[..., Any], *, is_async: bool) -> Callable[..., Awaitable[Any]]:
    if is_async:
        return call

    async def at_once(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return at_once

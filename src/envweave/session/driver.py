"""Running the author's code under a session's rules, from sync and from async callers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
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

    def reset(
        self,
        *,
        seed: Any = None,
        task: Any = None,
        options: Mapping[str, Any] | None = None,
        episode_id: str | None = None,
    ) -> ResetResult[Any]:
        """Begin an episode. See `Env.reset`."""
        session = self.session
        keywords = session.begin(seed=seed, task=task, options=options, episode_id=episode_id)
        try:
            return session.started(self._reset(**keywords))
        except Exception as error:
            raise session.reset_failed(error) from error

    def step(self, action: Any) -> StepResult[Any]:
        """Take one step. See `Env.step`."""
        session = self.session
        action = session.admit(action)
        try:
            outcome = self._answer(action) if type(action) is ToolResult else self._step(action)
        except Exception as error:  # noqa: BLE001 - the author's code, the boundary itself
            result = session.fail(error)
        except BaseException:
            session.abandon()
            raise
        else:
            result = session.conclude(outcome)
        return self.go_on(result) if session.reset_due else result

    def go_on(self, result: StepResult[Any]) -> StepResult[Any]:
        """Begin the next episode, if an autoreset is due, and put it into the result."""
        session = self.session
        if not session.reset_due:
            return result
        keywords = session.begin_next()
        try:
            outcome = self._reset(**keywords)
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

    def _enter(self, call: str) -> None:
        if self._running is not None:
            raise BusyError(
                f"{call}() while {self._running}() is still under way on the same environment. "
                "Await it first, or make one environment for each task."
            )

    async def reset(
        self,
        *,
        seed: Any = None,
        task: Any = None,
        options: Mapping[str, Any] | None = None,
        episode_id: str | None = None,
    ) -> ResetResult[Any]:
        """Begin an episode. See `AsyncEnv.reset`."""
        self._enter("reset")
        session = self.session
        keywords = session.begin(seed=seed, task=task, options=options, episode_id=episode_id)
        self._running = "reset"
        try:
            return session.started(await self._reset(**keywords))
        except Exception as error:
            raise session.reset_failed(error) from error
        finally:
            self._running = None

    async def step(self, action: Any) -> StepResult[Any]:
        """Take one step. See `AsyncEnv.step`."""
        self._enter("step")
        session = self.session
        action = session.admit(action)
        self._running = "step"
        try:
            run = self._answer if type(action) is ToolResult else self._step
            try:
                outcome = await run(action)
            except Exception as error:  # noqa: BLE001 - the author's code, the boundary itself
                result = session.fail(error)
            else:
                result = session.conclude(outcome)
            if session.reset_due:
                keywords = session.begin_next()
                try:
                    outcome = await self._reset(**keywords)
                except Exception as error:  # noqa: BLE001 - the author's code again
                    return session.join_failed(result, error)
                return session.joined(result, outcome)
        except BaseException:
            session.abandon()  # cancelled in the middle of the author's code
            raise
        finally:
            self._running = None
        return result

    async def state(self) -> State:
        """Return the environment's state."""
        return self.session.state()

    async def close(self) -> None:
        """Close the environment, once."""
        if self.session.close():
            await self._close()


@final
class LoopDriver(Driver):
    """Runs an async environment for a sync caller, on a private event loop."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._driver = AsyncDriver(session)
        self._loop = PrivateLoop()

    def reset(
        self,
        *,
        seed: Any = None,
        task: Any = None,
        options: Mapping[str, Any] | None = None,
        episode_id: str | None = None,
    ) -> ResetResult[Any]:
        """Begin an episode. See `Env.reset`."""
        if self._loop.is_closed:
            self.session.begin()  # refuses
        return self._loop.run(
            self._driver.reset(seed=seed, task=task, options=options, episode_id=episode_id)
        )

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
        """Run to the end and return what it returns."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._loop.run_until_complete(work)
        if self._thread is None:
            name = f"envweave-loop-{threading.get_native_id()}"
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        return self._thread.submit(self._loop.run_until_complete, work).result()

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


def _awaitable(call: Callable[..., Any], *, is_async: bool) -> Callable[..., Awaitable[Any]]:
    if is_async:
        return call

    async def at_once(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return at_once

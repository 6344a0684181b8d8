"""Drivers: run the author's code under a session's rules, for sync and async callers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, final

from envweave.errors import (
    ActionError,
    BusyError,
    CallOrderError,
    DeadlineError,
    ForkError,
    format_error,
)
from envweave.session.asyncio_support import Deadline, PrivateLoop, unrequested
from envweave.session.compiled_step import compile_step
from envweave.session.session import Session, SessionSnapshot, reading_state
from envweave.types import ResetResult, State, StepResult, Tasks, ToolResult

logger = logging.getLogger("envweave.session")


class Driver:
    """Base of the drivers: a session and its interface."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.interface = session.interface

    @property
    def tasks(self) -> Tasks | None:
        """The tasks that the environment offers, without their private parts."""
        return self.session.tasks

    @property
    def agents(self) -> list[str]:
        """The agents that take part now."""
        return self.session.agents


@final
class _SyncCalls:
    """The author's methods under the rules of their session, in the caller's thread.

    Apart from the driver, so that its compiled step refers to this and not to the driver: without
    a cycle, an environment that is dropped is freed at once.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._bind()

    def _bind(self) -> None:
        environment = self.session.environment
        self.reset = environment.reset
        self.step: Callable[[Any], Any] = environment.step
        self.answer = environment.answer

    def start(self, keywords: dict[str, Any]) -> Any:
        """Run the author's `reset`, of another environment if this one failed."""
        self.replace_if_failed()
        return self.reset(**keywords)

    def replace_if_failed(self) -> None:
        """Make another environment if this one failed."""
        slot = self.session.slot
        if slot.factory is not None and slot.failed:
            old = slot.release()
            if old is not None:
                try:
                    old.close()
                except Exception as error:  # noqa: BLE001 - it failed before, and is not used again
                    _log_failed_close(self.session, error)
            slot.install(slot.factory())
            self._bind()

    def step_by_rules(self, action: Any) -> StepResult[Any]:
        """Take a step that is not known to be an ordinary one."""
        action = self.session.admit(action)
        run = self.answer if type(action) is ToolResult else self.step
        try:
            outcome = run(action)
        except Exception as error:  # noqa: BLE001 - the author's code, the boundary itself
            return self.fail(error)
        except BaseException:
            self.session.abandon()
            raise
        return self.conclude(outcome)

    def conclude(self, outcome: Any) -> StepResult[Any]:
        """Take the outcome of the author's `step`, and do what follows from it."""
        return self._finish(self.session.conclude, outcome)

    def fail(self, error: Exception) -> StepResult[Any]:
        """Take what the author's `step` raised, and do what follows from it."""
        if isinstance(error, ActionError):
            raise self.session.refuse(error) from error
        return self._finish(self.session.fail, error)

    def _finish(self, rule: Callable[[Any], StepResult[Any]], outcome: Any) -> StepResult[Any]:
        try:
            return self.autoreset_if_due(rule(outcome))
        except BaseException:
            self.session.abandon()
            raise

    def autoreset_if_due(self, result: StepResult[Any]) -> StepResult[Any]:
        """Begin the next episode, if an autoreset is due, and put it into the result."""
        session = self.session
        if not session.reset_due:
            return result
        try:
            outcome = self.start(session.begin_next())
        except Exception as error:  # noqa: BLE001 - the author's code, the boundary itself
            return session.join_failed(result, error)
        return session.joined(result, outcome)


@final
class SyncDriver(Driver):
    """Runs a sync environment in the caller's thread.

    Attributes:
        step: Takes one step. See `Env.step`.
        autoreset_if_due: Begins the next episode, if an autoreset is due, and puts it into the
            result.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._calls = _SyncCalls(session)
        self.step = compile_step(self._calls)
        self.autoreset_if_due = self._calls.autoreset_if_due

    def reset(self, **params: Any) -> ResetResult[Any]:
        """Begin an episode. See `Env.reset`."""
        session = self.session
        keywords = session.begin(**params)
        try:
            return session.started(self._calls.start(keywords))
        except Exception as error:
            raise session.reset_failed(error) from error
        except BaseException:
            session.abandon()
            raise

    def state(self) -> State:
        """Return the environment's state."""
        return self.session.state()

    def snapshot(self) -> SessionSnapshot:
        """Return the running episode. See `Env.snapshot`."""
        session = self.session
        session.check_snapshot()
        try:
            return session.taken(session.environment.snapshot())
        except Exception as error:
            raise _snapshot_error(session, error) from error

    def restore(self, point: SessionSnapshot) -> ResetResult[Any]:
        """Continue from a snapshot. See `Env.restore`."""
        session = self.session
        session.check_restore(point)
        try:
            self._calls.replace_if_failed()
            session.environment.restore(point.environment)
            return session.restored(point)
        except Exception as error:
            raise session.restore_failed(error) from error
        except BaseException:
            session.abandon()
            raise

    def close(self) -> None:
        """Close the environment, once."""
        if self.session.close() and not self.session.slot.empty:
            self.session.environment.close()


@final
class AsyncDriver(Driver):
    """Runs an environment, sync or async, on the caller's event loop.

    Args:
        session: The rules it runs under.
        timeout_s: How long each call of the author's code may take.
        idle_s: How many seconds the loop was not running between runs, if it ever stops.
        orphans: A set that collects calls that were cancelled and still run.
    """

    def __init__(
        self,
        session: Session,
        timeout_s: float | None = None,
        idle_s: Callable[[], float] = lambda: 0.0,
        orphans: set[asyncio.Task[Any]] | None = None,
    ) -> None:
        super().__init__(session)
        self._idle_s = idle_s
        self._all_orphans = set() if orphans is None else orphans
        self._bind(timeout_s)
        self._running: str | None = None
        self._idle: asyncio.Event | None = None  # set when the current call is over

    def _bind(self, timeout_s: float | None) -> None:
        methods = self.interface.async_methods
        environment = self.session.environment
        self._deadline = Deadline(timeout_s, self._idle_s, self._all_orphans)
        self._reset = _awaitable(environment.reset, is_async="reset" in methods)
        self._step = _awaitable(environment.step, is_async="step" in methods)
        self._answer = _awaitable(environment.answer, is_async="answer" in methods)
        self._close = _awaitable(environment.close, is_async="close" in methods)
        self._snapshot = _awaitable(environment.snapshot, is_async="snapshot" in methods)
        self._restore = _awaitable(environment.restore, is_async="restore" in methods)

    @property
    def timeout_s(self) -> float | None:
        """How long each call of the author's code may take; it can be set between two calls."""
        return self._deadline.timeout_s

    @timeout_s.setter
    def timeout_s(self, timeout_s: float | None) -> None:
        self._deadline.timeout_s = timeout_s

    def _begin(self, call: str) -> None:
        """Mark a call as running; `_end` must follow."""
        if self._running is not None:
            raise BusyError(
                f"{call}() while {self._running}() is still under way on the same environment. "
                "Await it first, or make one environment for each task."
            )
        self._running = call

    def _end(self) -> None:
        self._running = None
        if self._idle is not None:
            self._idle.set()

    async def reset(self, **params: Any) -> ResetResult[Any]:
        """Begin an episode. See `AsyncEnv.reset`."""
        session = self.session
        self._begin("reset")
        try:
            keywords = session.begin(**params)
            try:
                return session.started(await self._start(keywords))
            except Exception as error:
                raise session.reset_failed(error) from error
        except Exception:
            raise
        except BaseException:
            session.abandon()  # cancelled in the middle of the author's code
            raise
        finally:
            self._end()

    async def _start(self, keywords: dict[str, Any]) -> Any:
        """Run the author's `reset`, of another environment if this one failed."""
        await self._replace_if_failed()
        return await self._deadline.run("reset", partial(self._reset, **keywords))

    async def _replace_if_failed(self) -> None:
        """Make another environment if this one failed."""
        slot = self.session.slot
        if slot.factory is not None and (slot.failed or self._deadline.has_orphans):
            if slot.release() is not None:
                try:
                    await self._deadline.run("close", self._close)
                except Exception as error:  # noqa: BLE001 - it failed before, and is not used again
                    _log_failed_close(self.session, error)
            made = slot.factory()
            slot.install(await made if isinstance(made, Awaitable) else made)
            self._bind(self._deadline.timeout_s)
        elif self._deadline.has_orphans:
            raise DeadlineError(
                "an earlier call was cancelled and still runs. Pass make() the class or a "
                "function that makes one, so that it can be replaced"
            )

    async def step(self, action: Any) -> StepResult[Any]:
        """Take one step. See `AsyncEnv.step`."""
        session, deadline = self.session, self._deadline
        self._begin("step")
        try:
            action = session.admit(action)
            try:
                if type(action) is ToolResult:
                    outcome = await deadline.run("answer", partial(self._answer, action))
                elif deadline.timeout_s is None:
                    outcome = await self._step(action)
                else:
                    outcome = await deadline.run("step", partial(self._step, action))
            except ActionError as error:
                raise session.refuse(error) from error
            except asyncio.CancelledError as error:
                result = session.fail(unrequested(error))
            except Exception as error:  # noqa: BLE001 - the author's code, the boundary itself
                late = error is deadline.missed
                result = session.fail(error, "timeout" if late else "error")
            else:
                result = session.conclude(outcome)
            if not session.reset_due:
                return result
            try:
                outcome = await self._start(session.begin_next())
            except Exception as error:  # noqa: BLE001 - the author's code again
                return session.join_failed(result, error)
            return session.joined(result, outcome)
        except Exception:
            raise
        except BaseException:
            session.abandon()  # cancelled in the middle of the author's code
            raise
        finally:
            self._end()

    async def state(self) -> State:
        """Return the environment's state."""
        if "state" in self.interface.async_methods:
            with reading_state(self.session):
                return self.session.read_state(
                    await self._deadline.run("state", lambda: self.session.environment.state)
                )
        return self.session.state()

    async def snapshot(self) -> SessionSnapshot:
        """Return the running episode. See `Env.snapshot`.

        Raises:
            BusyError: Another call is under way.
        """
        session = self.session
        self._begin("snapshot")
        try:
            session.check_snapshot()
            return session.taken(await self._deadline.run("snapshot", self._snapshot))
        except CallOrderError:
            raise
        except Exception as error:
            raise _snapshot_error(session, error) from error
        finally:
            self._end()

    async def restore(self, point: SessionSnapshot) -> ResetResult[Any]:
        """Continue from a snapshot. See `Env.restore`."""
        session = self.session
        self._begin("restore")
        try:
            session.check_restore(point)
            try:
                await self._replace_if_failed()
                await self._deadline.run("restore", partial(self._restore, point.environment))
                return session.restored(point)
            except Exception as error:
                raise session.restore_failed(error) from error
        except Exception:
            raise
        except BaseException:
            session.abandon()  # cancelled in the middle of the author's code
            raise
        finally:
            self._end()

    async def close(self) -> None:
        """Close the environment, once, when the call under way is over.

        Raises:
            DeadlineError: The author's `close` took longer than `timeout_s`.
        """
        if self.session.close():
            if self._running is not None:
                self._idle = asyncio.Event()
                await self._idle.wait()
            if not self.session.slot.empty:
                await self._deadline.run("close", self._close)


@final
class LoopDriver(Driver):
    """Runs an async environment for a sync caller, on a private event loop."""

    def __init__(self, session: Session, timeout_s: float | None = None) -> None:
        super().__init__(session)
        self._driver = AsyncDriver(session, timeout_s)
        self._loop = PrivateLoop(is_patient=timeout_s is None)

    def reset(self, **params: Any) -> ResetResult[Any]:
        """Begin an episode. See `Env.reset`."""
        if self._loop.is_closed:
            self.session.begin()  # refuses
        return self._loop.run(self._driver.reset(**params))

    def step(self, action: Any) -> StepResult[Any]:
        """Take one step. See `Env.step`."""
        if self._loop.is_closed:
            self.session.admit(action)  # refuses
        return self._loop.run(self._driver.step(action))

    def state(self) -> State:
        """Return the environment's state."""
        if "state" in self.interface.async_methods and not self._loop.is_closed:
            return self._loop.run(self._driver.state())
        return self.session.state()

    def snapshot(self) -> SessionSnapshot:
        """Return the running episode. See `Env.snapshot`."""
        if self._loop.is_closed:
            self.session.check_snapshot()  # refuses
        return self._loop.run(self._driver.snapshot())

    def restore(self, point: SessionSnapshot) -> ResetResult[Any]:
        """Continue from a snapshot. See `Env.restore`."""
        if self._loop.is_closed:
            self.session.check_restore(point)  # refuses
        return self._loop.run(self._driver.restore(point))

    def detach(self) -> None:
        """Close the loop, but not the environment."""
        if not self._loop.is_closed and not self._loop.is_inherited:
            self._loop.close()

    def close(self) -> None:
        """Close the environment and the loop, once; does nothing to those of a parent process.

        Raises:
            BusyError: Another thread is in a call; nothing is closed.
        """
        if self._loop.is_closed or self._loop.is_inherited:
            return
        self._loop.refuse_misuse()
        try:
            self._loop.run(self._driver.close())
        finally:
            self._loop.close()


def _snapshot_error(session: Session, error: Exception) -> ForkError:
    if isinstance(error, ForkError):
        return error
    return ForkError(f"{session.interface.name}.snapshot() failed: {format_error(error)}")


def _log_failed_close(session: Session, error: Exception) -> None:
    logger.warning("closing a failed %s raised", session.interface.name, exc_info=error)


def _awaitable(call: Callable[..., Any], *, is_async: bool) -> Callable[..., Awaitable[Any]]:
    if is_async:
        return call

    async def at_once(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return at_once

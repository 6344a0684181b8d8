"""Running one session of a synchronous environment, through the thread pool.

`StepJob` is the one way of a step to a synchronous environment: of one session or of many, with a
deadline or without, in a thread or where its frame was read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import length_hint
from time import monotonic
from typing import Any, Literal, TypeAlias, final

from envweave.codec import Spec
from envweave.codec.records import DataclassSpec
from envweave.errors import (
    ClosedError,
    ConnectionLostError,
    EnvironmentLostError,
    EnvWeaveError,
    StateFailedError,
)
from envweave.server.dispatch import (
    CallOutcome,
    ParsedCall,
    PlainDriver,
    ProcessExitAttemptError,
    fork_failed,
    keep_snapshot,
    perform,
    read_call,
    refuse_early_state,
    take_step,
)
from envweave.server.env_factory import CLOSE_S, SessionMaker, close_later, driver_of
from envweave.server.runtime.base import SessionOptions
from envweave.server.runtime.thread_pool import PinnedThreadPool
from envweave.server.runtime.worker_thread import (
    CallTimeoutError,
    PoolClosedError,
    ThreadAffinity,
    ThreadJob,
)
from envweave.session import Phase, Position, Session
from envweave.session.episodes import EpisodeTracker, advance_seed, with_autoreset
from envweave.session.kept_snapshots import KeptSnapshots
from envweave.session.loss_log import LOSSES_LOGGED
from envweave.session.session import SessionSnapshot, refusal
from envweave.types import EpisodeEnd, StepResult
from envweave.wire.columns import ActionBatch
from envweave.wire.results import encode_result

logger = logging.getLogger("envweave.server")


class EnvironmentLossError(Exception):
    """A session has lost its environment. Never leaves this module.

    Attributes:
        reason: The reason with which its episode ends.
    """

    def __init__(self, message: str, reason: Literal["timeout", "error"] = "error") -> None:
        super().__init__(message)
        self.reason: Literal["timeout", "error"] = reason


@final
class ThreadedRunner:
    """Runs one session in a thread; its state is kept here, on the loop.

    A call past its deadline continues in its thread, with the session's driver. Both are abandoned,
    and the next `reset` makes another environment, which continues the stream of episodes.

    Attributes:
        pool: The thread pool.
        affinity: Its affinity to a thread.
        driver: Takes its steps; `None` if it is closed or has lost its environment.
        action_spec: What its environment takes as an action; `None` with several agents.
        last_result: The last result, if the episode tracker has not processed it yet.
    """

    def __init__(
        self,
        maker: SessionMaker,
        pool: PinnedThreadPool,
        index: int,
        session: Session,
        affinity: ThreadAffinity,
        options: SessionOptions,
        on_close: Callable[[int], None],
        kept: KeptSnapshots,
    ) -> None:
        self._maker = maker
        self.pool = pool
        self._index = index
        self._on_close = on_close
        self._kept = kept
        self.affinity = affinity
        self._session_options = options
        self._autoreset = options.autoreset
        self._name = session.interface.name
        self._multi_agent = session.interface.possible_agents is not None
        self.action_spec = None if self._multi_agent else session.interface.action_spec
        self._tracker = EpisodeTracker(several_agents=self._multi_agent)
        self.last_result: StepResult[Any] | None = None
        self.driver: PlainDriver | None = None
        self._loss = EnvironmentLossError("it has no environment")
        self._is_closed = False
        self._adopt(session)
        if options.position is not None:
            session.resume_from(options.position)
        self._position = session.position

    def _adopt(self, session: Session) -> None:
        session.autoreset = self._autoreset
        self.driver = driver_of(session)

    @property
    def is_live(self) -> bool:
        """Whether an episode is running."""
        return self._tracker.is_live

    @property
    def position(self) -> Position:
        """Position in the stream of episodes."""
        return self._position

    def stop_resetting(self) -> None:
        """Turn autoreset off: no further episode begins by itself."""
        self._autoreset = False
        if self.driver is not None:
            self.driver.session.autoreset = False

    async def call(self, method: str, params: Mapping[str, Any], timeout_s: float | None) -> Any:
        """Carry out a call of an environment's method; return the encoded result.

        Raises:
            EnvWeaveError: The call was refused or failed.
        """
        call = read_call(method, params)
        if self._is_closed:
            raise ClosedError(f"{method}() on {self._name}, which is closed.")
        if method == "state" and self._maker.is_shared_object and self.driver is not None:
            refuse_early_state(self.driver.session)
        if method == "step":
            return await self._step(call, timeout_s)
        if method == "reset":
            return _encoded_or_raise(await self._reset(call, timeout_s))
        if method == "restore":
            return _encoded_or_raise(await self._restore(call, timeout_s))
        try:
            if method == "check_reset":
                await self._ready(timeout_s)
            performed = await self._perform(call, timeout_s)
            return _encoded_or_raise(keep_snapshot(call, performed, self._kept))
        except EnvironmentLossError as loss:
            if method == "snapshot":
                raise fork_failed(method, self._name, loss) from None
            if method == "state":
                raise StateFailedError(f"{self._name}.state failed: {loss}") from None
            raise EnvironmentLostError(f"{self._name} cannot be reset: {loss}") from None

    async def _reset(self, call: ParsedCall, timeout_s: float | None) -> CallOutcome:
        try:
            await self._ready(timeout_s)
            self.pool.settle(self.affinity)
            try:
                return await self._perform(call, timeout_s)
            except EnvironmentLossError:
                self._position = advance_seed(self._position, call.reset_kwargs.get("seed"))
                raise
        except EnvironmentLossError as loss:
            self._tracker.is_live = False
            raise EnvironmentLostError(f"{self._name}.reset() failed: {loss}") from None

    async def _restore(self, call: ParsedCall, timeout_s: float | None) -> CallOutcome:
        point = self._kept.get(call.token)  # before anything changes
        try:
            await self._ready(timeout_s)
            self.pool.settle(self.affinity)
            return await self._perform(call, timeout_s, point)
        except EnvironmentLossError as loss:
            self._tracker.is_live = False
            raise fork_failed("restore", self._name, loss) from None

    async def _step(self, call: ParsedCall, timeout_s: float | None) -> Any:
        if self.driver is None:
            return await self._lost_in_step(self._loss, timeout_s)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def deliver(_: Sequence[Any], outcomes: Sequence[Any]) -> None:
            if not answer.done():
                answer.set_result(outcomes[0])

        try:
            self.pool.submit(StepJob((0,), (self,), (call.action,), deliver, timeout_s))
        except PoolClosedError:
            return await self._lost_in_step(self._lose("the server is stopping", "error"), None)
        outcome = await answer
        if isinstance(outcome, BaseException):
            raise outcome
        return encode_result(outcome, None, None) if type(outcome) is StepResult else outcome

    async def _lost_in_step(self, loss: EnvironmentLossError, timeout_s: float | None) -> Any:
        if self._is_closed:
            raise ClosedError(f"{self._name} was closed while its step() ran.") from None
        if not self._tracker.is_live:
            raise refusal(Phase.ENDED, self._name, str(loss), autoreset=False) from None
        return await self._lost(loss, timeout_s)

    # Steps

    def end_step(self, outcome: CallOutcome) -> Any:
        """Record the outcome of a step that was not ordinary; return it encoded, or its error."""
        self._record(outcome)
        return outcome.value if outcome.encoded is None else outcome.encoded

    async def lose_step(
        self, error: ProcessExitAttemptError | CallTimeoutError, timeout_s: float | None
    ) -> Any:
        """Abandon an environment that tried to exit or is late; return the result, or an error."""
        if self.driver is None:
            return ClosedError(f"{self._name} was closed while its step() ran.")
        driver, affinity = self.driver, self.affinity
        if isinstance(error, CallTimeoutError):
            loss = self._lose_late("step", timeout_s)
            if error.has_returned:
                self.on_abandoned(driver, affinity, None, is_late=True)
        else:
            loss = self._lose_to(error, driver, affinity)
        try:
            return await self._lost_in_step(loss, timeout_s)
        except EnvWeaveError as refusal:
            return refusal

    async def _lost(self, loss: EnvironmentLossError, timeout_s: float | None) -> Any:
        """End the episode; with autoreset, begin the next one in the same result."""
        LOSSES_LOGGED.warn(logger, self._name, loss)
        if self.last_result is not None:
            self._tracker.follow(self.last_result)
        result = self._tracker.lost(EpisodeEnd(loss.reason, "environment", str(loss)))
        agents: list[str] | None = [] if self._multi_agent else None
        if not self._autoreset or self._is_closed:
            return encode_result(result, agents, None)
        try:
            fresh = await self._reset(ParsedCall("reset", {}), timeout_s)
        except EnvWeaveError as error:
            return encode_result(with_autoreset(result, error), agents, None)
        if isinstance(fresh.value, EnvWeaveError):
            return encode_result(with_autoreset(result, fresh.value), agents, None)
        return encode_result(
            with_autoreset(result, fresh.value), fresh.encoded.agents, fresh.position
        )

    # The environment

    async def _ready(self, timeout_s: float | None) -> None:
        """Make another environment if the last one was abandoned."""
        if self.driver is not None:
            return
        if self._maker.is_shared_object_stuck:
            raise EnvironmentLossError(
                "an earlier call still runs, and the server was given a single object. Serve its "
                "class, or a function that makes one, so that it can be replaced"
            )
        affinity = ThreadAffinity()
        try:
            session = await self._maker.make(affinity, self._index, timeout_s)
        except CallTimeoutError:
            raise EnvironmentLossError(
                f"making another took longer than timeout_s={timeout_s:g}", "timeout"
            ) from None
        except PoolClosedError:
            raise EnvironmentLossError("the server is stopping") from None
        except EnvWeaveError as error:
            self.pool.release(affinity)
            raise EnvironmentLossError(f"making another failed: {error}") from error
        self.affinity = affinity
        self._adopt(session)
        session.resume_from(self._position)

    async def _perform(
        self, call: ParsedCall, timeout_s: float | None, point: SessionSnapshot | None = None
    ) -> CallOutcome:
        driver, affinity = self.driver, self.affinity
        if driver is None:
            raise self._loss
        try:
            performed: CallOutcome = await self.pool.run(
                affinity,
                partial(perform, driver, call, point),
                timeout_s,
                partial(self.on_abandoned, driver, affinity),
            )
        except CallTimeoutError:
            raise self._lose_late(call.method, timeout_s) from None
        except PoolClosedError:
            raise self._lose("the server is stopping", "error") from None
        except ProcessExitAttemptError as error:
            raise self._lose_to(error, driver, affinity) from None
        self._record(performed)
        return performed

    def _lose_late(self, method: str, timeout_s: float | None) -> EnvironmentLossError:
        """Abandon an environment whose call is past its deadline."""
        limit = f"timeout_s={timeout_s:g}" if timeout_s is not None else "its deadline"
        return self._lose(f"{method}() took longer than {limit}", "timeout")

    def _lose_to(
        self, error: ProcessExitAttemptError, driver: PlainDriver, affinity: ThreadAffinity
    ) -> EnvironmentLossError:
        """Abandon an environment that tried to end its process."""
        if not self._maker.is_shared_object:
            close_later(self.pool, affinity, driver)
        return self._lose(str(error), "error")

    def _lose(self, message: str, reason: Literal["timeout", "error"]) -> EnvironmentLossError:
        """Abandon the environment: a call that still runs may write to it."""
        self.driver, self.affinity = None, ThreadAffinity()
        self._loss = EnvironmentLossError(message, reason)
        if reason == "timeout":
            self._maker.is_shared_object_stuck = self._maker.is_shared_object
            self._maker.replace_factory()  # the call may hang in the factory too
        return self._loss

    def _record(self, performed: CallOutcome) -> None:
        if performed.position is not None:
            self._position = performed.position
        if performed.encoded is not None and performed.encoded is not performed.value:
            if self._multi_agent:
                self._tracker.follow(performed.value)
            else:
                self.last_result = performed.value
        self._tracker.is_live = performed.is_live

    def on_abandoned(
        self,
        driver: PlainDriver,
        affinity: ThreadAffinity,
        performed: CallOutcome | None,
        is_late: bool,  # noqa: FBT001 - a job's end
    ) -> None:
        """Handle the end of a call that no task waits for any more."""
        if not is_late:
            if performed is not None and driver is self.driver:
                self._record(performed)
        elif self._maker.is_shared_object:
            self._maker.is_shared_object_stuck = False
        else:
            close_later(self.pool, affinity, driver)

    async def close(self) -> None:
        """Close the environment and release its resources. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        driver, affinity = self.driver, self.affinity
        close_s = min(CLOSE_S, self._session_options.timeout_s or CLOSE_S)
        try:
            if driver is not None:
                # A shared object stays open, but a call on it must have returned.
                close = _noop if self._maker.is_shared_object else driver.close
                await self.pool.run(affinity, close, close_s, from_now=True)
        except CallTimeoutError:
            logger.warning("close() of %s took longer than %g s", self._name, close_s)
        except PoolClosedError:
            pass  # everything ends with the server
        except Exception:
            logger.warning("closing a %s failed", self._name, exc_info=True)
        finally:
            self.driver = None
            self._tracker.is_live = False
            self.pool.release(affinity)
            self._on_close(self._index)


Deliver: TypeAlias = Callable[[Sequence[int], Sequence[Any]], None]
"""Called with the rows of some steps and their outcomes: a `StepResult` for an ordinary step,
else the encoded result or an error."""

SLICE_S = 0.002
"""After this time the steps of a job that the loop runs give way to other calls."""

_recovering: set[asyncio.Task[None]] = set()  # keeps running tasks from being garbage-collected


@final
class StepJob(ThreadJob):
    """Steps of sessions that share a thread, taken one after the other.

    If one of them takes long, those that have not begun move to other threads, and those that are
    done are delivered.

    Args:
        rows: The row of each step in its frame, for `deliver`.
        runners: The runners of their sessions, which have the environments.
        actions: Their actions.
        deliver: Called on the loop with the outcome of each step once, usually with all at once.
        timeout_s: Time limit of each step.

    Attributes:
        rows: The row of each step.
        pool: The thread pool of the sessions.
    """

    __slots__ = (
        "_actions", "_affinities", "_deliver", "_drivers", "_is_answered", "_late", "_left",
        "_open", "_outcomes", "_runners", "_spec", "pool", "rows",
    )  # fmt: skip

    def __init__(
        self,
        rows: Sequence[int],
        runners: Sequence[ThreadedRunner],
        actions: Sequence[Any],
        deliver: Deliver,
        timeout_s: float | None = None,
    ) -> None:
        count = len(rows)
        super().__init__(runners[0].affinity, count, timeout_s)
        self.rows = rows
        self.pool = runners[0].pool
        self._runners = runners
        # Also for later: a runner may lose its environment and get another meanwhile.
        self._affinities = [runner.affinity for runner in runners]
        self._drivers = [runner.driver for runner in runners]
        self._actions = actions
        self._spec: Spec | None = runners[0].action_spec if count > 1 else None
        self._deliver = deliver
        self._outcomes: list[Any] = [None] * count
        # The steps that have not begun. The thread that takes one from the iterator has it alone.
        self._left = iter(range(count))
        self._open: Sequence[int] = range(count)  # whose outcome is not delivered
        self._late: int | None = None  # the step that was abandoned
        self._is_answered = False

    def submit(self) -> None:
        """Submit it to its pool; if that is closed, the steps fail."""
        try:
            self.pool.submit(self)
        except PoolClosedError as error:
            self.fail(error)

    def call(self) -> None:
        """Take the steps, in the thread; on the loop for `SLICE_S` at most."""
        if self._spec is not None:
            spec, self._spec = self._spec, None
            with contextlib.suppress(BaseException):  # the session meets it, and says whose it is
                self._actions = _read_actions(spec, self._actions)
        outcomes, drivers, actions = self._outcomes, self._drivers, self._actions
        limit_s = math.inf if self.timeout_s is None else self.timeout_s
        now_s = monotonic()
        ends_s = math.inf if self.thread.loop is None else self.since + SLICE_S
        for i in self._left:
            self.call_since = began_s = now_s
            outcomes[i] = take_step(drivers[i], actions[i])  # type: ignore[arg-type] # it has one
            now_s = monotonic()
            if now_s - began_s > limit_s:
                outcomes[i] = CallTimeoutError(has_returned=True)
            if now_s > ends_s:
                return

    def is_of(self, affinity: ThreadAffinity) -> bool:
        """Whether it calls this environment."""
        return affinity is self.affinity or any(self._affinities[i] is affinity for i in self._open)

    @property
    def has_more(self) -> bool:
        """Whether it has stopped before its end, so as not to keep the loop for too long."""
        return length_hint(self._left) > 0

    @property
    def is_answered(self) -> bool:
        """Whether the outcomes were delivered."""
        return self._is_answered

    def deliver(self, outcome: None) -> None:  # noqa: ARG002 - the outcomes are stored
        """Deliver the outcomes."""
        self._is_answered = True
        steps, self._open = self._open, ()
        self._finish(steps)

    def fail(self, error: Exception) -> None:
        """Deliver an error for the steps that have no outcome.

        A step that has returned has one, also if it was late.
        """
        if isinstance(error, PoolClosedError):
            error = ConnectionLostError("The server is stopping.")
        outcomes = self._outcomes = list(self._outcomes)  # a late step still writes to the other
        for i in self._open:
            if outcomes[i] is None:
                outcomes[i] = error
                self._late = i if isinstance(error, CallTimeoutError) else None
        self.deliver(None)

    def _finish(self, steps: Sequence[int]) -> None:
        """Record and deliver outcomes; a lost environment is handled in a task."""
        runners, outcomes, rows = self._runners, self._outcomes, self.rows
        lost: list[tuple[int, Any]] = []
        for i in steps:
            one = outcomes[i]
            if type(one) is StepResult:
                runners[i].last_result = one
            elif isinstance(one, CallOutcome):
                outcomes[i] = runners[i].end_step(one)
            elif isinstance(one, ProcessExitAttemptError | CallTimeoutError):
                lost.append((i, one))
        if lost:
            is_lost = {i for i, _ in lost}
            steps = [i for i in steps if i not in is_lost]
            task = asyncio.ensure_future(self._lose(lost))
            _recovering.add(task)
            task.add_done_callback(_recovering.discard)
        if not steps:
            return
        if len(steps) < len(outcomes):
            rows, outcomes = [rows[i] for i in steps], [outcomes[i] for i in steps]
        try:
            self._deliver(rows, outcomes)
        except Exception:
            logger.exception("the outcome of a step could not be delivered")

    async def _lose(self, lost: Iterable[tuple[int, Any]]) -> None:
        for i, error in lost:
            result = await self._runners[i].lose_step(error, self.timeout_s)
            self._deliver((self.rows[i],), (result,))

    def split(self) -> None:
        """Deliver the steps that are done, and move those behind the running one elsewhere."""
        if self._is_answered:
            return
        left = list(self._left)  # at once, so that none is taken meanwhile
        begun = self._open[: len(self._open) - len(left)]
        done = [i for i in begun if self._outcomes[i] is not None]
        self._open = running = [i for i in begun if i not in done]
        self._is_answered = not running
        self.affinity = self._affinities[running[0]] if running else ThreadAffinity()
        self.steps = max(self.steps - len(left), 1)
        self._finish(done)
        for i in left:
            runner, action = self._runners[i], self._actions[i]
            StepJob((self.rows[i],), (runner,), (action,), self._deliver, self.timeout_s).submit()

    def on_abandoned(self, outcome: None) -> None:  # noqa: ARG002 - its result is discarded
        """Handle the end of a step that was abandoned."""
        if (at := self._late) is not None and (driver := self._drivers[at]) is not None:
            self._runners[at].on_abandoned(driver, self._affinities[at], None, self.is_late)


def _read_actions(spec: Spec, actions: Sequence[Any]) -> Sequence[Any]:
    """Return actions in the form that an author's `step` takes, which is faster for all at once."""
    if not isinstance(spec, DataclassSpec):
        return spec.read_all(actions)
    columns = actions.columns if isinstance(actions, ActionBatch) else spec.columns_of(actions)
    read = None if columns is None else spec.read_columns(columns)
    return actions if read is None else read


def _encoded_or_raise(performed: CallOutcome) -> Any:
    """Return the encoded value of a call.

    Raises:
        EnvWeaveError: The call was refused or failed.
    """
    if isinstance(performed.value, EnvWeaveError):
        raise performed.value
    return performed.encoded


def _noop() -> None:
    """Queued to wait for earlier calls in the thread."""

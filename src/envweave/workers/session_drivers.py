"""Drivers of sessions in worker processes, for `make`, `make_async` and pools.

A worker that is lost ends the episodes of its sessions; another one is started for the next.
`_WorkerEpisode` decides what a call means for the episode, the two drivers make the calls.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any, final

from envweave.errors import (
    BusyError,
    ClosedError,
    EnvironmentLostError,
    EnvWeaveError,
    ForkError,
    StateFailedError,
)
from envweave.lifetime import AtExit, CloseGuard
from envweave.session.episodes import EpisodeTracker, advance_seed, with_autoreset
from envweave.session.kept_snapshots import DroppedSnapshots, KeptSnapshot
from envweave.session.loss_log import LOSSES_LOGGED
from envweave.session.session import Phase, check_snapshot_kind, refusal
from envweave.types import AGENT, ResetResult, State, StepResult
from envweave.workers.channel import decode_message, encode_message
from envweave.workers.launch import CLOSE_S, WorkerLostError
from envweave.workers.main import WorkerInfo
from envweave.workers.session_client import AsyncWorkerConnection, SessionResult, WorkerSlot
from envweave.workers.session_worker import CallParams

logger = logging.getLogger("envweave.session")

INTERRUPTED = WorkerLostError("the last call was interrupted")

_WARNING = "{} in a worker process was dropped without close(). Use it in {} block, or close it."


class _WorkerEpisode:
    """What both drivers know of their session, and decide about it. Makes no calls itself."""

    def __init__(self, info: WorkerInfo, index: int, *, autoreset: bool) -> None:
        self.interface = info.interface
        self.tasks = info.tasks
        several = info.interface.possible_agents is not None
        self.agents: list[str] = [] if several else [AGENT]
        self._index = index
        self._autoreset = autoreset
        self._tracker = EpisodeTracker(several_agents=several)
        self._dropped = DroppedSnapshots()
        self._position: Any = None
        self._is_closed = False

    def _check_open(self, call: str, hint: str = "") -> None:
        if self._is_closed:
            raise ClosedError(f"{call}() on {self.interface.name}, which is closed.{hint}")

    def _step_when_closed(self) -> EnvWeaveError:
        return refusal(Phase.CLOSED, self.interface.name, None, autoreset=self._autoreset)

    def _take(self, result: SessionResult) -> Any:
        self.agents, self._position = result.status
        return result.value

    def _lost_in_reset(self, loss: WorkerLostError, kwargs: dict[str, Any]) -> EnvWeaveError:
        """Record that a reset lost its worker; return what to raise."""
        self._tracker.is_live = False
        if loss.offender == self._index and self._position is not None:
            self._position = advance_seed(self._position, kwargs.get("seed"))
        return EnvironmentLostError(f"{self.interface.name}.reset() failed: {loss}")

    def _lost_in_step(self, loss: WorkerLostError) -> StepResult[Any]:
        """Return the last result of an episode that lost its worker.

        Raises:
            ResetNeededError: The episode was over before.
        """
        name = self.interface.name
        if not self._tracker.is_live or loss is INTERRUPTED:
            self._tracker.is_live = False
            raise refusal(Phase.ENDED, name, str(loss), autoreset=False) from None
        LOSSES_LOGGED.warn(logger, name, loss)
        return self._tracker.lost(loss.end_of(self._index))

    def _lost_in_fork(self, call: str, loss: WorkerLostError) -> EnvWeaveError:
        self._tracker.is_live = False
        return ForkError(f"{call}() of {self.interface.name} failed: {loss}")

    def _lost_in_state(self, loss: WorkerLostError) -> EnvWeaveError:
        return StateFailedError(f"{self.interface.name}.state failed: {loss}")


@final
class ProcessDriver(_WorkerEpisode):
    """Carries a sync caller's calls to a session in a worker process of its own.

    Forks of its episode run in the same worker, whose connection they share.
    """

    def __init__(
        self, slot: WorkerSlot, info: WorkerInfo, *, autoreset: bool, index: int = 0
    ) -> None:
        super().__init__(info, index, autoreset=autoreset)
        self._slot = slot
        self._info = info
        self._generation = slot.generation
        warning = _WARNING.format(self.interface.name, "a `with`")
        self._unclosed = CloseGuard(self, slot.leave, warning)

    def sibling(self) -> ProcessDriver:
        """Return a driver for another session of the same worker."""
        index = self._slot.join()
        return ProcessDriver(self._slot, self._info, autoreset=self._autoreset, index=index)

    def reset(self, **kwargs: Any) -> ResetResult[Any]:
        """Begin an episode. See `Env.reset`."""
        self._check_open("reset", " Make a new environment.")
        try:
            position = self._ready()
            result: ResetResult[Any] = self._call("reset", keywords=kwargs, position=position)
        except WorkerLostError as loss:
            raise self._lost_in_reset(loss, kwargs) from None
        self._tracker.follow(result)
        return result

    def step(self, action: Any) -> StepResult[Any]:
        """Take one step. See `Env.step`."""
        if self._is_closed:
            raise self._step_when_closed()
        try:
            result: StepResult[Any] = self._call("step", action)
        except WorkerLostError as loss:
            result = self._lost_in_step(loss)
            if not self._autoreset:
                return result
            try:
                return with_autoreset(result, self.reset())
            except EnvWeaveError as error:
                return with_autoreset(result, error)
        self._tracker.follow(result)
        return result

    def state(self) -> State:
        """Return the environment's state."""
        self._check_open("state")
        try:
            state: State = self._call("state")
        except WorkerLostError as loss:
            raise self._lost_in_state(loss) from None
        return state

    def snapshot(self) -> KeptSnapshot:
        """Return the running episode. See `Env.snapshot`."""
        self._check_open("snapshot")
        try:
            return self._dropped.watch(self._call("snapshot", self._dropped.take()))
        except WorkerLostError as loss:
            raise self._lost_in_fork("snapshot", loss) from None

    def restore(self, point: KeptSnapshot) -> ResetResult[Any]:
        """Continue from a snapshot. See `Env.restore`."""
        self._check_open("restore", " Make a new environment.")
        check_snapshot_kind(point, KeptSnapshot, self.interface.name)
        try:
            position = self._ready()
            result: ResetResult[Any] = self._call("restore", point.token, position=position)
        except WorkerLostError as loss:
            raise self._lost_in_fork("restore", loss) from None
        self._tracker.follow(result)
        return result

    def _ready(self) -> Any:
        """Start another worker if the last was lost; return the position it must start from."""
        slot = self._slot
        with slot.lock:
            worker = slot.worker
            if worker is None or worker.is_gone:
                if worker is not None:
                    slot.lose(worker.lost())
                slot.restart()
        is_same = self._generation == slot.generation
        self._generation = slot.generation
        return None if is_same else self._position

    def _call(self, method: str, *args: Any, **params: Any) -> Any:
        with self._slot.lock:
            return self._take(self._exchange(method, *args, **params))

    def _exchange(self, method: str, *args: Any, **params: Any) -> SessionResult:
        slot = self._slot
        worker = slot.worker
        if worker is None or self._generation != slot.generation:
            raise slot.loss
        try:
            result: SessionResult | None = None
            while result is None:
                worker.send(self._encode(method, CallParams(args, **params)))
                reply = decode_message(worker.receive(slot.timeout_s))
                result = slot.result(slot.calls.read(reply))
        except WorkerLostError as loss:
            slot.lose(loss)
            raise
        except Exception:  # what the call itself raised
            raise
        except BaseException:
            slot.lose(INTERRUPTED)  # how far the call got is unknown
            raise
        return result

    def _encode(self, method: str, params: CallParams) -> bytes:
        return encode_message(self._slot.calls.message(method, self._index, params))

    def close(self) -> None:
        """Close the environment, once; with the last of a worker, end that."""
        self._is_closed = True
        if not self._unclosed.disarm():
            return
        slot = self._slot
        try:
            if slot.worker is not None and self._generation == slot.generation:
                with contextlib.suppress(WorkerLostError), slot.lock:
                    slot.worker.send(self._encode("close", CallParams()))
                    if slot.worker.has_message(CLOSE_S):
                        slot.result(slot.calls.read(decode_message(slot.worker.receive())))
        finally:
            slot.leave()


@final
class AsyncProcessDriver(_WorkerEpisode):
    """Carries an async caller's calls to one of the sessions in a worker process."""

    def __init__(
        self, connection: AsyncWorkerConnection, index: int, info: WorkerInfo, *, autoreset: bool
    ) -> None:
        super().__init__(info, index, autoreset=autoreset)
        self._info = info
        self._connection = connection
        self._generation = connection.generation
        self._running: str | None = None
        warning = _WARNING.format(self.interface.name, "an `async with`")
        self._unclosed = CloseGuard(self, connection.drop_one, warning, at_exit=AtExit.NOTHING)

    def sibling(self) -> AsyncProcessDriver:
        """Return a driver for another session of the same worker."""
        connection = self._connection
        index = connection.join()
        return AsyncProcessDriver(connection, index, self._info, autoreset=self._autoreset)

    @contextlib.contextmanager
    def _exclusive(self, call: str) -> Iterator[None]:
        if self._running is not None:
            raise BusyError(
                f"{call}() while {self._running}() is still under way on the same environment. "
                "Await it first, or make one environment for each task."
            )
        self._running = call
        try:
            yield
        finally:
            self._running = None

    async def reset(self, **kwargs: Any) -> ResetResult[Any]:
        """Begin an episode. See `AsyncEnv.reset`."""
        self._check_open("reset", " Make a new environment.")
        with self._exclusive("reset"):
            return await self._reset(kwargs)

    async def _reset(self, kwargs: dict[str, Any]) -> ResetResult[Any]:
        try:
            position = await self._ready()
            result: ResetResult[Any] = await self._call("reset", keywords=kwargs, position=position)
        except WorkerLostError as loss:
            raise self._lost_in_reset(loss, kwargs) from None
        self._tracker.follow(result)
        return result

    async def step(self, action: Any) -> StepResult[Any]:
        """Take one step. See `AsyncEnv.step`."""
        if self._is_closed:
            raise self._step_when_closed()
        with self._exclusive("step"):
            try:
                result: StepResult[Any] = await self._call("step", action)
            except WorkerLostError as loss:
                result = self._lost_in_step(loss)
                if not self._autoreset:
                    return result
                try:
                    return with_autoreset(result, await self._reset({}))
                except EnvWeaveError as error:
                    return with_autoreset(result, error)
        self._tracker.follow(result)
        return result

    async def state(self) -> State:
        """Return the environment's state."""
        self._check_open("state")
        try:
            state: State = await self._call("state")
        except WorkerLostError as loss:
            raise self._lost_in_state(loss) from None
        return state

    async def snapshot(self) -> KeptSnapshot:
        """Return the running episode. See `Env.snapshot`."""
        self._check_open("snapshot")
        with self._exclusive("snapshot"):
            try:
                point = await self._call("snapshot", self._dropped.take())
                return self._dropped.watch(point)
            except WorkerLostError as loss:
                raise self._lost_in_fork("snapshot", loss) from None

    async def restore(self, point: KeptSnapshot) -> ResetResult[Any]:
        """Continue from a snapshot. See `Env.restore`."""
        self._check_open("restore", " Make a new environment.")
        check_snapshot_kind(point, KeptSnapshot, self.interface.name)
        with self._exclusive("restore"):
            try:
                position = await self._ready()
                result: ResetResult[Any] = await self._call(
                    "restore", point.token, position=position
                )
            except WorkerLostError as loss:
                raise self._lost_in_fork("restore", loss) from None
        self._tracker.follow(result)
        return result

    async def _ready(self) -> Any:
        """Start another worker if the last was lost; return the position it must start from."""
        await self._connection.ready()
        is_same = self._generation == self._connection.generation
        self._generation = self._connection.generation
        return None if is_same else self._position

    async def _call(self, method: str, *args: Any, **params: Any) -> Any:
        if self._generation != self._connection.generation:
            raise self._connection.slot.loss
        return self._take(await self._connection.call(self._index, method, *args, **params))

    async def close(self) -> None:
        """Close the environment, once; with the last of a worker, end that."""
        self._is_closed = True
        if self._unclosed.disarm():
            is_current = self._generation == self._connection.generation
            await self._connection.close_one(self._index, is_current=is_current)

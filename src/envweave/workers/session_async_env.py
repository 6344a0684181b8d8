"""Async callers of sessions in worker processes: `make_async`, and pools of many."""

from __future__ import annotations

import logging
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

from envweave.errors import (
    BusyError,
    ClosedError,
    EnvironmentLostError,
    EnvWeaveError,
    StateFailedError,
)
from envweave.session.session import Phase, refusal
from envweave.types import AGENT, ResetResult, State, StepResult
from envweave.vector.episode_tracker import EpisodeTracker, advance_seed, with_autoreset
from envweave.vector.process.vector_worker import WorkerInfo
from envweave.workers.losses import end_of
from envweave.workers.session_client import AsyncWorkerConnection
from envweave.workers.worker_process import WorkerLostError

logger = logging.getLogger("envweave.session")


@final
class AsyncProcessDriver:
    """Carries an async caller's calls to one session in a worker process.

    A worker that is lost ends the episodes of all its sessions; another one is started when
    the first of them is reset.
    """

    def __init__(
        self, line: AsyncWorkerConnection, index: int, hello: WorkerInfo, *, autoreset: bool
    ) -> None:
        self.interface = hello.interface
        self.tasks = hello.tasks
        several = hello.interface.possible_agents is not None
        self.agents: list[str] = [] if several else [AGENT]
        self._line = line
        self._index = index
        self._generation = line.generation
        self._autoreset = autoreset
        self._trail = EpisodeTracker(several_agents=several)
        self._position: Any = None
        self._running: str | None = None
        self._is_closed = False
        self._unclosed = weakref.finalize(self, _dropped, line, self.interface.name)
        self._unclosed.atexit = False

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
        finally:
            self._running = None

    async def reset(self, **wanted: Any) -> ResetResult[Any]:
        """Begin an episode. See `AsyncEnv.reset`."""
        if self._is_closed:
            name = self.interface.name
            raise ClosedError(f"reset() on {name}, which is closed. Make a new environment.")
        with self._alone("reset"):
            return await self._begin(wanted)

    async def _begin(self, wanted: dict[str, Any]) -> ResetResult[Any]:
        line = self._line
        try:
            await line.ready()
            is_same = self._generation == line.generation
            position = None if is_same else self._position
            self._generation = line.generation
            result: ResetResult[Any] = await self._call("reset", keywords=wanted, position=position)
        except WorkerLostError as loss:
            self._trail.is_live = False
            if loss.offender == self._index and self._position is not None:
                self._position = advance_seed(self._position, wanted.get("seed"))
            raise EnvironmentLostError(f"{self.interface.name}.reset() failed: {loss}") from None
        self._trail.follow(result)
        return result

    async def step(self, action: Any) -> StepResult[Any]:
        """Take one step. See `AsyncEnv.step`."""
        name, trail = self.interface.name, self._trail
        if self._is_closed:
            raise refusal(Phase.CLOSED, name, None, autoreset=self._autoreset)
        with self._alone("step"):
            try:
                result: StepResult[Any] = await self._call("step", action)
            except WorkerLostError as loss:
                if not trail.is_live:
                    raise refusal(Phase.ENDED, name, str(loss), autoreset=False) from None
                return await self._lost(loss)
        trail.follow(result)
        return result

    async def _lost(self, loss: WorkerLostError) -> StepResult[Any]:
        logger.warning("an episode of %s ended: %s", self.interface.name, loss)
        result = self._trail.lost(end_of(loss, self._index))
        if not self._autoreset:
            return result
        try:
            return with_autoreset(result, await self._begin({}))
        except EnvWeaveError as error:
            return with_autoreset(result, error)

    async def state(self) -> State:
        """Return the environment's state."""
        name = self.interface.name
        if self._is_closed:
            raise ClosedError(f"state() on {name}, which is closed.")
        try:
            state: State = await self._call("state")
        except WorkerLostError as loss:
            raise StateFailedError(f"{name}.state failed: {loss}") from None
        return state

    async def _call(self, method: str, *args: Any, **rest: Any) -> Any:
        if self._generation != self._line.generation:
            raise self._line.line.loss
        answer = await self._line.call(self._index, method, *args, **rest)
        self.agents, self._position = answer.agents, answer.position
        return answer.value

    async def close(self) -> None:
        """Close the environment, once; with the last of a worker, end that."""
        self._is_closed = True
        if self._unclosed.detach() is not None:
            is_current = self._generation == self._line.generation
            await self._line.close_one(self._index, is_current=is_current)


def _dropped(line: AsyncWorkerConnection, name: str) -> None:
    if not line.drop_one():
        return
    warnings.warn(
        f"{name} in a worker process was dropped without close(). Use it in an `async with` "
        "block, or close it.",
        ResourceWarning,
        stacklevel=1,
    )

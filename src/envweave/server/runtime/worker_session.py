"""One session in a worker process, as its server sees it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol, final

from envweave.errors import (
    ClosedError,
    EnvironmentLostError,
    EnvWeaveError,
    StateFailedError,
    WireError,
)
from envweave.server.runtime.base import SessionOptions
from envweave.server.runtime.worker_process import (
    ServerWorkerProcess,
    ServerWorkerReply,
    WorkerGoneError,
)
from envweave.session import Phase, Position
from envweave.session.session import refusal
from envweave.types import EpisodeEnd
from envweave.vector.episode_tracker import EpisodeTracker, with_autoreset
from envweave.wire.results import IDENTITY, Wired, decode_result, encode_result, result_of

logger = logging.getLogger("envweave.server")


class Workers(Protocol):
    """What a session needs of all the workers."""

    async def choose(self) -> ServerWorkerProcess:
        """Return a worker process for a session, which is counted there from now on."""
        ...

    def release(self, worker: ServerWorkerProcess) -> None:
        """Count a session no more."""

    def discard(self, worker: ServerWorkerProcess, number: int) -> None:
        """Close a session that nobody waits for, and count it no more."""


@final
class WorkerRunner:
    """Runs one session in a worker process; in another one, when that is gone."""

    def __init__(
        self, number: int, name: str, wishes: SessionOptions, workers: Workers, *, several: bool
    ) -> None:
        self._number = number
        self._name = name
        self._autoreset = wishes.autoreset
        self._timeout_s = wishes.timeout_s
        self._position = wishes.position
        self._workers = workers
        self._several = several
        self._trail = EpisodeTracker(several_agents=several)
        self._worker: ServerWorkerProcess | None = None
        self._loss = WorkerGoneError("it has no worker process")
        self._sent: Wired | WireError | None = None  # the last result
        self._is_closed = False

    @property
    def is_live(self) -> bool:
        """Whether an episode is running."""
        worker = self._worker
        return self._trail.is_live and worker is not None and worker.gone is None

    def stop_resetting(self) -> None:
        """Let no episode begin by itself any more."""
        self._autoreset = False
        if self._worker is not None:
            self._worker.tell("stop_resetting", self._number)

    async def open(self) -> None:
        """Make an environment, in some worker.

        Raises:
            EnvWeaveError: It could not be made.
            WorkerGoneError: The worker was lost over it.
        """
        worker = await self._workers.choose()
        wishes = {"autoreset": self._autoreset, "position": self._position}
        try:
            answer = await worker.call("open", self._number, wishes, self._timeout_s)
            answer.value()
        except asyncio.CancelledError:
            self._workers.discard(worker, self._number)
            raise
        except BaseException:
            self._workers.release(worker)
            raise
        self._note(answer)
        self._worker = worker

    async def call(self, method: str, params: Mapping[str, Any], timeout_s: float | None) -> Any:
        """Carry out `reset`, `check_reset`, `step` or `state`; return the result as it travels.

        Raises:
            EnvWeaveError: The call was refused, or failed.
        """
        if self._is_closed:
            raise ClosedError(f"{method}() on {self._name}, which is closed.")
        if method == "step":
            return await self._step(params, timeout_s)
        if method == "reset":
            return await self._reset(params, timeout_s)
        try:
            if method == "check_reset":
                await self._ready()
            return (await self._ask(method, params, timeout_s)).value()
        except WorkerGoneError as loss:
            if method == "state":
                raise StateFailedError(f"{self._name}.state failed: {loss}") from None
            raise EnvironmentLostError(f"{self._name} cannot be reset: {loss}") from None

    async def _reset(self, params: Mapping[str, Any], timeout_s: float | None) -> Wired:
        try:
            await self._ready()
            return self._taken(await self._ask("reset", params, timeout_s))
        except WorkerGoneError as loss:
            self._trail.is_live = False
            raise EnvironmentLostError(f"{self._name}.reset() failed: {loss}") from None

    async def _step(self, params: Mapping[str, Any], timeout_s: float | None) -> Any:
        try:
            return self._taken(await self._ask("step", params, timeout_s))
        except WorkerGoneError as loss:
            if not self._trail.is_live:
                raise refusal(Phase.ENDED, self._name, str(loss), autoreset=False) from None
            return await self._lost(loss, timeout_s)

    async def _lost(self, loss: WorkerGoneError, timeout_s: float | None) -> Wired:
        """End the episode; begin the next one in the same result, if it is to be so."""
        logger.warning("an episode of %s ended: %s", self._name, loss)
        result = self._trail.lost(EpisodeEnd("lost", "infrastructure", str(loss)))
        agents: list[str] | None = [] if self._several else None
        if not self._autoreset or self._is_closed:
            return encode_result(result, agents, None)
        try:
            fresh = await self._reset({}, timeout_s)
        except EnvWeaveError as error:
            return encode_result(with_autoreset(result, error), agents, None)
        begun: Any = result_of(fresh, IDENTITY)
        return encode_result(with_autoreset(result, begun), fresh.agents, fresh.position)

    async def _ready(self) -> None:
        """Go to another worker, if the last one is gone."""
        if self._worker is not None and self._worker.gone is None:
            return
        self._worker = None
        try:
            await self.open()
        except EnvWeaveError as error:
            raise WorkerGoneError(f"another could not take over: {error}") from error

    async def _ask(
        self, method: str, params: Mapping[str, Any], timeout_s: float | None
    ) -> ServerWorkerReply:
        worker = self._worker
        if worker is None:
            raise self._loss
        try:
            return await worker.call(
                method, self._number, params, timeout_s, partial(self._heard, method)
            )
        except WorkerGoneError as loss:
            self._loss, self._worker = loss, None
            raise

    def _heard(self, method: str, answer: ServerWorkerReply) -> None:
        """Take note of an answer, whether somebody waits for it or not."""
        self._note(answer)
        if answer.fault is None and method in ("reset", "step"):
            try:
                self._sent = decode_result(answer.value())
                self._trail.follow(result_of(self._sent, IDENTITY))
            except WireError as error:  # raised where somebody waits
                self._sent = error
        self._trail.is_live = answer.is_live

    def _note(self, answer: ServerWorkerReply) -> None:
        if answer.position is not None:
            self._position = Position(*answer.position)

    def _taken(self, answer: ServerWorkerReply) -> Wired:
        if answer.fault is not None:
            answer.value()  # raises
        sent, self._sent = self._sent, None
        if isinstance(sent, WireError):
            raise sent
        assert sent is not None  # it was heard
        return sent

    async def close(self) -> None:
        """Close the environment and free what it held. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        worker, self._worker = self._worker, None
        if worker is None or worker.gone is not None:
            return
        try:
            await worker.close_session(self._number)
        except WorkerGoneError:
            pass  # and with it the environment
        finally:
            self._workers.release(worker)

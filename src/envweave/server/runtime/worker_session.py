"""The server's side of one session in a worker process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, final

from envweave.errors import (
    ClosedError,
    EnvironmentLostError,
    EnvWeaveError,
    ForkError,
    StateFailedError,
    WireError,
)
from envweave.server.dispatch import fork_failed, read_dropped, read_token
from envweave.server.runtime.base import SessionOptions
from envweave.server.runtime.worker_connection import ServerWorker
from envweave.session import Phase, Position
from envweave.session.episodes import EpisodeTracker, with_autoreset
from envweave.session.kept_snapshots import KeptSnapshot
from envweave.session.loss_log import LOSSES_LOGGED
from envweave.session.session import refusal
from envweave.types import EpisodeEnd
from envweave.wire.messages import read_as
from envweave.wire.results import IDENTITY, Wired, decode_result, encode_result, result_of
from envweave.workers.launch import WorkerLostError
from envweave.workers.rpc import WorkerReply

logger = logging.getLogger("envweave.server")


class Workers(Protocol):
    """What a session needs of the runtime's workers."""

    async def choose(self) -> ServerWorker:
        """Return a worker process for a session, and count the session there."""
        ...

    def keeper(self, token: str) -> ServerWorker:
        """Return the worker process that keeps a snapshot.

        Raises:
            ForkError: There is no such worker process.
        """
        ...

    def release(self, worker: ServerWorker) -> None:
        """Count a session of a worker no longer."""

    def discard(self, worker: ServerWorker, number: int) -> None:
        """Close an abandoned session in the background, and count it no longer."""


@final
class WorkerRunner:
    """Runs one session in a worker process; in another one when that is lost.

    A session that is restored moves to the worker process that keeps the snapshot.
    """

    def __init__(
        self, number: int, name: str, options: SessionOptions, workers: Workers, *, several: bool
    ) -> None:
        self._number = number
        self._name = name
        self._autoreset = options.autoreset
        self._timeout_s = options.timeout_s
        self._position = options.position
        self._workers = workers
        self._several_agents = several
        self._tracker = EpisodeTracker(several_agents=several)
        self._worker: ServerWorker | None = None
        self._loss = WorkerLostError("it has no worker process")
        self._last: Wired | WireError | None = None  # the last result
        self._is_closed = False

    @property
    def is_live(self) -> bool:
        """Whether an episode is running."""
        worker = self._worker
        return self._tracker.is_live and worker is not None and worker.gone is None

    def stop_resetting(self) -> None:
        """Turn autoreset off: the server is stopping."""
        self._autoreset = False
        if self._worker is not None:
            self._worker.notify("stop_resetting", self._number)

    async def open(self, beside: ServerWorker | None = None) -> None:
        """Make an environment, in some worker, or in that one.

        Raises:
            EnvWeaveError: It could not be made.
            WorkerLostError: The worker was lost meanwhile.
        """
        if beside is None:
            worker = await self._workers.choose()
        else:
            worker = beside
            worker.sessions += 1
        options = {"autoreset": self._autoreset, "position": self._position}
        try:
            reply = await worker.call("open", self._number, options, self._timeout_s)
            reply.value()
        except asyncio.CancelledError:
            self._workers.discard(worker, self._number)
            raise
        except BaseException:
            self._workers.release(worker)
            raise
        self._note_position(reply)
        self._worker = worker

    async def call(self, method: str, params: Mapping[str, Any], timeout_s: float | None) -> Any:
        """Carry out a call of an environment's method; return the encoded result.

        Raises:
            EnvWeaveError: The call was refused, or failed.
        """
        if self._is_closed:
            raise ClosedError(f"{method}() on {self._name}, which is closed.")
        if method == "step":
            return await self._step(params, timeout_s)
        if method == "reset":
            return await self._reset(params, timeout_s)
        if method == "restore":
            return await self._restore(params, timeout_s)
        if method == "snapshot":
            return await self._snapshot(params, timeout_s)
        try:
            if method == "check_reset":
                await self._ready()
            return (await self._call(method, params, timeout_s)).value()
        except WorkerLostError as loss:
            if method == "state":
                raise StateFailedError(f"{self._name}.state failed: {loss}") from None
            raise EnvironmentLostError(f"{self._name} cannot be reset: {loss}") from None

    async def _reset(self, params: Mapping[str, Any], timeout_s: float | None) -> Wired:
        try:
            await self._ready()
            return self._take(await self._call("reset", params, timeout_s))
        except WorkerLostError as loss:
            self._tracker.is_live = False
            raise EnvironmentLostError(f"{self._name}.reset() failed: {loss}") from None

    async def _snapshot(self, params: Mapping[str, Any], timeout_s: float | None) -> KeptSnapshot:
        worker = self._worker
        if worker is not None and params:
            own = map(worker.local_token, read_dropped(params))
            params = {**params, "dropped": [token for token in own if token is not None]}
        try:
            plain = (await self._call("snapshot", params, timeout_s)).value()
            kept = read_as(plain, KeptSnapshot, "The worker returned no snapshot")
        except WorkerLostError as loss:
            raise fork_failed("snapshot", self._name, loss) from None
        assert worker is not None  # it has answered
        return replace(kept, token=worker.global_token(kept.token))

    async def _restore(self, params: Mapping[str, Any], timeout_s: float | None) -> Wired:
        token = read_token(params.get("token"))
        worker = self._worker
        if worker is None or worker.gone is not None or worker.local_token(token) is None:
            worker = self._workers.keeper(token)
        params = {**params, "token": worker.local_token(token)}
        if worker is not self._worker:
            return await self._restore_in(worker, params, timeout_s)
        try:
            return self._take(await self._call("restore", params, timeout_s))
        except WorkerLostError as loss:
            self._tracker.is_live = False
            raise fork_failed("restore", self._name, loss) from None

    async def _restore_in(
        self, worker: ServerWorker, params: Mapping[str, Any], timeout_s: float | None
    ) -> Wired:
        """Restore in another worker process, and go on there.

        Raises:
            EnvWeaveError: It failed; the session is where it was, as it was.
        """
        last, was_live = self._worker, self._tracker.is_live
        try:
            await self.open(worker)
        except (EnvWeaveError, WorkerLostError) as error:
            raise ForkError(
                f"No {self._name} could be made where the snapshot is kept: {error}"
            ) from error
        try:
            result = self._take(await self._call("restore", params, timeout_s))
        except (EnvWeaveError, WorkerLostError) as error:
            self._workers.discard(worker, self._number)
            self._worker, self._tracker.is_live = last, was_live
            if isinstance(error, WorkerLostError):
                raise fork_failed("restore", self._name, error) from None
            raise
        if last is not None and last.gone is None:
            self._workers.discard(last, self._number)
        return result

    async def _step(self, params: Mapping[str, Any], timeout_s: float | None) -> Any:
        try:
            return self._take(await self._call("step", params, timeout_s))
        except WorkerLostError as loss:
            if not self._tracker.is_live:
                raise refusal(Phase.ENDED, self._name, str(loss), autoreset=False) from None
            return await self._lost(loss, timeout_s)

    async def _lost(self, loss: WorkerLostError, timeout_s: float | None) -> Wired:
        """End the episode; with autoreset, begin the next one in the same result."""
        LOSSES_LOGGED.warn(logger, self._name, loss)
        result = self._tracker.lost(EpisodeEnd("lost", "infrastructure", str(loss)))
        agents: list[str] | None = [] if self._several_agents else None
        if not self._autoreset or self._is_closed:
            return encode_result(result, agents, None)
        try:
            fresh = await self._reset({}, timeout_s)
        except EnvWeaveError as error:
            return encode_result(with_autoreset(result, error), agents, None)
        begun: Any = result_of(fresh, IDENTITY)
        return encode_result(with_autoreset(result, begun), fresh.agents, fresh.position)

    async def _ready(self) -> None:
        """Move to another worker if the last one is gone."""
        if self._worker is not None and self._worker.gone is None:
            return
        self._worker = None
        try:
            await self.open()
        except EnvWeaveError as error:
            raise WorkerLostError(f"another worker could not take over: {error}") from error

    async def _call(
        self, method: str, params: Mapping[str, Any], timeout_s: float | None
    ) -> WorkerReply:
        worker = self._worker
        if worker is None:
            raise self._loss
        try:
            return await worker.call(
                method, self._number, params, timeout_s, partial(self._on_reply, method)
            )
        except WorkerLostError as loss:
            self._loss, self._worker = loss, None
            raise

    def _on_reply(self, method: str, reply: WorkerReply) -> None:
        """Record a reply, also if the caller was cancelled."""
        self._note_position(reply)
        if reply.is_done and method in ("reset", "step", "restore"):
            try:
                self._last = decode_result(reply.value())
                self._tracker.follow(result_of(self._last, IDENTITY))
            except WireError as error:  # raised where the reply is awaited
                self._last = error
        self._tracker.is_live = reply.status[0]

    def _note_position(self, reply: WorkerReply) -> None:
        _, position = reply.status
        if position is not None:
            self._position = Position(*position)

    def _take(self, reply: WorkerReply) -> Wired:
        if not reply.is_done:
            reply.value()  # raises
        result, self._last = self._last, None
        if isinstance(result, WireError):
            raise result
        assert result is not None  # set by `_on_reply`
        return result

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
        except WorkerLostError:
            pass  # so the environment is gone too
        finally:
            self._workers.release(worker)

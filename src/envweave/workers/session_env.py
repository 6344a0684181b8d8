"""`make(ID, backend="process")`: one environment in a worker process of its own."""

from __future__ import annotations

import atexit
import contextlib
import logging
import warnings
import weakref
from typing import Any, final

from envweave.errors import ClosedError, EnvironmentLostError, EnvWeaveError, StateFailedError
from envweave.session.session import Phase, refusal
from envweave.types import AGENT, ResetResult, State, StepResult
from envweave.vector.episode_tracker import EpisodeTracker, advance_seed, with_autoreset
from envweave.vector.process.vector_worker import WorkerInfo
from envweave.workers.losses import end_of
from envweave.workers.session_client import WorkerConnection
from envweave.workers.session_worker import WorkerReply
from envweave.workers.worker_process import CLOSE_S, WorkerLostError

logger = logging.getLogger("envweave.session")

INTERRUPTED = WorkerLostError("the last call was interrupted")


@final
class ProcessDriver:
    """Carries a sync caller's calls to a session in a worker process.

    A worker that is lost ends the episode; another one is started for the next.
    """

    def __init__(self, line: WorkerConnection, hello: WorkerInfo, *, autoreset: bool) -> None:
        self.interface = hello.interface
        self.tasks = hello.tasks
        several = hello.interface.possible_agents is not None
        self.agents: list[str] = [] if several else [AGENT]
        self._line = line
        self._autoreset = autoreset
        self._trail = EpisodeTracker(several_agents=several)
        self._position: Any = None
        self._is_closed = False
        self._unclosed = weakref.finalize(self, _dropped, line, self.interface.name)
        self._unclosed.atexit = False
        atexit.register(line.end)

    def reset(self, **wanted: Any) -> ResetResult[Any]:
        """Begin an episode. See `Env.reset`."""
        name = self.interface.name
        if self._is_closed:
            raise ClosedError(f"reset() on {name}, which is closed. Make a new environment.")
        try:
            position = self._ready()
            result: ResetResult[Any] = self._call("reset", keywords=wanted, position=position)
        except WorkerLostError as loss:
            self._trail.is_live = False
            if loss.offender is not None and self._position is not None:
                self._position = advance_seed(self._position, wanted.get("seed"))
            raise EnvironmentLostError(f"{name}.reset() failed: {loss}") from None
        self._trail.follow(result)
        return result

    def step(self, action: Any) -> StepResult[Any]:
        """Take one step. See `Env.step`."""
        name, trail = self.interface.name, self._trail
        if self._is_closed:
            raise refusal(Phase.CLOSED, name, None, autoreset=self._autoreset)
        try:
            result: StepResult[Any] = self._call("step", action)
        except WorkerLostError as loss:
            if not trail.is_live or loss is INTERRUPTED:
                trail.is_live = False
                raise refusal(Phase.ENDED, name, str(loss), autoreset=False) from None
            return self._lost(loss)
        trail.follow(result)
        return result

    def _lost(self, loss: WorkerLostError) -> StepResult[Any]:
        end = end_of(loss, 0)
        logger.warning("an episode of %s ended: %s", self.interface.name, loss)
        result = self._trail.lost(end)
        if not self._autoreset:
            return result
        try:
            return with_autoreset(result, self.reset())
        except EnvWeaveError as error:
            return with_autoreset(result, error)

    def state(self) -> State:
        """Return the environment's state."""
        name = self.interface.name
        if self._is_closed:
            raise ClosedError(f"state() on {name}, which is closed.")
        try:
            state: State = self._call("state")
        except WorkerLostError as loss:
            raise StateFailedError(f"{name}.state failed: {loss}") from None
        return state

    def _ready(self) -> Any:
        """Start another worker if the last was lost; return where it must go on then."""
        worker = self._line.worker
        if worker is not None:
            if not worker.is_gone:
                return None
            self._line.lose(worker.lost())
        try:
            self._line.start()
        except WorkerLostError:
            raise
        except (EnvWeaveError, OSError) as error:
            raise WorkerLostError(f"a new worker process could not take over: {error}") from error
        return self._position

    def _call(self, method: str, *args: Any, **rest: Any) -> Any:
        line = self._line
        worker = line.worker
        if worker is None:
            raise line.loss
        try:
            answer: WorkerReply | None = None
            while answer is None:
                _, packed = line.packed(0, method, *args, **rest)
                worker.say(packed)
                answer = line.read(worker.hear(line.timeout_s)[1])
        except WorkerLostError as loss:
            line.lose(loss)
            raise
        except Exception:  # what the call itself raised
            raise
        except BaseException:
            line.lose(INTERRUPTED)  # nobody knows how far it came
            raise
        self.agents, self._position = answer.agents, answer.position
        return answer.value

    def close(self) -> None:
        """Close the environment and end its worker, once."""
        self._is_closed = True
        if self._unclosed.detach() is None:
            return
        atexit.unregister(self._line.end)
        line = self._line
        try:
            if line.worker is not None:
                with contextlib.suppress(WorkerLostError):
                    line.worker.say(line.packed(0, "close")[1])
                    if line.worker.speaks_within(CLOSE_S):
                        line.read(line.worker.hear()[1])
        finally:
            line.end()


def _dropped(line: WorkerConnection, name: str) -> None:
    atexit.unregister(line.end)
    line.end()
    warnings.warn(
        f"{name} in a worker process was dropped without close(). Use it in a `with` block, or "
        "close it.",
        ResourceWarning,
        stacklevel=1,
    )

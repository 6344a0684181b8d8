"""Records the sessions of a server, wherever they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, final

from envweave.recording.events import RESTORE_BEGAN, pack
from envweave.recording.recorder import EpisodeEvents
from envweave.recording.writer import RunWriter
from envweave.server.runtime.base import Health, Runtime, SessionOptions, SessionRuntime
from envweave.types import ToolResult
from envweave.wire.description import Description
from envweave.wire.results import IDENTITY, Wired, result_of


@final
class RecordedRuntime:
    """A runtime whose sessions are recorded, all by one writer.

    Args:
        runtime: Runs them.
        open_writer: Opens the recording, given the environment's description.
    """

    def __init__(self, runtime: Runtime, open_writer: Callable[[Description], RunWriter]) -> None:
        self._runtime = runtime
        self._open_writer = open_writer
        self._writer: RunWriter | None = None

    @property
    def is_one_object(self) -> bool:
        """Whether all sessions share one environment object, one after the other."""
        return self._runtime.is_one_object

    @property
    def description(self) -> Description:
        """Description of the environment; available once `start` has returned."""
        return self._runtime.description

    @property
    def health(self) -> Health:
        """Current health."""
        return self._runtime.health

    async def start(self) -> None:
        """Start, and open the recording.

        Raises:
            EnvWeaveError: The environment cannot be made, or nothing can be recorded.
        """
        await self._runtime.start()
        try:
            self._writer = self._open_writer(self._runtime.description)
        except BaseException:
            await self._runtime.close()
            raise

    async def open(self, options: SessionOptions) -> SessionRuntime:
        """Make an environment, and return its runner."""
        assert self._writer is not None  # started
        return RecordedRunner(await self._runtime.open(options), EpisodeEvents(self._writer))

    async def tasks(self, split: str, start: int, count: int) -> list[Any]:
        """Return some of the tasks of a split, in order."""
        return await self._runtime.tasks(split, start, count)

    async def task(self, task_id: str) -> Any:
        """Return one task."""
        return await self._runtime.task(task_id)

    async def close(self) -> None:
        """Close every environment, then the recording. May be called twice."""
        try:
            await self._runtime.close()
        finally:
            if self._writer is not None:
                self._writer.close()


@final
class RecordedRunner:
    """Runs one session, and records it."""

    def __init__(self, runner: SessionRuntime, events: EpisodeEvents) -> None:
        self._runner = runner
        self._events = events

    @property
    def is_live(self) -> bool:
        """Whether an episode is running."""
        return self._runner.is_live

    async def call(self, method: str, params: Mapping[str, Any], timeout_s: float | None) -> Any:
        """Carry out a call of an environment's method; return the encoded result."""
        if method not in ("reset", "step", "restore"):
            return await self._runner.call(method, params, timeout_s)
        answer = params.get("answer")
        packed = pack(_read_answer(answer) if answer is not None else params.get("action"))
        began_s = perf_counter()
        try:
            wired = await self._runner.call(method, params, timeout_s)
        except Exception as error:
            if not (method == "restore" and self._runner.is_live):  # else it is unharmed
                self._events.failed(error)
            raise
        self._record(method, params, wired, packed, perf_counter() - began_s)
        return wired

    def _record(
        self, method: str, params: Mapping[str, Any], wired: Wired, packed: bytes, duration_s: float
    ) -> None:
        result = result_of(wired, IDENTITY)
        if method == "step":
            is_answer = params.get("answer") is not None
            self._events.stepped(packed, result, duration_s, is_answer=is_answer)
        elif method == "restore":
            assert wired.parent is not None  # of every restored episode
            self._events.left(RESTORE_BEGAN)
            episode, step = wired.parent
            self._events.about = {"parent": {"episode": episode, "step": step}}
            self._events.began(result, duration_s, task=result.task_id)
        else:
            asked = {name: params.get(name) for name in ("seed", "task", "options")}
            self._events.began(result, duration_s, **asked)

    def stop_resetting(self) -> None:
        """Turn autoreset off, because the server is stopping."""
        self._runner.stop_resetting()

    async def close(self) -> None:
        """Close the environment and release its resources. May be called twice."""
        self._events.left("The session was closed in mid-episode.")
        await self._runner.close()


def _read_answer(answer: Any) -> Any:
    if isinstance(answer, ToolResult) or not isinstance(answer, dict):
        return answer
    return ToolResult(str(answer.get("call_id")), answer.get("value"), answer.get("error"))

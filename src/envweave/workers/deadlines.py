"""Deadlines of environments in a worker process, watched by the process that started it.

The worker notes in shared memory which environment's code is running and since when. Code that
hangs cannot end itself, so the other process reads the clock and ends the worker.
"""

from __future__ import annotations

import inspect
import time
import types
from collections.abc import Callable, Generator
from types import CoroutineType
from typing import Any, final

from envweave.environment import Environment
from envweave.types import ToolResult
from envweave.wrappers import Wrapper


@final
class CodeClock:
    """Which environment's code runs in a worker, and since when, in two shared words.

    Args:
        words: Shared memory of both processes.
        first: The index of the first of the two words.
    """

    SIZE = 2

    def __init__(self, words: memoryview, first: int = 0) -> None:
        self._words = words
        self._env_index, self._since = first, first + 1

    def start(self, env_index: int) -> None:
        """Note that an environment's code begins to run."""
        self._words[self._env_index] = env_index
        self._words[self._since] = time.monotonic_ns()

    def stop(self) -> None:
        """Note that the code has returned."""
        self._words[self._since] = 0

    def running(self) -> tuple[int, float] | None:
        """Return which environment's code is running, and for how many seconds; or `None`."""
        words = self._words
        since, env_index = words[self._since], words[self._env_index]
        if not since or words[self._since] != since:  # it returned just now
            return None
        return env_index, (time.monotonic_ns() - since) / 1e9


@final
class ClockedEnvironment(Wrapper):
    """Notes on a worker's clock when the author's code begins and ends."""

    def __init__(self, environment: Environment, clock: CodeClock, env_index: int) -> None:
        super().__init__(environment)
        self._clock, self._env_index = clock, env_index

    def reset(self, **kwargs: Any) -> Any:
        """Begin an episode inside."""
        return self._run(lambda: self.environment.reset(**kwargs))

    def step(self, action: Any) -> Any:
        """Step inside."""
        return self._run(lambda: self.environment.step(action))

    def answer(self, result: ToolResult) -> Any:
        """Pass the result of a tool call on."""
        return self._run(lambda: self.environment.answer(result))

    def snapshot(self) -> Any:
        """Return the state of the environment inside; the clock is this worker's own."""
        return self._run(self.environment.snapshot)

    def restore(self, snapshot: Any) -> Any:
        """Continue inside from a snapshot."""
        return self._run(lambda: self.environment.restore(snapshot))

    def _run(self, code: Callable[[], Any]) -> Any:
        self._clock.start(self._env_index)
        try:
            outcome = code()
        finally:
            self._clock.stop()
        return self._resume(outcome) if inspect.iscoroutine(outcome) else outcome

    @types.coroutine
    def _resume(self, coroutine: CoroutineType[Any, Any, Any]) -> Generator[Any, None, Any]:
        """Run a coroutine; the clock runs while it holds the event loop."""
        error: BaseException | None = None
        while True:
            self._clock.start(self._env_index)
            try:
                awaited = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration as done:
                return done.value
            finally:
                self._clock.stop()
            error = None
            try:
                yield awaited
            except BaseException as thrown:  # noqa: BLE001 - a cancellation, for the coroutine
                error = thrown

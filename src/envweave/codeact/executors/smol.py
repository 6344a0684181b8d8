"""Runs code in the interpreter of smolagents, in this process."""

from __future__ import annotations

import importlib
from functools import partial
from typing import final

from envweave.codeact.executors.base import Executor, Functions
from envweave.codeact.executors.local.episodes import LocalEpisode
from envweave.codeact.executors.local.smolagents_code import SmolagentsCode
from envweave.codeact.models import Variable
from envweave.errors import MissingExtraError, SessionLostError
from envweave.sandbox.limits import Limits
from envweave.sandbox.results import ExecutionResult


@final
class SmolagentsExecutor(Executor):
    """Runs code by the `LocalPythonExecutor` of smolagents.

    **It is no security boundary**, and its authors say so too. It walks the syntax tree in a
    thread of this process, and knows less of Python than Python does: few builtins, and the
    imports of `MODULES`, numpy and those that it allows by itself. What it refuses is an
    `InterpreterError`.

    What its language means is what it means there:

    - `final_answer(value)` ends the code, and `value` is the return value. Where the environment
      has a tool of that name, the tool is called first.
    - Names of tools and of its builtins cannot be bound.
    - It counts operations, and refuses to go on after ten million, or a million rounds of one
      `while`.

    Its own time-out waits for the code to end. So the time is limited as `InprocExecutor` limits
    it, and as there an episode has its own `random`, `numpy.random` and folder; but the current
    folder is of no use, since code cannot open files without the `file_*` tools.

    Args:
        limits: What the code may use.

    Raises:
        MissingExtraError: smolagents is not installed.
    """

    name = "smolagents"

    def __init__(self, limits: Limits | None = None) -> None:
        try:
            library = importlib.import_module("smolagents.local_python_executor")
        except ImportError as error:
            raise MissingExtraError.for_extra(
                "executor='smolagents' needs smolagents.", "smolagents"
            ) from error
        self._limits = limits or Limits()
        self._make = partial(SmolagentsCode, library)
        self._episode: LocalEpisode | None = None
        self.names: list[str] = []

    @property
    def isolation(self) -> str:
        """None."""
        return "none"

    async def begin(self, *, seed: int | None, tools: Functions, files: bool) -> None:
        """Leave the old names, and start with none."""
        await self._leave()
        self._episode = LocalEpisode(self._make, self._limits, seed, tools, files=files)
        self.names = self._episode.names

    async def run(self, code: str) -> ExecutionResult:
        """Run code among the episode's names."""
        if self._episode is None:
            raise SessionLostError("No episode has begun.")
        return await self._episode.run(code)

    async def variables(self) -> dict[str, Variable]:
        """Ask the thread of the code. What does not come in a second does not come."""
        return {} if self._episode is None else await self._episode.variables()

    async def close(self) -> None:
        """End the thread, and remove its folder."""
        await self._leave()

    async def _leave(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            await episode.close()

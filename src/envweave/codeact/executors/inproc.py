"""Runs code in this very process, for those who trust it."""

from __future__ import annotations

from typing import final

from envweave.codeact.executors.base import Executor, Functions
from envweave.codeact.executors.local.cells import Cells
from envweave.codeact.executors.local.episodes import LocalEpisode
from envweave.codeact.models import Variable
from envweave.errors import SessionLostError
from envweave.sandbox.limits import Limits
from envweave.sandbox.results import ExecutionResult


@final
class InprocExecutor(Executor):
    """Runs code in a thread of this process.

    **It is no security boundary**: there are no walls. Code can read, change and end everything
    that this process can: its memory, its files, its keys. Use it for code that you would run
    yourself.

    What sessions of the sandbox have to themselves, this keeps apart as far as it can:

    - Each episode has its own names, and its own `random`, `numpy.random` and `time.sleep`, as
      the code imports them. Libraries that draw from the global generators draw from the host's.
    - What the thread of the code prints is kept. What threads print that the code starts goes to
      the host's own output; `contextlib.redirect_stdout` redirects the host's too, for so long.
    - Where the system allows it (Linux), the thread has its own current folder, which is removed
      with the episode. `file_*` tools see that folder, with `/tmp` in it; `open("/tmp/…")` is the
      host's.
    - Time is limited by an exception in the thread, and output, tool calls and the size of the
      folder as in the sandbox. Memory is not, nor open files, nor processes.
    - Code that waits in C (a lock, a socket, a program) cannot be interrupted, nor can code that
      catches everything. It is left behind in its thread, and its episode is over. C code that
      does not let other threads run, `10 ** 10 ** 9` for one, stops the whole process meanwhile.

    Args:
        limits: What the code may use.
    """

    name = "inproc"

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._episode: LocalEpisode | None = None
        self.names: list[str] = []

    @property
    def isolation(self) -> str:
        """None."""
        return "none"

    async def begin(self, *, seed: int | None, tools: Functions, files: bool) -> None:
        """Leave the old names, and start with none."""
        await self._leave()
        self._episode = LocalEpisode(Cells, self._limits, seed, tools, files=files)
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

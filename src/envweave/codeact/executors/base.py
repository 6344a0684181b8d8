"""What runs an agent's code: the interface, and the names that callers ask for one by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from envweave.codeact.models import Variable
from envweave.sandbox.results import ExecutionResult

Functions = Mapping[str, Callable[..., object]]
"""What code may call, by the name it is called by; sync or async."""


class Executor(ABC):
    """Runs the code of one environment: variables last for an episode, and no longer.

    An environment calls it from one task at a time.

    Attributes:
        name: What `create_codeact_env(executor=…)` calls it.
        names: The functions that code may call since `begin`, besides Python's own.
    """

    name: str
    names: list[str]

    @abstractmethod
    async def begin(self, *, seed: int | None, tools: Functions, files: bool) -> None:
        """Forget everything, and start over.

        Args:
            seed: Of `random` and numpy in the code; `None` draws from the system.
            tools: What the code may call.
            files: Whether `file_read` and its kind (`FILE_TOOLS`) are among it, bound to the
                folder that the code works in.
        """

    @abstractmethod
    async def run(self, code: str) -> ExecutionResult:
        """Run code. Whatever the code does, this does not raise.

        Raises:
            SessionLostError: There is nothing to run it in any more, and no code did that.
        """

    @abstractmethod
    async def variables(self) -> dict[str, Variable]:
        """Return what the code has bound since `begin`: names, types and short reprs.

        It takes a bounded time, whatever the values do when they are shown. A tool that they call
        is in the record of the next `run`.
        """

    @property
    @abstractmethod
    def isolation(self) -> str:
        """The walls around the code, in a word: `"namespace"`, `"landlock"` or `"none"`.

        In a container it is `"docker+"` and what stands inside, such as `"docker+landlock"`; and
        `"docker"` before it is started.
        """

    @abstractmethod
    async def close(self) -> None:
        """Free everything. Called once."""

    def keep_private(self, modules: tuple[str, ...]) -> None:  # noqa: B027 - most have nothing to do
        """Never show code the distributions, or modules, that these are part of.

        Called by the environment, with what defines it, before the first episode. Whoever runs
        code that can see all there is does nothing.
        """

    def hold(self) -> Callable[[], None]:
        """Keep what executors of this kind share, until what is returned is called."""
        return lambda: None

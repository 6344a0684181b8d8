"""`Executor`: the interface of what runs an agent's code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from envweave.codeact.models import Variable
from envweave.errors import ForkError
from envweave.sandbox.execution import ExecutionResult

Functions = Mapping[str, Callable[..., object]]
"""Functions that code may call, by name; sync or async."""


class Executor(ABC):
    """Runs the code of one environment. Variables persist within an episode.

    An environment calls it from one task at a time.

    Attributes:
        name: Its name in `create_codeact_env(executor=…)`.
        names: The functions that code may call since `begin`, besides Python's own.
    """

    name: str
    names: list[str]

    @abstractmethod
    async def begin(self, *, seed: int | None, tools: Functions, files: bool) -> None:
        """Start an episode, without anything of the one before.

        Args:
            seed: The seed of `random` and numpy in the code; `None` seeds from the system.
            tools: Functions that the code may call.
            files: Whether the file tools (`FILE_TOOLS`) are added, for the folder that the code
                works in.
        """

    @abstractmethod
    async def run(self, code: str) -> ExecutionResult:
        """Run code. Whatever the code does, this does not raise.

        Raises:
            SessionLostError: The session is gone, through no fault of its code.
        """

    @abstractmethod
    async def variables(self) -> dict[str, Variable]:
        """Return the variables that the code has bound since `begin`, with types and short reprs.

        It takes a bounded time, whatever the `__repr__` of the values does. Tools that a
        `__repr__` calls are recorded in the result of the next `run`.
        """

    async def snapshot(self) -> Any:
        """Return a copy of the running episode, for `restore`.

        It is live, so it stays in this process. What it holds is freed when nothing refers to it
        any more.

        Raises:
            ForkError: The episode cannot be copied, as most executors can copy none.
        """
        raise ForkError(
            f"The executor {self.name!r} cannot copy a running episode; executor='sandbox' can."
        )

    async def restore(  # the default takes none
        self,
        snapshot: Any,  # noqa: ARG002
        *,
        tools: Functions,  # noqa: ARG002
        files: bool,  # noqa: ARG002
    ) -> None:
        """Continue from a snapshot, in place of the running episode. It remains usable.

        Args:
            snapshot: Made by this executor, or by another one in this process with equal options.
            tools: The functions that the code may call from now on, by the same names.
            files: As for `begin`.

        Raises:
            ForkError: It cannot continue here; the running episode is unharmed.
        """
        raise ForkError(f"The executor {self.name!r} cannot continue from a snapshot.")

    @property
    @abstractmethod
    def isolation(self) -> str:
        """The isolation of the code: `"namespace"`, `"landlock"` or `"none"`.

        In a container it is `"docker+"` and the isolation inside, such as `"docker+landlock"`;
        `"docker"` before the container is started.
        """

    @abstractmethod
    async def close(self) -> None:
        """Free everything. Called once."""

    def keep_private(self, modules: tuple[str, ...]) -> None:  # noqa: B027 - most have nothing to do
        """Hide these modules, and the distributions that they are part of, from code.

        Called by the environment, with the modules that define it, before the first episode. An
        executor without isolation does nothing.
        """

    def hold(self) -> Callable[[], None]:
        """Keep what executors of this kind share; return a function that releases it."""
        return lambda: None

"""Runs commands in a sandboxed shell that lives as long as the episode."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NoReturn, final

from envweave.codeact.executors.base import Executor, Functions
from envweave.codeact.executors.sandbox import (
    EpisodeSession,
    SandboxOptions,
    SandboxSessions,
    SessionSource,
)
from envweave.codeact.models import Variable, exit_code_of
from envweave.errors import ForkError, OptionError, SessionLostError
from envweave.sandbox.execution import ExecutionResult

MIN_OPEN_FILES = 32
_SHELL_MODULE = "envweave.codeact.injected.shell"
_MARGIN_S = 1.0
"""How long after the limits of a command the host ends its session."""


@final
class TerminalExecutor(Executor):
    """Runs shell commands: bash, or sh if bash is not installed.

    The current folder, variables, functions and background jobs persist for the episode. A command
    has no input. A command that takes too long is interrupted, and the shell continues. One that
    ignores the interrupt is killed with everything that runs, and a new shell starts; if the
    session has no PID namespace, that ends the session.

    Args:
        options: The options of the sandbox; the profile is always `"shell"`.
        source: Creates the source of sessions; default: a sandbox on this machine.

    Attributes:
        exit_code: The status of the last command.

    Raises:
        IsolationError: This machine cannot provide the isolation; the message says what to do.
        OptionError: An option is invalid.
    """

    name = "terminal"

    def __init__(
        self,
        options: SandboxOptions | None = None,
        *,
        source: Callable[[SandboxOptions], SessionSource] = SandboxSessions,
    ) -> None:
        options = options or SandboxOptions()
        limits = options.limits
        if limits.open_files < MIN_OPEN_FILES:
            raise OptionError(
                f"Limits(open_files={limits.open_files}): a shell needs at least {MIN_OPEN_FILES}."
            )
        preload = tuple(dict.fromkeys((*options.preload, _SHELL_MODULE)))
        self._options = dataclasses.replace(options, preload=preload, profile="shell")
        self._source = source(self._options)
        self._episode = EpisodeSession(self._source)
        self._shell = f"Shell({limits.output_bytes}, {limits.grace_s}, {limits.open_files})"
        self.names: list[str] = []
        self.exit_code = 0

    @property
    def isolation(self) -> str:
        """The isolation of the sessions."""
        return self._source.isolation

    async def begin(self, *, seed: int | None, tools: Functions, files: bool) -> None:
        """Close the old session, and start a shell in a fresh one."""
        if tools or files:
            raise OptionError("A shell runs programs and has no tools. Omit tools and files.")
        session = await self._episode.begin(seed=seed, tools={})
        self.exit_code = 0
        started = await session.run(f"from {_SHELL_MODULE} import Shell; shell = {self._shell}")
        if not started.success:
            raise SessionLostError(f"No shell could be started: {started.exception_message}")

    async def run(self, code: str) -> ExecutionResult:
        """Run a command in the episode's shell."""
        session = self._episode.current
        if session is None:
            raise SessionLostError("No episode has begun.")
        limits = self._options.limits
        result = await session.run(
            f"shell.run({code!r}, {limits.timeout_s})",
            timeout_s=limits.timeout_s + limits.grace_s + _MARGIN_S,
        )
        outcome = result.return_value
        if not result.success or not isinstance(outcome, tuple) or len(outcome) != 4:
            self.exit_code = exit_code_of(result)
            return dataclasses.replace(result, return_value=None, return_repr=None)
        self.exit_code, stdout, stderr, limits_hit = outcome
        return ExecutionResult(
            success=self.exit_code == 0,
            stdout=stdout,
            stderr=stderr,
            duration_s=result.duration_s,
            limits_hit=tuple(limits_hit),
        )

    async def variables(self) -> dict[str, Variable]:
        """Return none: commands can list the variables of a shell."""
        return {}

    async def snapshot(self) -> NoReturn:
        """Refuse.

        Raises:
            ForkError: Always.
        """
        raise ForkError("The processes of a shell cannot be copied, so its episode cannot be.")

    async def close(self) -> None:
        """End the session, and the sandbox if nothing else uses it."""
        await self._episode.close()

    def keep_private(self, modules: tuple[str, ...]) -> None:
        """Hide these modules from code."""
        self._source.keep_private(modules)

    def hold(self) -> Callable[[], None]:
        """Keep what the source shares; see `Executor`."""
        return self._source.hold()

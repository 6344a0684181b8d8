"""The coding environment: an agent writes code, and observes output, errors and exit code."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

import envweave as ew
from envweave.codeact.environment import CodeActSnapshot, GradeWhen
from envweave.codeact.executors.base import Executor
from envweave.codeact.executors.sandbox import SandboxOptions, SandboxSessions, SessionSource
from envweave.codeact.factory import AnyTools, create_codeact_env, read_limits
from envweave.codeact.grading.base import Grader
from envweave.envs.coding_env.models import CodeAction, CodeObservation, CodeState
from envweave.envs.coding_env.terminal import TerminalExecutor
from envweave.errors import OptionError, suggest
from envweave.sandbox.config import Profile, WantedIsolation
from envweave.sandbox.execution import Limits
from envweave.sandbox.host.packages import AnyPackages, calling_module, read_packages


class CodingEnvironment(ew.Environment):
    """Runs the Python or shell commands of an agent; variables and files persist for the episode.

    Errors are observations: the traceback is in `stderr`, and `exit_code` is not 0. Code that takes
    too long is interrupted, and keeps its variables. Code that ends its session ends the episode,
    with the agent to blame. No episode ends by itself, unless there is a grader.

    Args:
        profile: `"python"`: actions are Python code. `"shell"`: actions are commands of one shell,
            which can run programs; it has no tools.
        limits: What the code may use; a `Limits`, or its fields.
        tools: What code may call: a `ToolRegistry`, functions, or functions by name.
        files: Whether the file tools (`file_read`, `file_write`, …) are added.
        transform: Applied to every observation, once.
        isolation: See `Sandbox`.
        executor: What runs Python; see `create_codeact_env`. A shell runs in the sandbox, or with
            `"docker"` in a container.
        preload: Modules that are imported before a session starts.
        packages: The installed packages that code can import and read, besides the standard
            library and numpy; see `create_codeact_env`.
        visible: Files and folders of the host that code may read.
        grader: Grades what the agent submits; see `CodeActEnvironment`.
        grade: When to grade. A shell submits nothing, so it is graded after every step or never.
        tasks: The tasks of episodes.
        fatal_reward: The reward of a step whose code ended its session.

    Raises:
        IsolationError: This machine cannot provide the isolation; the message says what to do.
        StartupError: No container engine answers, or the image is missing.
        MissingExtraError: The executor needs a library that is not installed.
        OptionError: An option is invalid, or cannot be combined with another.
    """

    openenv_fields = ("stdout", "stderr", "exit_code")

    def __init__(
        self,
        *,
        profile: Profile = "python",
        limits: Limits | Mapping[str, Any] | None = None,
        tools: AnyTools | None = None,
        files: bool = False,
        transform: Callable[[ew.Observation], ew.Observation] | None = None,
        isolation: WantedIsolation = "auto",
        executor: str | Executor = "sandbox",
        preload: Iterable[str] = (),
        packages: AnyPackages = None,
        visible: Iterable[str | os.PathLike[str]] = (),
        grader: Grader | None = None,
        grade: GradeWhen = "final",
        tasks: ew.Tasks | None = None,
        fatal_reward: float = 0.0,
    ) -> None:
        if profile not in get_args(Profile):
            known = get_args(Profile)
            raise OptionError(
                f"profile must be one of {', '.join(map(repr, known))}, got {profile!r}."
                f"{suggest(str(profile), known)}"
            )
        self._terminal: TerminalExecutor | None = None
        options: dict[str, Any] = {
            "limits": limits,
            "isolation": isolation,
            "preload": preload,
            "packages": packages,
            "visible": visible,
        }
        if profile == "shell":
            _refuse_python_options(
                tools=tools,
                files=files,
                preload=preload,
                executor=executor not in ("sandbox", "docker"),
            )
            if grader is not None and grade == "final":
                raise OptionError(
                    "A shell has no final_answer() to call. Pass grade='every_step' to grade after "
                    "every step."
                )
            executor = self._terminal = TerminalExecutor(
                SandboxOptions(
                    limits=read_limits(limits),
                    isolation=isolation,
                    packages=read_packages(packages),
                    private=calling_module(),
                    visible=tuple(os.fspath(one) for one in visible),
                ),
                source=_docker_sessions if executor == "docker" else SandboxSessions,
            )
            options = {}
            self.deterministic = False  # programs draw their random numbers from the system
        self._inner = create_codeact_env(
            executor=executor,
            tools=tools,
            files=files,
            grader=grader,
            grade=grade,
            tasks=tasks,
            fatal_reward=fatal_reward,
            **options,
        ).unwrap()
        self.transform = transform
        self.tasks = tasks

    async def reset(
        self, *, seed: int | None = None, task: ew.Task | None = None
    ) -> CodeObservation:
        """Start an episode without variables and files.

        `seed` seeds `random` and numpy in the code, or `$RANDOM` in the shell.
        """
        return self._flatten(await self._inner.reset(seed=seed, task=task))

    async def step(self, action: CodeAction) -> CodeObservation:
        """Run the code, and return its outcome."""
        return self._flatten(await self._inner.step(action))

    def _flatten(self, observation: ew.CodeObservation) -> CodeObservation:
        terminal = self._terminal
        code = observation.exit_code if terminal is None else terminal.exit_code
        return CodeObservation.of(observation, code)

    @property
    async def state(self) -> CodeState:
        """The exit code of the last step, and the variables with types and reprs."""
        state: CodeState = await self._inner.state
        if self._terminal is not None:
            state = dataclasses.replace(state, last_exit_code=self._terminal.exit_code)
        return state

    async def snapshot(self) -> CodeActSnapshot:
        """Return the running episode, as `CodeActEnvironment` does. That of a shell is refused.

        Raises:
            ForkError: It cannot be copied.
        """
        snapshot: CodeActSnapshot = await self._inner.snapshot()
        return snapshot

    async def restore(self, snapshot: CodeActSnapshot) -> None:
        """Continue from a snapshot; see `CodeActEnvironment`."""
        await self._inner.restore(snapshot)

    async def close(self) -> None:
        """Close the executor."""
        await self._inner.close()

    def connect(self, events: list[Any]) -> None:
        """Send the events of the code to `events`. Called by the session."""
        super().connect(events)
        self._inner.connect(events)

    def hold(self) -> Callable[[], None]:
        """Keep the sandbox that environments of this kind share."""
        return self._inner.hold()


def _refuse_python_options(**given: Any) -> None:
    for name, value in given.items():
        if value:
            raise OptionError(f"{name}=… is only supported by profile='python', not by a shell.")


def _docker_sessions(options: SandboxOptions) -> SessionSource:
    from envweave.codeact.executors.docker.executor import default_sessions

    return default_sessions(options)

"""What an agent that writes code does and sees: `CodeAction`, `CodeObservation`, `CodeState`."""

from __future__ import annotations

from dataclasses import dataclass, field

from envweave.sandbox.results import ExecutionResult
from envweave.types import Action, Observation, State

TIMED_OUT = 124
"""The exit code of code that took too long, as of the command `timeout`."""

KILLED = 137
"""The exit code of code that ended its session, as of a process that SIGKILL ended."""


@dataclass
class CodeAction(Action):
    """Code to run.

    Attributes:
        code: Python. If its last statement is an expression, that is the return value.
    """

    code: str


@dataclass
class CodeObservation(Observation):
    """What the code came to.

    Attributes:
        execution_result: All that is known of it. Before the first step, of no code at all.
        code: The code that ran.
        prompt: What the task asks for; shown when an episode begins.
        available_tools: The functions that code may call besides Python's own.
    """

    execution_result: ExecutionResult = field(default_factory=lambda: ExecutionResult(success=True))
    code: str = ""
    prompt: str = ""
    available_tools: list[str] = field(default_factory=list)

    @property
    def stdout(self) -> str:
        """What the code printed."""
        return self.execution_result.stdout

    @property
    def stderr(self) -> str:
        """What the code wrote there, and the traceback of what it did not catch."""
        return stderr_of(self.execution_result)

    @property
    def exit_code(self) -> int:
        """0 if the code came to its end, 124 if it took too long, 137 if its session is gone."""
        return exit_code_of(self.execution_result)


@dataclass
class Variable:
    """A name that the agent's code has bound.

    Attributes:
        type: The name of its value's class.
        repr: The value, shortened.
    """

    type: str
    repr: str


@dataclass
class CodeState(State):
    """What an episode has left behind: names and how they look, never the objects.

    It is the word of the code that ran.

    Attributes:
        variables: By name, what the agent's code has bound.
        tools: The functions that code may call besides Python's own.
        executor: What runs the code.
        isolation: The walls around it; see `Executor.isolation`.
        last_exit_code: That of the last step.
    """

    variables: dict[str, Variable] = field(default_factory=dict)
    tools: list[str] = field(default_factory=list)
    executor: str = ""
    isolation: str = ""
    last_exit_code: int = 0


def exit_code_of(result: ExecutionResult) -> int:
    """Return what a shell would say of such a run."""
    if result.success:
        return 0
    if result.exception_type == "SystemExit" and not result.session_ended:
        return _asked_for(result.exception_message or "")
    if "time" in result.limits_hit:
        return TIMED_OUT
    return KILLED if result.session_ended else 1


def _asked_for(message: str) -> int:
    """Return the exit code that `sys.exit(…)` asks for: 0 for nothing, 1 for a text."""
    if message in ("", "None"):
        return 0
    digits = message.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 9:
        return 1
    return int(message) & 0xFF


def stderr_of(result: ExecutionResult) -> str:
    """Return what a terminal would show of a run besides its output."""
    told = result.traceback
    if told is None and result.exception_type is not None:
        told = f"{result.exception_type}: {result.exception_message or ''}\n"
    if not told:
        return result.stderr
    between = "" if not result.stderr or result.stderr.endswith("\n") else "\n"
    return f"{result.stderr}{between}{told}"

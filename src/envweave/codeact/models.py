"""The data types of agents that write code: `CodeAction`, `CodeObservation`, `CodeState`."""

from __future__ import annotations

from dataclasses import dataclass, field

from envweave.sandbox.execution import ExecutionResult
from envweave.types import Action, Observation, State

TIMED_OUT = 124
"""The exit code of code that hit the time limit, as of the command `timeout`."""

KILLED = 137
"""The exit code of code that ended its session, as of a process killed by SIGKILL."""


SHOWN = 4_000
"""How many characters of an output a model is shown."""


@dataclass
class CodeAction(Action):
    """Code to run.

    Attributes:
        code: Python source. The value of a last expression is the return value.
    """

    code: str


@dataclass
class CodeObservation(Observation):
    """The outcome of running code.

    Attributes:
        execution_result: The outcome. Before the first step, an empty success.
        code: The code that ran.
        prompt: The prompt of the task, in the first observation of an episode.
        available_tools: The functions that code may call besides Python's own.
    """

    execution_result: ExecutionResult = field(default_factory=lambda: ExecutionResult(success=True))
    code: str = ""
    prompt: str = ""
    available_tools: list[str] = field(default_factory=list)

    def render(self) -> str:
        """Return what a model is shown: at first the prompt and the functions, then the outcome."""
        if self.prompt or not self.code:
            tools = "\n".join(f"- {name}" for name in self.available_tools)
            functions = f"Besides Python's own functions your code can call these:\n{tools}"
            return "\n\n".join(text for text in (self.prompt, tools and functions) if text)
        return shown_to_model(self.execution_result)

    @property
    def stdout(self) -> str:
        """What the code printed."""
        return self.execution_result.stdout

    @property
    def stderr(self) -> str:
        """What the code wrote to stderr, and the traceback of an uncaught exception."""
        return stderr_of(self.execution_result)

    @property
    def exit_code(self) -> int:
        """0 on success, 124 at the time limit, 137 if the session is gone, otherwise 1."""
        return exit_code_of(self.execution_result)


@dataclass
class Variable:
    """A variable of the agent's code.

    Attributes:
        type: The name of the value's class.
        repr: The `repr` of the value, shortened.
    """

    type: str
    repr: str


@dataclass
class CodeState(State):
    """The variables and the setup of an episode.

    Variables are reported by the code that ran, as text; never as objects.

    Attributes:
        variables: The variables of the agent's code, by name.
        tools: The functions that code may call besides Python's own.
        executor: The name of the executor.
        isolation: The isolation of the code; see `Executor.isolation`.
        last_exit_code: The exit code of the last step.
    """

    variables: dict[str, Variable] = field(default_factory=dict)
    tools: list[str] = field(default_factory=list)
    executor: str = ""
    isolation: str = ""
    last_exit_code: int = 0


def exit_code_of(result: ExecutionResult) -> int:
    """Return the exit code that a shell would report for a run."""
    if result.success:
        return 0
    if result.exception_type == "SystemExit" and not result.session_ended:
        return _system_exit_code(result.exception_message or "")
    if "time" in result.limits_hit:
        return TIMED_OUT
    return KILLED if result.session_ended else 1


def _system_exit_code(message: str) -> int:
    """Return the exit code of a `SystemExit`: 0 without an argument, 1 for a string."""
    if message in ("", "None"):
        return 0
    digits = message.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 9:
        return 1
    return int(message) & 0xFF


def stderr_of(result: ExecutionResult) -> str:
    """Return stderr as a terminal would show it: with the traceback."""
    failure = result.traceback
    if failure is None and result.exception_type is not None:
        failure = f"{result.exception_type}: {result.exception_message or ''}\n"
    if not failure:
        return result.stderr
    between = "" if not result.stderr or result.stderr.endswith("\n") else "\n"
    return f"{result.stderr}{between}{failure}"


def shown_to_model(result: ExecutionResult) -> str:
    """Return the message for a model about a run: what it printed, its value, its error."""
    parts = [("Printed", result.stdout), ("Error", stderr_of(result))]
    if result.return_repr is not None:
        parts.insert(1, ("Value", result.return_repr))
    if result.limits_hit:
        parts.append(("Limits hit", ", ".join(result.limits_hit)))
    message = "\n".join(f"{name}:\n{_cut(text)}" for name, text in parts if text)
    return message or "It ran, and printed nothing."


def _cut(text: str) -> str:
    text = text.rstrip("\n")
    if len(text) <= SHOWN:
        return text
    half = SHOWN // 2
    return f"{text[:half]}\n… {len(text) - SHOWN} characters omitted …\n{text[-half:]}"

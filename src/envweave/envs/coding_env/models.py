"""The data types of the coding environment: `CodeAction`, `CodeObservation`, `CodeState`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from envweave.codeact import models
from envweave.codeact.models import KILLED, CodeAction, CodeState
from envweave.sandbox.execution import ExecutionResult, Limit, ToolCall

__all__ = ["CodeAction", "CodeObservation", "CodeState"]

_FULL_RESULT = "_execution_result"
"""The attribute with the full result, which is not a field and not sent over the network."""


@dataclass
class CodeObservation(models.CodeObservation):
    """The outcome of running code, in flat fields.

    Attributes:
        stdout: What was printed, up to the limit.
        stderr: What was written to stderr, and the traceback of an uncaught exception.
        exit_code: 0 on success. In Python, 1 after an exception; in a shell, the status of the
            command. 124 at the time limit, 137 if the session is gone.
        result: The `repr` of the last expression; `None` if there is none, if it is `None`, and
            always in a shell.
        limits_hit: The limits that were hit.
        tool_calls: The tools that the code called, in order.
    """

    # A `ClassVar` removes the inherited field: only flat fields are sent.
    execution_result: ClassVar[ExecutionResult]  # type: ignore[misc]

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    result: str | None = None
    limits_hit: list[Limit] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)

    @classmethod
    def of(cls, observation: models.CodeObservation, exit_code: int) -> CodeObservation:
        """Return an observation in flat fields, with this exit code."""
        result = observation.execution_result
        flat = cls(
            code=observation.code,
            prompt=observation.prompt,
            available_tools=observation.available_tools,
            stdout=observation.stdout,
            stderr=observation.stderr,
            exit_code=exit_code,
            result=result.return_repr,
            limits_hit=list(result.limits_hit),
            tool_calls=list(result.tool_calls),
            reward=observation.reward,
            done=observation.done,
            truncated=observation.truncated,
            metadata=observation.metadata,
        )
        vars(flat)[_FULL_RESULT] = result
        return flat

    @property  # type: ignore[no-redef]
    def execution_result(self) -> ExecutionResult:
        """The full result, for transforms that run where the code ran.

        Elsewhere it is built from the fields that were sent, and has no `return_value`.
        """
        known: ExecutionResult | None = vars(self).get(_FULL_RESULT)
        return known or ExecutionResult(
            success=self.exit_code == 0,
            stdout=self.stdout,
            stderr=self.stderr,
            return_repr=self.result,
            limits_hit=tuple(self.limits_hit),
            session_ended=self.exit_code == KILLED,
            tool_calls=tuple(self.tool_calls),
        )

    @execution_result.setter
    def execution_result(self, result: ExecutionResult) -> None:
        vars(self)[_FULL_RESULT] = result


# The codec sends everything that is listed there, even a `ClassVar`.
del CodeObservation.__dataclass_fields__["execution_result"]

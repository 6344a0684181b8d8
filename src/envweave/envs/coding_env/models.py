"""What the coding environment takes and shows: `CodeAction`, `CodeObservation`, `CodeState`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from envweave.codeact import models
from envweave.codeact.models import KILLED, CodeAction, CodeState
from envweave.sandbox.results import ExecutionResult, Limit, ToolCall

__all__ = ["CodeAction", "CodeObservation", "CodeState"]

_WHOLE = "_execution_result"
"""Where an observation that has not travelled keeps all that is known: not among its fields."""


@dataclass
class CodeObservation(models.CodeObservation):
    """What the code came to, in fields of its own.

    Attributes:
        stdout: What was printed, up to the limit.
        stderr: What was written there, and the traceback of what the code did not catch.
        exit_code: 0 if all went well. In Python 1 after an exception; in a shell the status of
            the command. 124 if it took too long, 137 if the session is gone.
        result: The `repr` of the last expression; `None` where there is none, or it is `None`,
            and always in a shell.
        limits_hit: The limits that were met.
        tool_calls: The tools that the code called, in order.
    """

    # An annotation of this kind takes the field away: only flat ones travel.
    execution_result: ClassVar[ExecutionResult]  # type: ignore[misc]

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    result: str | None = None
    limits_hit: list[Limit] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)

    @classmethod
    def of(cls, shown: models.CodeObservation, exit_code: int) -> CodeObservation:
        """Return the same in flat fields, with the exit code that is to be shown."""
        result = shown.execution_result
        flat = cls(
            code=shown.code,
            prompt=shown.prompt,
            available_tools=shown.available_tools,
            stdout=shown.stdout,
            stderr=shown.stderr,
            exit_code=exit_code,
            result=result.return_repr,
            limits_hit=list(result.limits_hit),
            tool_calls=list(result.tool_calls),
            reward=shown.reward,
            done=shown.done,
            truncated=shown.truncated,
            metadata=shown.metadata,
        )
        vars(flat)[_WHOLE] = result
        return flat

    @property  # type: ignore[no-redef]
    def execution_result(self) -> ExecutionResult:
        """All that is known of it, for transforms: whole where the code ran.

        Elsewhere it is put together from what travelled, and has no `return_value`.
        """
        known: ExecutionResult | None = vars(self).get(_WHOLE)
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
        vars(self)[_WHOLE] = result


# What is listed there is sent, even if it is no field.
del CodeObservation.__dataclass_fields__["execution_result"]

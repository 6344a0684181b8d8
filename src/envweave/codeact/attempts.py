"""What an agent hands in, and the interface of those who judge it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from envweave.sandbox.results import ExecutionResult
from envweave.types import Task


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What an agent hands in. All of it is the agent's word.

    Attributes:
        code: The code of the step that handed it in.
        program: The code of the episode: of every step that came to its end, and of this one.
        result: What that step came to.
        answer: What `final_answer` was given, or the value of the last expression: plain data.
        task: What the episode is about, if it is about a task.
    """

    code: str
    program: str
    result: ExecutionResult
    answer: Any = None
    task: Task | None = None


@dataclass(frozen=True)
class Grade:
    """What an attempt is worth.

    Attributes:
        score: The reward for it, 0 to 1.
        passed: Whether the task is solved.
        details: What is shown of how it came about. It must not tell the expected answer.
    """

    score: float
    passed: bool
    details: dict[str, Any] = field(default_factory=dict)


class Grader(ABC):
    """Judges attempts on the host. What an agent's code says of itself counts for nothing."""

    @abstractmethod
    async def grade(self, attempt: Attempt) -> Grade:
        """Judge one attempt."""

    async def close(self) -> None:  # noqa: B027 - most hold nothing
        """Free what it holds. Called once."""

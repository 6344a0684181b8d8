"""What an agent hands in, and the interface of those who judge it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from envweave.errors import EnvWeaveError, OptionError
from envweave.sandbox.results import ExecutionResult
from envweave.types import Task


class GradingError(EnvWeaveError, RuntimeError):
    """An attempt could not be judged, and the agent did not do it.

    The episode ends as lost, with no reward. The message is shown: it must not tell the answer.
    """


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What an agent hands in. All of it is the agent's word.

    Attributes:
        code: The code of the step that handed it in.
        program: The code of the episode: of every step that came to its end, and of this one.
        result: What that step came to.
        answer: What `final_answer` was given, or the value of the last expression: plain data.
        answered: Whether there is one. A last expression that is `None`, or that has no form as
            plain data, is none.
        task: What the episode is about, if it is about a task.
    """

    code: str
    program: str
    result: ExecutionResult
    answer: Any = None
    answered: bool = True
    task: Task | None = None


@dataclass(frozen=True)
class Grade:
    """What an attempt is worth.

    Attributes:
        score: The reward for it, 0 to 1.
        passed: Whether the task is solved.
        details: What is shown of how it came about. It must not tell the expected answer.

    Raises:
        OptionError: The score is no number from 0 to 1.
    """

    score: float
    passed: bool
    details: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.score) and 0 <= self.score <= 1):
            raise OptionError(f"Grade(score={self.score!r}): expected a number from 0 to 1.")


class Grader(ABC):
    """Judges attempts on the host. What an agent's code says of itself counts for nothing."""

    @abstractmethod
    async def grade(self, attempt: Attempt) -> Grade:
        """Judge one attempt.

        Raises:
            GradingError: It could not be judged, through no fault of the agent's: a model that
                does not answer, a sandbox that is gone. Any other exception is taken as a fault
                of the environment's own. Neither is ever a reward of 0.
        """

    def check_task(self, task: Task) -> None:  # noqa: B027 - most can judge any
        """Refuse a task that it cannot judge, before an episode is played.

        Raises:
            TaskError: What it expects of the task is missing, or stands where callers see it.
        """

    async def close(self) -> None:  # noqa: B027 - most hold nothing
        """Free what it holds. Each environment that used it calls this; it may be used again."""

"""The interface of graders (`Attempt`, `Grade`, `Grader`), expected values, and `Weighted`."""

from __future__ import annotations

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar, final

from envweave.errors import EnvWeaveError, OptionError, TaskError
from envweave.sandbox.execution import ExecutionResult
from envweave.types import Task


class GradingError(EnvWeaveError, RuntimeError):
    """An attempt could not be graded, through no fault of the agent.

    The episode ends as lost, without a reward. The message is shown to the agent, so it must not
    contain the answer.
    """


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What an agent submits. All of it is under the agent's control.

    Attributes:
        code: The code of the step that submitted it.
        program: The code of the episode: of every step that succeeded, and of this one.
        result: The result of that step.
        answer: The argument of `final_answer`, or the value of the last expression; plain data.
        answered: Whether there is an answer. A last expression that is `None`, or that is not
            plain data, is not an answer.
        task: The task of the episode, if it has one.
        tool_state: What the tools of the episode have stored; see `current_episode`. Of all this,
            it alone is written on the host, by your tools.
    """

    code: str
    program: str
    result: ExecutionResult
    answer: Any = None
    answered: bool = True
    task: Task | None = None
    tool_state: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Grade:
    """The grade of an attempt.

    Attributes:
        score: The reward, 0 to 1.
        passed: Whether the task is solved.
        details: Shown to the agent, so they must not contain the expected answer.

    Raises:
        OptionError: The score is not a number from 0 to 1.
    """

    score: float
    passed: bool
    details: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.score) and 0 <= self.score <= 1):
            raise OptionError(f"Grade(score={self.score!r}): score must be a number from 0 to 1.")


class Grader(ABC):
    """Grades attempts on the host. Nothing that the code reports about itself is trusted."""

    @abstractmethod
    async def grade(self, attempt: Attempt) -> Grade:
        """Grade one attempt.

        Raises:
            GradingError: It could not be graded, through no fault of the agent: a model does not
                answer, a sandbox is gone. Any other exception counts as a failure of the
                environment. Neither becomes a reward of 0.
        """

    def check_task(self, task: Task) -> None:  # noqa: B027 - most can grade any task
        """Refuse a task that it cannot grade, before the episode starts.

        Raises:
            TaskError: The expected value is missing from the task, or visible to callers.
        """

    async def close(self) -> None:  # noqa: B027 - most have no resources
        """Free resources. Called by each environment that used it; it may be used again."""


ExpectedT = TypeVar("ExpectedT")


class _NotGiven(enum.Enum):
    NOT_GIVEN = enum.auto()


NOT_GIVEN: Final = _NotGiven.NOT_GIVEN
"""The default of an option for which `None` is a valid value."""


@final
class Expected(Generic[ExpectedT]):
    """A value that a grader expects: given as an option, or found in the task.

    Args:
        grader: The name of the grader, for messages.
        option: The name of the option.
        value: The value, or `NOT_GIVEN`.
        from_task: The key of the value in the task's private part.
        read: Given the value and a name for messages, returns it as the grader needs it, or raises
            an `OptionError` whose message does not quote the value.

    Raises:
        OptionError: Neither or both are given, or the value is invalid.
    """

    def __init__(
        self,
        grader: str,
        option: str,
        value: Any,
        from_task: str | None,
        read: Callable[[Any, str], ExpectedT],
    ) -> None:
        if (value is NOT_GIVEN) == (from_task is None):
            raise OptionError(
                f"{grader} takes either {option} or from_task, the key of the value in the task's "
                f"private part, and got {'both' if from_task is not None else 'neither'}."
            )
        if from_task is not None and not isinstance(from_task, str):
            raise OptionError(f"{grader}(from_task={from_task!r}): from_task must be a string.")
        self._grader = grader
        self._option = option
        self._from_task = from_task
        self._read = read
        self._value = None if from_task is not None else self._check(value, option)

    def of(self, task: Task | None) -> ExpectedT:
        """Return the value for an episode with this task.

        Raises:
            TaskError: There is no task, or its value is missing or invalid.
        """
        key = self._from_task
        if key is None:
            return self._value  # type: ignore[return-value]
        if task is None:
            raise TaskError(
                f"{self._grader}(from_task={key!r}): the episode has no task. Pass tasks to the "
                f"environment, or {self._option} to the grader."
            )
        self.check(task)
        if key not in task.private:
            raise TaskError(
                f"{self._grader}(from_task={key!r}): the private part of task {task.id!r} has no "
                f"such key. Put it there: Task(…, private={{{key!r}: …}})."
            )
        try:
            return self._check(task.private[key], f"private[{key!r}] of task {task.id!r}")
        except OptionError as error:
            raise TaskError(str(error)) from None

    def check(self, task: Task) -> None:
        """Refuse a task that shows the expected value to callers.

        Raises:
            TaskError: The value is in the public data of the task.
        """
        key = self._from_task
        if key is not None and key in task.data:
            raise TaskError(
                f"{self._grader}(from_task={key!r}): {key!r} is in the data of task "
                f"{task.id!r}, which callers may see. Move it to the private part: "
                f"Task({task.id!r}, data={{…}}, private={{{key!r}: …}})."
            )

    def __repr__(self) -> str:
        return "given" if self._from_task is None else f"from_task={self._from_task!r}"

    def _check(self, value: Any, name: str) -> ExpectedT:
        try:
            return self._read(value, name)
        except OptionError as error:
            raise OptionError(f"{self._grader}: {error}") from None


@final
class Weighted(Grader):
    """Averages the scores of several graders by weight; weights need not add up to 1.

    An attempt passes if every grader passes it. If one grader fails to grade it, so does this one.

    Args:
        weights: The weight of each grader.

    Raises:
        OptionError: There are no graders, or a weight is not above 0.
    """

    def __init__(self, weights: Mapping[Grader, float]) -> None:
        if not weights:
            raise OptionError("Weighted({}): expected graders and their weights.")
        for grader, weight in weights.items():
            if not isinstance(grader, Grader):
                raise OptionError(f"Weighted: the keys must be graders, got {grader!r}.")
            if isinstance(weight, bool) or not 0 < weight < math.inf:
                raise OptionError(f"Weighted: a weight must be a number above 0, got {weight!r}.")
        self._weights = dict(weights)

    def __repr__(self) -> str:
        return f"<Weighted: {', '.join(map(repr, self._weights))}>"

    def check_task(self, task: Task) -> None:
        """Check it with each grader."""
        for grader in self._weights:
            grader.check_task(task)

    async def grade(self, attempt: Attempt) -> Grade:
        """Grade with each grader in turn."""
        total = math.fsum(self._weights.values())
        scores, parts = [], []
        for grader, weight in self._weights.items():
            grade = await grader.grade(attempt)
            scores.append(grade.score * weight / total)
            parts.append(
                {
                    "grader": type(grader).__name__,
                    **grade.details,
                    "score": grade.score,
                    "passed": grade.passed,
                }
            )
        passed = all(part["passed"] for part in parts)
        return Grade(min(math.fsum(scores), 1.0), passed, {"parts": parts})

    async def close(self) -> None:
        """Close each grader."""
        for grader in self._weights:
            await grader.close()

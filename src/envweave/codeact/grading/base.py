"""What an agent hands in, and the interface of those who judge it."""

from __future__ import annotations

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar, final

from envweave.errors import EnvWeaveError, OptionError, TaskError
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


ExpectedT = TypeVar("ExpectedT")


class _Given(enum.Enum):
    NOTHING = enum.auto()


NOT_GIVEN: Final = _Given.NOTHING
"""The default of an option for which `None` is a value like any other."""


@final
class Expected(Generic[ExpectedT]):
    """A value of the author's, and where it is from.

    Args:
        grader: Who expects it, for messages.
        option: What the grader calls it.
        value: The value, or `NOT_GIVEN`.
        from_task: The key of the task's private part under which it is found.
        read: Given the value and what to call it, returns it as the grader needs it, or raises
            `OptionError`, whose message does not quote it.

    Raises:
        OptionError: Neither is given, or both, or it is not sound.
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
                f"{grader} needs either {option}, or from_task, the key of the task's private part "
                "under which it is found. "
                f"{'Both were' if from_task is not None else 'None was'} given."
            )
        if from_task is not None and not isinstance(from_task, str):
            raise OptionError(f"{grader}(from_task={from_task!r}): expected a key, which is text.")
        self._grader = grader
        self._option = option
        self._from_task = from_task
        self._read = read
        self._value = None if from_task is not None else self._checked(value, option)

    def of(self, task: Task | None) -> ExpectedT:
        """Return the value for an episode with this task.

        Raises:
            TaskError: The task has none, or none that is sound; or there is no task.
        """
        key = self._from_task
        if key is None:
            return self._value  # type: ignore[return-value]
        if task is None:
            raise TaskError(
                f"{self._grader}(from_task={key!r}): the episode is about no task. Give the "
                f"environment tasks, or the grader its {self._option}."
            )
        self.check(task)
        if key not in task.private:
            raise TaskError(
                f"{self._grader}(from_task={key!r}): the private part of task {task.id!r} has no "
                f"such key. Put it there: Task(…, private={{{key!r}: …}})."
            )
        try:
            return self._checked(task.private[key], f"private[{key!r}] of task {task.id!r}")
        except OptionError as error:
            raise TaskError(str(error)) from None

    def check(self, task: Task) -> None:
        """Refuse a task that shows everybody what is expected.

        Raises:
            TaskError: It stands in the data of the task.
        """
        key = self._from_task
        if key is not None and key in task.data:
            raise TaskError(
                f"{self._grader}(from_task={key!r}): {key!r} stands in the data of task "
                f"{task.id!r}, which callers may see. Move it to the private part: "
                f"Task({task.id!r}, data={{…}}, private={{{key!r}: …}})."
            )

    def __repr__(self) -> str:
        return "of its own" if self._from_task is None else f"from_task={self._from_task!r}"

    def _checked(self, value: Any, name: str) -> ExpectedT:
        try:
            return self._read(value, name)
        except OptionError as error:
            raise OptionError(f"{self._grader}: {error}") from None

"""What only the host knows: given to a grader, or looked up in the private part of the task.

It is in no `repr`, and messages about it never quote it: an agent may get to see them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, final

from envweave.errors import OptionError, TaskError
from envweave.types import Task

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

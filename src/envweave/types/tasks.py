"""What an episode is about: `Task`, and the `Tasks` that an environment offers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, final

from envweave.errors import TaskError, suggest


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to be done. A group of episodes (GRPO) may share it.

    Attributes:
        id: Names the task among the environment's tasks.
        split: Which split it belongs to, such as `"train"`.
        data: What the environment needs to pose it.
        image: A container image the task wants to run in.
        limits: Limits that differ from the environment's own.
    """

    id: str
    split: str = "train"
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)
    image: str | None = None
    limits: Mapping[str, Any] | None = field(default=None, hash=False)


class TaskReader(Protocol):
    """Fetches tasks that are kept elsewhere, without blocking an event loop.

    Each method raises what the fetching raises, and may be called again then.
    """

    async def at(self, split: str, index: int) -> Task:
        """Return the task at an index of a split."""
        ...

    async def get(self, task_id: str) -> Task:
        """Return the task called `task_id`, as `Tasks.get` does."""
        ...

    async def draw(self, seed: int | None) -> Task:
        """Draw a task, as `Tasks.draw` does."""
        ...


class Tasks:
    """The tasks of an environment, by split: listed, or endless and made on demand.

    ```python
    Tasks({"train": [Task("a"), Task("b")], "test": [Task("c", split="test")]})
    Tasks.endless(lambda split, index: Task(f"{split}-{index}", split, {"a": index}))
    ```

    Attributes:
        reader: How a pool fetches them, where a server has them; `None` where they are known here.
    """

    def __init__(self, splits: Mapping[str, Iterable[Task]]) -> None:
        self._make: Callable[[str, int], Task] | None = None
        self._fetch: Callable[[], Mapping[str, Iterable[Task]]] | None = None
        self.reader: TaskReader | None = None
        self._take(splits)

    def _take(self, splits: Mapping[str, Iterable[Task]]) -> None:
        self._by_id: dict[str, Task] = {}
        self._splits: dict[str, list[Task]] = {name: list(tasks) for name, tasks in splits.items()}
        self._lengths = {name: len(tasks) for name, tasks in self._splits.items()}
        if not any(self._splits.values()):
            raise TaskError("Tasks need at least one split with at least one task.")
        for name, tasks in self._splits.items():
            for task in tasks:
                if not isinstance(task, Task):
                    raise TaskError(f"{task!r} in split {name!r} is no Task.")
                if task.split != name:
                    raise TaskError(
                        f"Task {task.id!r} says split={task.split!r} but stands in {name!r}."
                    )
                if task.id in self._by_id:
                    raise TaskError(f"Two tasks are called {task.id!r}; ids must differ.")
                self._by_id[task.id] = task

    @classmethod
    def endless(
        cls, make: Callable[[str, int], Task], *, splits: Iterable[str] = ("train",)
    ) -> Tasks:
        """Offer tasks without end: `make(split, index)` returns the task `"{split}-{index}"`."""
        tasks = cls({name: [_made(make, name, 0)] for name in splits})
        tasks._make = make
        return tasks

    @classmethod
    def fetched(
        cls, lengths: Mapping[str, int], fetch: Callable[[], Mapping[str, Iterable[Task]]]
    ) -> Tasks:
        """Offer tasks that are listed elsewhere: `fetch()` returns them all when one is needed."""
        tasks = object.__new__(cls)
        tasks._make, tasks._fetch, tasks._by_id, tasks.reader = None, fetch, {}, None
        tasks._lengths = dict(lengths)
        tasks._splits = {name: [] for name in lengths}
        return tasks

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits; the first is where a task is drawn from by default."""
        return tuple(self._splits)

    def length(self, split: str) -> int | None:
        """Return how many tasks `split` has; `None` means there is no end to them."""
        self._known(split)
        return None if self._make else self._lengths[split]

    def split(self, name: str) -> Iterator[Task]:
        """Go through the tasks of one split, in order. They are fetched when one is needed."""
        self._known(name)
        return SplitIterator(self, name)

    def at(self, split: str, index: int) -> Task:
        """Return the task at an index of a split.

        Raises:
            TaskError: There is no such split, or it is shorter.
        """
        self._known(split)
        if self._make is not None:
            return _made(self._make, split, index)
        listed = self._listed()[split]
        if index >= len(listed):
            raise TaskError(f"Split {split!r} has {len(listed)} tasks, and none at {index}.")
        return listed[index]

    def __call__(self, split: str) -> Iterator[Task]:
        """Go through the tasks of one split: `tasks("train")` is `tasks.split("train")`."""
        return self.split(split)

    def get(self, task_id: str) -> Task:
        """Return the task called `task_id`.

        Raises:
            TaskError: There is no such task.
        """
        if self._make is not None:
            found = position_of(task_id, self._splits)
            if found is not None:
                return _made(self._make, *found)
        elif self._listed() and task_id in self._by_id:
            return self._by_id[task_id]
        raise unknown_task(task_id, self._by_id)

    def draw(self, seed: int | None, split: str | None = None) -> Task:
        """Draw a task from `split` (the first one by default); the same seed draws the same."""
        name = self.splits[0] if split is None else split
        return self.at(name, draw_index(seed, name, self.length(name)))

    def _listed(self) -> dict[str, list[Task]]:
        if self._fetch is not None:
            self._take(self._fetch())
            self._fetch = self.reader = None
        return self._splits

    def _known(self, split: str) -> None:
        if split not in self._splits:
            raise TaskError(
                f"There is no split {split!r}.{suggest(split, self._splits)} "
                f"Known: {', '.join(self._splits)}."
            )


@final
class SplitIterator(Iterator[Task]):
    """Goes through the tasks of a split. One that could not be had is asked for again.

    Attributes:
        tasks: Whose split it is.
        split: Which.
        index: Of the next task.
    """

    def __init__(self, tasks: Tasks, split: str) -> None:
        self.tasks = tasks
        self.split = split
        self.index = 0

    @property
    def is_endless(self) -> bool:
        """Whether there is always another one."""
        return self.tasks.length(self.split) is None

    @property
    def is_over(self) -> bool:
        """Whether there is no other one."""
        length = self.tasks.length(self.split)
        return length is not None and self.index >= length

    def __next__(self) -> Task:
        if self.is_over:
            raise StopIteration
        task = self.tasks.at(self.split, self.index)
        self.index += 1
        return task

    def __length_hint__(self) -> int:
        length = self.tasks.length(self.split)
        return NotImplemented if length is None else max(0, length - self.index)


def draw_index(seed: int | None, split: str, length: int | None) -> int:
    """Draw the index of a task in a split; the same seed draws the same.

    Raises:
        TaskError: The split is empty.
    """
    rng = random.Random(seed)  # noqa: S311 - a draw, not a secret
    if length is None:
        return rng.getrandbits(31)
    if not length:
        raise TaskError(f"Split {split!r} is empty, so no task can be drawn from it.")
    return rng.randrange(length)


def position_of(task_id: str, splits: Iterable[str]) -> tuple[str, int] | None:
    """Return the split and the index that the id of an endless split's task stands for."""
    split, _, index = task_id.rpartition("-")
    if split in splits and index.isdecimal() and index == str(int(index)):
        return split, int(index)
    return None


def unknown_task(task_id: str, known: Iterable[str]) -> TaskError:
    """Return the error for an id that no task has."""
    return TaskError(f"There is no task {task_id!r}.{suggest(task_id, known)}")


def _made(make: Callable[[str, int], Task], split: str, index: int) -> Task:
    task = make(split, index)
    if not isinstance(task, Task):
        raise TaskError(f"make({split!r}, {index}) returned {task!r}, which is no Task.")
    if task.id != f"{split}-{index}" or task.split != split:
        raise TaskError(
            f"make({split!r}, {index}) returned task {task.id!r} of split {task.split!r}; it must "
            f"be '{split}-{index}' of {split!r}, so that it can be found again."
        )
    return task

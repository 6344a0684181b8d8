"""What an episode is about: `Task`, and the `Tasks` that an environment offers.

A task has a public part, which callers may see, and a private one, which only its environment and
its graders may. The private part is a `Private`, which is not a mapping, so code that turns
mappings into text, plain data or messages does not open it. Callers get tasks with the private
part withheld (`Task.public`), and the session puts it back when an episode begins.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, final

from envweave.errors import TaskError, suggest

PICKLES_WITHHOLD: ContextVar[bool] = ContextVar("pickles_withhold", default=False)
"""Whether pickles go to a caller, so that the private parts of tasks are left out."""


@final
class Private:
    """The private part of a task: values by key, never in a `repr` or a message.

    A withheld one has no values, but records that the environment has some.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any] | None) -> None:
        self._values = None if values is None else dict(values)

    @property
    def is_withheld(self) -> bool:
        """Whether the values were left with the environment."""
        return self._values is None

    def _known(self) -> dict[str, Any]:
        if self._values is None:
            raise TaskError(
                "The private part of a task stays with its environment and its graders; a caller "
                "has the task without it."
            )
        return self._values

    def __getitem__(self, key: str) -> Any:
        return self._known()[key]

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value under `key`, or `default`."""
        return self._known().get(key, default)

    def keys(self) -> KeysView[str]:
        """Return the keys."""
        return self._known().keys()

    def __contains__(self, key: object) -> bool:
        return key in self._known()

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def __bool__(self) -> bool:
        return self._values is None or bool(self._values)

    def __eq__(self, other: object) -> bool:
        return self._values == other._values if isinstance(other, Private) else NotImplemented

    __hash__ = None  # type: ignore[assignment] # it may hold anything

    def __reduce__(self) -> tuple[Any, ...]:
        return Private, (None if self and PICKLES_WITHHOLD.get() else self._values,)

    def __repr__(self) -> str:
        if self._values is None:
            return "<withheld>"
        return "<private>" if self._values else "{}"


@dataclass(frozen=True, slots=True)
class Task:
    """What one episode is about. A group of episodes (GRPO) may share it.

    Attributes:
        id: Names the task among the environment's tasks.
        split: Which split it belongs to, such as `"train"`.
        data: The data the environment needs for it. Callers may see it.
        image: The container image that the task needs.
        limits: Limits that differ from the environment's own.
        private: Data that only the environment and its graders may see, such as the expected
            answer. It is read by key, and is never in a message, result or `repr`. Callers get
            tasks without it.

    Raises:
        TaskError: `private` is not a mapping.
    """

    id: str
    split: str = "train"
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)
    image: str | None = None
    limits: Mapping[str, Any] | None = field(default=None, hash=False)
    private: Mapping[str, Any] = field(default_factory=dict, hash=False, kw_only=True)

    def __post_init__(self) -> None:
        given: Any = self.private
        if isinstance(given, Private):
            return
        if not isinstance(given, Mapping):
            kind = type(given).__name__
            raise TaskError(f"Task {self.id!r}: private must be a mapping, got a {kind}.")
        object.__setattr__(self, "private", Private(given))

    def public(self) -> Task:
        """Return the task as callers see it: with its private part, if any, withheld."""
        return replace(self, private=WITHHELD) if self.private else self


WITHHELD: Any = Private(None)
"""The private part of a task that a caller holds."""


class TaskReader(Protocol):
    """Fetches tasks from a server without blocking an event loop.

    Each method raises what fetching raises, and can then be called again.
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
        reader: Fetches them where a server holds them; `None` where they are known here.
    """

    def __init__(self, splits: Mapping[str, Iterable[Task]]) -> None:
        self._make: Callable[[str, int], Task] | None = None
        self._fetch: Callable[[], Mapping[str, Iterable[Task]]] | None = None
        self._public: Tasks | None = None
        self._has_no_private = False
        self._source: Callable[..., Any] | None = None
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
                    raise TaskError(f"A {type(task).__name__} in split {name!r} is not a Task.")
                if task.split != name:
                    raise TaskError(
                        f"Task {task.id!r} has split={task.split!r} but is listed in {name!r}."
                    )
                if task.id in self._by_id:
                    raise TaskError(f"Two tasks have the id {task.id!r}; ids must be unique.")
                self._by_id[task.id] = task

    @classmethod
    def endless(
        cls, make: Callable[[str, int], Task], *, splits: Iterable[str] = ("train",)
    ) -> Tasks:
        """Offer endless tasks: `make(split, index)` returns the task `"{split}-{index}"`."""
        tasks = cls({name: [_made(make, name, 0)] for name in splits})
        tasks._make = make
        return tasks

    @classmethod
    def fetched(
        cls, lengths: Mapping[str, int], fetch: Callable[[], Mapping[str, Iterable[Task]]]
    ) -> Tasks:
        """Offer tasks that are listed elsewhere: `fetch()` returns them all when one is needed."""
        tasks = object.__new__(cls)
        tasks._make, tasks._fetch, tasks._public, tasks._by_id = None, fetch, None, {}
        tasks.reader, tasks._has_no_private, tasks._source = None, False, fetch
        tasks._lengths = dict(lengths)
        tasks._splits = {name: [] for name in lengths}
        return tasks

    def public(self) -> Tasks:
        """Return these tasks as callers see them: without their private parts."""
        if self._public is not None:
            return self._public
        # Not kept as `_public`: a cycle would delay the finalizers of what tasks hold.
        if self._has_no_private or self.reader is not None:  # a server sends no private parts
            return self
        listed = self._splits.items()
        if self._make is not None:
            self._public = Tasks.endless(_PublicMake(self._make), splits=self._splits)
        elif self._fetch is not None:
            self._fetch = once = _FetchOnce(self._fetch)
            self._public = Tasks.fetched(self._lengths, _PublicFetch(once))
        elif any(task.private for _, tasks in listed for task in tasks):
            self._public = Tasks({name: [t.public() for t in tasks] for name, tasks in listed})
        else:
            self._has_no_private = True
            return self
        return self._public

    @property
    def source(self) -> Callable[..., Any] | None:
        """The function that makes or fetches them; `None` where they were listed."""
        return self._make or self._source

    def __getstate__(self) -> dict[str, Any]:
        # The fetch function is no longer needed, and often a lambda, which cannot be pickled.
        return {**self.__dict__, "_source": self._fetch}

    def __deepcopy__(self, _memo: dict[int, Any]) -> Tasks:
        return self  # they never change, and may be many

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits; the first is where a task is drawn from by default."""
        return tuple(self._splits)

    def length(self, split: str) -> int | None:
        """Return how many tasks `split` has; `None` if it is endless."""
        self._known(split)
        return None if self._make else self._lengths[split]

    def split(self, name: str) -> Iterator[Task]:
        """Iterate over the tasks of one split, in order. They are fetched when one is needed."""
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
            raise TaskError(
                f"Split {split!r} has {len(listed)} tasks, so there is none at {index}."
            )
        return listed[index]

    def __call__(self, split: str) -> Iterator[Task]:
        """Iterate over the tasks of one split: `tasks("train")` is `tasks.split("train")`."""
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
            if self.reader is not None:
                self._source = None  # it holds the connection to a server
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
    """Iterates over the tasks of a split. A task that could not be fetched is tried again.

    Attributes:
        tasks: The tasks that the split belongs to.
        split: The name of the split.
        index: The index of the next task.
    """

    def __init__(self, tasks: Tasks, split: str) -> None:
        self.tasks = tasks
        self.split = split
        self.index = 0

    @property
    def is_endless(self) -> bool:
        """Whether the split is endless."""
        return self.tasks.length(self.split) is None

    @property
    def is_over(self) -> bool:
        """Whether all tasks were returned."""
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
    """Parse the id of a task of an endless split into split and index."""
    split, _, index = task_id.rpartition("-")
    if split in splits and index.isdecimal() and index == str(int(index)):
        return split, int(index)
    return None


def unknown_task(task_id: str, known: Iterable[str]) -> TaskError:
    """Return the error for an unknown task id."""
    return TaskError(f"There is no task {task_id!r}.{suggest(task_id, known)}")


@final
class _PublicMake:
    """Makes tasks on demand, without their private parts."""

    def __init__(self, make: Callable[[str, int], Task]) -> None:
        self._make = make

    def __call__(self, split: str, index: int) -> Task:
        return _made(self._make, split, index).public()


@final
class _FetchOnce:
    """Fetches tasks once, for the complete list and for the public one."""

    def __init__(self, fetch: Callable[[], Mapping[str, Iterable[Task]]]) -> None:
        self._fetch = fetch
        self._fetched: dict[str, list[Task]] | None = None

    def __call__(self) -> dict[str, list[Task]]:
        if self._fetched is None:
            self._fetched = {name: list(tasks) for name, tasks in self._fetch().items()}
        return self._fetched


@final
class _PublicFetch:
    """Fetches tasks, without their private parts."""

    def __init__(self, fetch: _FetchOnce) -> None:
        self._fetch = fetch

    def __call__(self) -> dict[str, list[Task]]:
        return {name: [one.public() for one in tasks] for name, tasks in self._fetch().items()}


def _made(make: Callable[[str, int], Task], split: str, index: int) -> Task:
    task: Any = make(split, index)
    if not isinstance(task, Task):
        kind = type(task).__name__
        raise TaskError(f"make({split!r}, {index}) returned a {kind}, which is not a Task.")
    if task.id != f"{split}-{index}" or task.split != split:
        raise TaskError(
            f"make({split!r}, {index}) returned task {task.id!r} of split {task.split!r}; it must "
            f"be '{split}-{index}' of {split!r}, so that it can be found again."
        )
    return task

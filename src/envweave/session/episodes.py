"""The stream of a session's episodes: the seed, task and id of the next one."""

from __future__ import annotations

import contextlib
import operator
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple, final

from envweave.codec import to_plain
from envweave.environment import Interface
from envweave.errors import DefinitionError, OptionError, SeedError, TaskError, format_error
from envweave.session.env_slot import EnvSlot
from envweave.types import Task, Tasks
from envweave.types.results import same
from envweave.types.tasks import WITHHELD

_MASK = 0xFFFFFFFFFFFFFFFF


def episode_seed(base: int, k: int) -> int:
    """Return the seed of the k-th episode of the stream that begins with `base`.

    It is stateless, so a replacement environment needs only `(base, k)`, not a generator.
    """
    if k == 0:
        return base
    z = (base * 0x9E3779B97F4A7C15 + k * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) & 0x7FFFFFFF


def draw_seed() -> int:
    """Draw the base of a stream from the operating system, never from global generators."""
    return secrets.randbits(31)


def read_seed(seed: Any) -> int:
    """Return a caller's seed as an int.

    Raises:
        SeedError: It is not an integer >= 0.
    """
    try:
        value = operator.index(seed)
    except TypeError:
        value = -1
    if value < 0 or isinstance(seed, bool):
        raise SeedError(f"seed must be an integer >= 0, got {seed!r}.")
    return value


class Position(NamedTuple):
    """The point that a stream of episodes has reached, from which another session can resume.

    Attributes:
        base: The first seed of the stream; `None` before the first episode, and if the
            environment takes no seed.
        k: The index of the last episode in the stream.
        begun: The index of the last episode in the session.
        prefix: The prefix of the session's episode ids.
    """

    base: int | None
    k: int
    begun: int
    prefix: str


@final
class EpisodePlan:
    """The stream of a session's episodes.

    A caller's seed begins a stream. Each later episode, by reset or autoreset, takes the
    stream's next seed. Without a caller's seed, the first one is drawn from the operating system.
    """

    def __init__(self, slot: EnvSlot, interface: Interface) -> None:
        self._name = interface.name
        self._slot = slot
        self._takes = interface.reset_takes
        if slot.tasks is not None and "task" not in self._takes:
            raise DefinitionError(f"{self._name} offers tasks, so its reset() must take `task`.")
        self._prefix = secrets.token_hex(6)
        self._base: int | None = None
        self._k = -1
        self._begun = -1
        self.seed: int | None = None
        self.task_id: str | None = None
        self.episode_id: str | None = None

    @property
    def position(self) -> Position:
        """The point that the stream has reached."""
        return Position(self._base, self._k, self._begun, self._prefix)

    def resume_from(self, position: Position) -> None:
        """Continue from another stream's position: the next seed and id are what its would be."""
        self._base, self._k, self._begun, self._prefix = position

    def check(self, *, seed: Any = None, task: Any = None, options: Any = None) -> None:
        """Refuse arguments that the environment cannot honor; nothing changes.

        Raises:
            SeedError: The seed cannot be honored.
            TaskError: The task is unknown, or the environment takes none.
            OptionError: Options are not taken.
        """
        if seed is not None:
            if "seed" not in self._takes:
                raise SeedError(
                    f"seed={seed!r} cannot be honored: {self._name}.reset() takes no seed. "
                    "Reset without one, or add a `seed` parameter to its reset()."
                )
            read_seed(seed)
        if options is not None and "options" not in self._takes:
            raise OptionError(
                f"options={options!r} cannot be honored: {self._name}.reset() takes no options."
            )
        self._find(task)

    def _find(self, task: Any) -> Task | None:
        if task is None:
            return None
        if "task" not in self._takes:
            raise TaskError(f"{self._name}.reset() takes no task, but was given {task!r}.")
        if isinstance(task, str):
            if self._slot.tasks is None:
                raise TaskError(
                    f"{self._name} lists no tasks, so {task!r} cannot be found. Pass a Task."
                )
            return self._get(task, self._slot.tasks)
        if not isinstance(task, Task):
            raise TaskError(f"{task!r} is neither a Task nor the id of one.")
        return self._with_private(task)

    def _get(self, task_id: str, tasks: Tasks) -> Task:
        try:
            return tasks.get(task_id)
        except TaskError:
            raise
        except Exception as error:
            raise TaskError(f"Task {task_id!r} cannot be made: {format_error(error)}") from error

    def _with_private(self, task: Task) -> Task:
        """Return the environment's own task if the caller's lacks its private part."""
        is_withheld = task.private == WITHHELD
        if task.private and not is_withheld:
            return task
        own = None
        if self._slot.tasks is not None:
            with contextlib.suppress(TaskError):
                own = self._get(task.id, self._slot.tasks)
        if own is None and is_withheld:
            raise TaskError(
                f"The private part of task {task.id!r} was withheld, and {self._name} has no task "
                "of that id. Private parts do not cross a network: define the task among the "
                "environment's own tasks, and pass its id."
            )
        if own is None or not (own.private or is_withheld):
            return task
        if task.data is own.data or same(_public_part(task), _public_part(own)):
            return own
        raise TaskError(
            f"Task {task.id!r} of {self._name} has a private part, and the given task of that id "
            f"has other data. Pass task={task.id!r}, or give your own task another id."
        )

    def choose(
        self, seed: Any, task: Any, options: Mapping[str, Any] | None, episode_id: Any
    ) -> dict[str, Any]:
        """Return the keywords for the author's `reset`; by default, for the stream's next episode.

        Raises:
            TaskError: No task can be drawn; nothing has changed.
            OptionError: The episode's id is not a string.
        """
        if episode_id is not None and not isinstance(episode_id, str):
            raise OptionError(f"episode_id must be a string, got {episode_id!r}.")
        base, k = (self._base, self._k + 1) if seed is None else (read_seed(seed), 0)
        seeded = None
        if "seed" in self._takes:
            base = draw_seed() if base is None else base
            seeded = episode_seed(base, k)
        chosen = self._draw(seeded) if task is None else self._find(task)
        self._base, self._k, self.seed = base, k, seeded
        self._begun += 1
        self.task_id = None if chosen is None else chosen.id
        self.episode_id = f"{self._prefix}-{self._begun}" if episode_id is None else episode_id
        values = {
            "task": chosen,
            "seed": seeded,
            "options": options,
            "episode_id": self.episode_id,
        }
        return {name: values[name] for name in self._takes}

    def _draw(self, seed: int | None) -> Task | None:
        if self._slot.tasks is None:
            return None
        try:
            return self._slot.tasks.draw(seed)
        except TaskError:
            raise
        except Exception as error:
            raise TaskError(f"{self._name} could not draw a task: {format_error(error)}") from error


def _public_part(task: Task) -> Any:
    """The public part of a task, in the form that it has after crossing a network."""
    return to_plain([task.split, task.data, task.image, task.limits])

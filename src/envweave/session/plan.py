"""Which episode comes next: its seed, its task, its id."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, final

from envweave.environment import Interface
from envweave.errors import DefinitionError, OptionError, SeedError, TaskError
from envweave.session.seeds import draw_seed, episode_seed, read_seed
from envweave.types import Task, Tasks


@final
class EpisodePlan:
    """The stream of a session's episodes.

    A caller's seed begins a stream. Each later episode, whether the caller resets or an
    autoreset does, takes the stream's next seed. Without a caller's seed, the stream begins
    with one drawn from the system.
    """

    def __init__(self, tasks: Tasks | None, interface: Interface) -> None:
        self._name = interface.name
        self._tasks = tasks
        self._takes = interface.reset_takes
        if tasks is not None and "task" not in self._takes:
            raise DefinitionError(f"{self._name} offers tasks, so its reset() must take `task`.")
        self._prefix = secrets.token_hex(6)
        self._base: int | None = None
        self._k = -1
        self._begun = -1
        self.seed: int | None = None
        self.task_id: str | None = None
        self.episode_id: str | None = None

    def choose(
        self,
        *,
        seed: Any,
        task: Any,
        options: Mapping[str, Any] | None,
        episode_id: str | None,
    ) -> dict[str, Any]:
        """Return the keywords for the author's `reset`, as the caller wants the episode.

        Raises:
            SeedError: The seed cannot be honoured.
            TaskError: The task is unknown, or none is taken.
            OptionError: Options are not taken.
        """
        if seed is not None:
            if "seed" not in self._takes:
                raise SeedError(
                    f"seed={seed!r} cannot be honoured: {self._name}.reset() takes no seed. "
                    "Reset without one, or let its reset() take `seed`."
                )
            seed = read_seed(seed)
        if options is not None and "options" not in self._takes:
            raise OptionError(
                f"options={options!r} cannot be honoured: {self._name}.reset() takes no options."
            )
        chosen = self._find(task)
        if seed is not None:
            self._base, self._k = seed, -1
        return self._go_on(chosen, options, episode_id)

    def next(self) -> dict[str, Any]:
        """Return the keywords for the author's `reset` in an autoreset."""
        return self._go_on(None, None, None)

    def _find(self, task: Any) -> Task | None:
        if task is None:
            return None
        if "task" not in self._takes:
            raise TaskError(f"{self._name}.reset() takes no task, but was given {task!r}.")
        if isinstance(task, str):
            if self._tasks is None:
                raise TaskError(
                    f"{self._name} lists no tasks, so {task!r} cannot be found. Pass a Task."
                )
            return self._tasks.get(task)
        if not isinstance(task, Task):
            raise TaskError(f"{task!r} is neither a Task nor the id of one.")
        return task

    def _go_on(
        self, task: Task | None, options: Mapping[str, Any] | None, episode_id: str | None
    ) -> dict[str, Any]:
        self._k += 1
        self._begun += 1
        if "seed" in self._takes:
            if self._base is None:
                self._base = draw_seed()
            self.seed = episode_seed(self._base, self._k)
        if task is None and self._tasks is not None:
            task = self._tasks.draw(self.seed)
        self.task_id = None if task is None else task.id
        self.episode_id = f"{self._prefix}-{self._begun}" if episode_id is None else episode_id
        values = {
            "task": task,
            "seed": self.seed,
            "options": options,
            "episode_id": self.episode_id,
        }
        return {name: values[name] for name in self._takes}

"""The schedule of a rollout: the task, seed and group of every episode."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from envweave.environment import Interface
from envweave.errors import OptionError, SeedError, TaskError
from envweave.session.episodes import draw_seed, episode_seed, read_seed
from envweave.types import Task, Tasks
from envweave.types.tasks import SplitIterator, TaskReader


@dataclass(frozen=True, slots=True)
class RemoteTask:
    """A task that a server holds.

    Attributes:
        fetch: Fetches it. It may fail, and be called again.
    """

    fetch: Callable[[], Awaitable[Task]]


@dataclass(frozen=True, slots=True)
class EpisodeJob:
    """One episode to play.

    Attributes:
        group: Which group it belongs to, from 0.
        member: Which one of its group it is, from 0.
        task: Its task, if any.
        seed: The seed for its reset, if the environment takes one.
    """

    group: int
    member: int
    task: Task | RemoteTask | None
    seed: int | None

    def describe(self) -> str:
        """Describe it for a message."""
        parts = [f"group {self.group}, member {self.member}"]
        if isinstance(self.task, Task):
            parts.append(f"task {self.task.id!r}")
        if self.seed is not None:
            parts.append(f"seed {self.seed}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSchedule:
    """The episodes that a caller requested.

    Attributes:
        tasks: Tasks or their ids; `None` to draw one for each group.
        episodes: How many at most.
        group_size: How many episodes share a task.
        seed: The seed that those of all episodes are derived from, or one for each group; `None` if
            the environment takes none.
        share_seed: Whether episodes that share a task share a seed.
    """

    tasks: Iterable[Task | str] | None
    episodes: int | None
    group_size: int
    seed: int | tuple[int, ...] | None
    share_seed: bool

    def total(self) -> int | None:
        """Return how many episodes there will be, if that is known."""
        if self.tasks is None or is_endless(self.tasks):
            return self.episodes
        try:
            groups = len(self.tasks)  # type: ignore[arg-type] # raises TypeError if it has no length
        except TypeError:
            groups = operator.length_hint(self.tasks, -1)
        if groups < 0:
            return None
        listed = groups * self.group_size
        return listed if self.episodes is None else min(listed, self.episodes)

    def jobs(self, known: Tasks | None) -> Iterator[EpisodeJob]:
        """Iterate over the jobs in order. A task is requested when its group's turn comes.

        A server's task is fetched by the worker that plays the job, so that nothing blocks here,
        and an unreachable server costs only an episode that is played again.

        The seed of an episode depends on the rollout's seed, its group and its place in it, never
        on which worker plays it, or when.
        """
        groups = None if self.episodes is None else self.episodes // self.group_size
        for group, one in enumerate(itertools.islice(self._requested(), groups)):
            base = self._group_seed(group)
            task = _find_task(one, base, known, is_given=self.tasks is not None)
            for member in range(self.group_size):
                own = base if base is None or self.share_seed else episode_seed(base, member + 1)
                yield EpisodeJob(group, member, task, own)

    def _group_seed(self, group: int) -> int | None:
        if isinstance(self.seed, tuple):
            return self.seed[group]
        return None if self.seed is None else episode_seed(self.seed, group + 1)

    def _requested(self) -> Iterable[Any]:
        """Return the requested tasks; those of a server are not fetched yet."""
        tasks = self.tasks
        if tasks is None:
            return itertools.repeat(None)
        if isinstance(tasks, SplitIterator) and tasks.tasks.reader is not None:
            return _remote_tasks(tasks, tasks.tasks.reader)
        return tasks


def make_schedule(
    interface: Interface,
    *,
    tasks: Any,
    episodes: int | None,
    group_size: int,
    seed: Any,
    share_seed: bool,
) -> RolloutSchedule:
    """Make a schedule from a caller's arguments, or refuse them.

    Raises:
        OptionError: The number of episodes is unknown, or a group would be incomplete.
        TaskError: The environment takes no task, or `tasks` is invalid.
        SeedError: The environment takes no seed.
    """
    if episodes is not None and episodes % group_size:
        raise OptionError(
            f"episodes={episodes} is not a multiple of group_size={group_size}, so a group would "
            f"be incomplete. Use episodes={episodes - episodes % group_size + group_size}."
        )
    seeds = _read_seeds(seed, episodes, group_size)
    if seeds is not None:
        seed, share_seed = seeds, True
        episodes = len(seeds) * group_size
    if tasks is None and episodes is None:
        raise OptionError(
            "rollout() does not know how many episodes to play. Pass episodes=…, or tasks=…."
        )
    if tasks is not None:
        _check_tasks(interface, tasks)
        if episodes is None and is_endless(tasks):
            raise OptionError(
                "These tasks are endless, so the rollout would never end. Pass episodes=… too."
            )
    if "seed" in interface.reset_takes:
        if seeds is None:
            seed = draw_seed() if seed is None else read_seed(seed)
    elif seed is not None or share_seed:
        option = f"seed={seed!r}" if seed is not None else "share_seed=True"
        raise SeedError(
            f"{option} cannot be honored: {interface.name}.reset() takes no seed. Leave it out, "
            "or add a `seed` parameter to its reset()."
        )
    return RolloutSchedule(
        tasks=tasks, episodes=episodes, group_size=group_size, seed=seed, share_seed=share_seed
    )


def _read_seeds(seed: Any, episodes: int | None, group_size: int) -> tuple[int, ...] | None:
    """Return the seeds of the groups, if there is one for each.

    Raises:
        OptionError: There are more or fewer than groups.
    """
    if not isinstance(seed, list | tuple):
        return None
    if episodes is not None and episodes != len(seed) * group_size:
        raise OptionError(
            f"There are {len(seed)} seeds for {episodes // group_size} groups. Pass one for each."
        )
    return tuple(map(read_seed, seed))


def is_endless(tasks: Any) -> bool:
    """Whether these tasks are known to be endless."""
    if isinstance(tasks, itertools.repeat):
        return operator.length_hint(tasks, -1) < 0
    if isinstance(tasks, SplitIterator):
        return tasks.is_endless
    return isinstance(tasks, itertools.cycle | itertools.count)


def _remote_tasks(tasks: SplitIterator, reader: TaskReader) -> Iterator[RemoteTask]:
    while not tasks.is_over:
        index, tasks.index = tasks.index, tasks.index + 1
        yield RemoteTask(partial(reader.at, tasks.split, index))


def _check_tasks(interface: Interface, tasks: Any) -> None:
    if "task" not in interface.reset_takes:
        raise TaskError(
            f"{interface.name}.reset() takes no task. Leave tasks out, and pass episodes=…."
        )
    if isinstance(tasks, str | Task | Tasks) or not isinstance(tasks, Iterable):
        raise TaskError(
            f"tasks must be iterable, got {tasks!r}. Pass a list of tasks or ids, or a "
            "split, such as pool.tasks('train')."
        )


def _find_task(
    one: Any, seed: int | None, known: Tasks | None, *, is_given: bool
) -> Task | RemoteTask | None:
    reader = None if known is None else known.reader
    if not is_given:
        if known is None:
            return None
        return known.draw(seed) if reader is None else RemoteTask(partial(reader.draw, seed))
    if isinstance(one, Task | RemoteTask):
        return one
    if not isinstance(one, str):
        raise TaskError(f"tasks: {one!r} is neither a Task nor the id of one.")
    if known is None:
        raise TaskError(f"The environment lists no tasks, so {one!r} cannot be found. Pass a Task.")
    return known.get(one) if reader is None else RemoteTask(partial(reader.get, one))

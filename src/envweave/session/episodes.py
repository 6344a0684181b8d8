"""The episodes of a session: the environment that they run in, and their seeds, tasks and ids.

`EnvSlot` holds the environment, and replaces it after a failure. `EpisodePlan` is the stream of
seeds, tasks and ids. `EpisodeTracker` follows an episode that runs in another process, and ends it
if that process is lost.
"""

from __future__ import annotations

import contextlib
import math
import operator
import secrets
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, final

from envweave.codec import to_plain
from envweave.environment import Environment, Interface
from envweave.errors import DefinitionError, OptionError, SeedError, TaskError, format_error
from envweave.session.results import join_start, make_result
from envweave.session.snapshot import snapshot
from envweave.types import (
    AutoResetReady,
    EpisodeEnd,
    LogEvent,
    ResetResult,
    StepResult,
    Task,
    Tasks,
    ToolCallRequest,
)
from envweave.types.results import same
from envweave.types.tasks import WITHHELD


@final
class EnvSlot:
    """Holds one environment at a time.

    A failed environment is not trusted with another episode. Before its next `reset` a driver
    takes it out (`release`), closes it, and puts a new one in (`install`), so that two never hold
    the same port or file. Without a `factory`, the failed one stays.

    Attributes:
        environment: The current environment, or the last one.
        tasks: The tasks that it offers.
        factory: Makes a new one; `None` for an environment that was passed ready-made. With an
            async driver it may be a coroutine function.
        failed: Whether the environment failed.
        empty: Whether it was released, and no new one was installed yet.
    """

    def __init__(
        self,
        environment: Environment,
        events: list[LogEvent | ToolCallRequest | EpisodeEnd],
    ) -> None:
        self.environment = environment
        self.tasks = environment.tasks
        self.factory: Callable[[], Any] | None = None
        self.failed = False
        self.empty = False
        self._queue = events
        environment.connect(events)

    def release(self) -> Environment | None:
        """Take out the failed environment; return it to be closed, or `None` if it was before."""
        if self.empty:
            return None
        self.empty = self.failed = True
        self.environment.connect([])  # drop the events of whatever of it still runs
        return self.environment

    def install(self, environment: Environment) -> None:
        """Put in a new environment, and receive its events."""
        self.environment, self.tasks = environment, environment.tasks
        self.failed = self.empty = False
        environment.connect(self._queue)

    def to_act(self) -> Any:
        """Return the agents that must act now, in a multi-agent environment."""
        return self.environment.to_act()  # type: ignore[attr-defined] # only multi-agent ones have it


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
        self,
        seed: Any,
        task: Any,
        options: Mapping[str, Any] | None,
        episode_id: Any,
        *,
        keep_stream: bool = False,
    ) -> dict[str, Any]:
        """Return the keywords for the author's `reset`; by default, for the stream's next episode.

        With `keep_stream`, later episodes get the seeds that they would get without this one.

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
        if task is None:
            chosen = None if self._slot.tasks is None else self._draw(seeded, self._slot.tasks)
        else:
            chosen = self._find(task)
        if keep_stream and self._base is not None:
            base, k = self._base, self._k
        self._base, self._k, self.seed = base, k, seeded
        self._begun += 1
        self.task_id = None if chosen is None else chosen.id
        self.episode_id = f"{self._prefix}-{self._begun}" if episode_id is None else episode_id
        keywords: dict[str, Any] = {}
        if "task" in self._takes:
            keywords["task"] = chosen
        if "seed" in self._takes:
            keywords["seed"] = seeded
        if "options" in self._takes:
            keywords["options"] = options
        if "episode_id" in self._takes:
            keywords["episode_id"] = self.episode_id
        return keywords

    def adopt(self, seed: int | None, task_id: str | None) -> None:
        """Begin an episode that continues another one, with its seed and task.

        The stream stays where it is. If it has not begun, it begins with that seed.
        """
        if self._base is None:
            self._base, self._k = seed, 0
        self.seed, self.task_id = seed, task_id
        self._begun += 1
        self.episode_id = f"{self._prefix}-{self._begun}"

    def _draw(self, seed: int | None, tasks: Tasks) -> Task | None:
        try:
            return tasks.draw(seed)
        except TaskError:
            raise
        except Exception as error:
            raise TaskError(f"{self._name} could not draw a task: {format_error(error)}") from error


def _public_part(task: Task) -> Any:
    """The public part of a task, in the form that it has after crossing a network."""
    return to_plain([task.split, task.data, task.image, task.limits])


def advance_seed(position: Position, seed: int | None) -> Position:
    """Return the position of a stream after a reset that timed out: as after one that failed."""
    base, k = (position.base, position.k + 1) if seed is None else (seed, 0)
    return position._replace(base=base, k=k, begun=position.begun + 1)


def lost_result(last: Any, end: EpisodeEnd, about: Any, *, several_agents: bool) -> StepResult[Any]:
    """Return the last result of a lost episode: no reward, and the last good observation."""
    if not several_agents:
        return make_result((last, math.nan, False, True, {}), end, (), None, about)
    nan, false, true = (dict.fromkeys(last, value) for value in (math.nan, False, True))
    return make_result((last, nan, false, true, {}), end, (), (), about)


def with_autoreset(
    result: StepResult[Any], fresh: ResetResult[Any] | Exception | None
) -> StepResult[Any]:
    """Add the start of the next episode, or why it failed, to the last result of a lost one."""
    if isinstance(fresh, ResetResult):
        ready = AutoResetReady(fresh.observation, fresh.info, fresh.episode_id, fresh.task_id)
        return join_start(result, ready, fresh._needs, tuple(fresh.events))  # noqa: SLF001
    if fresh is not None:
        result.info = {**result.info, "reset_error": str(fresh)}
    return result


@final
class EpisodeTracker:
    """What the caller of one environment has seen of its episode.

    Attributes:
        is_live: Whether an episode is running.
        step_index: How many steps it has taken.
        episode_id: The episode.
        task_id: Its task.
    """

    def __init__(self, *, several_agents: bool) -> None:
        self._several_agents = several_agents
        self._last: Any = None
        self.is_live = False
        self.step_index = 0
        self.episode_id: str | None = None
        self.task_id: str | None = None

    def follow(self, result: StepResult[Any]) -> None:
        """Record a result."""
        ready = result.ready
        self.is_live = ready is not None or not result.done
        if ready is not None:
            self._last, self.step_index = ready.initial_obs, 0
            self.episode_id, self.task_id = ready.episode_id, ready.task_id
            return
        shown = result.observation
        if self._several_agents and not isinstance(result, ResetResult):
            shown = {**self._last, **shown}
            for event in result.events:
                shown.pop(getattr(event, "agent_id", None), None)
        self._last, self.step_index = shown, result.step_index
        self.episode_id, self.task_id = result.episode_id, result.task_id

    @property
    def last(self) -> Any:
        """A copy of the last observation."""
        return snapshot(self._last)

    def lost(self, end: EpisodeEnd) -> StepResult[Any]:
        """End the episode, which is lost; return its last result."""
        self.is_live = False
        self.step_index += 1
        return lost_result(self.last, end, self, several_agents=self._several_agents)

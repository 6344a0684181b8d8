"""What the caller's thread does to record: it packs the values of each call and queues them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import perf_counter, time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, final

import numpy as np

from envweave.environment import Interface
from envweave.errors import (
    BadReturnError,
    BusyError,
    CallOrderError,
    CapacityError,
    DeadlineError,
    EnvironmentFailure,
    EnvironmentLostError,
    ForkError,
    OptionError,
    RegistryError,
    ResetNeededError,
    SeedError,
    SpecError,
    TaskError,
    format_error,
)
from envweave.recording.episode_log import EpisodeLog, LoggedPoint
from envweave.recording.events import (
    NUMBERS,
    RESTORE_BEGAN,
    TakenEnd,
    TakenReset,
    TakenRestored,
    TakenResult,
    TakenStep,
    pack,
    pack_result,
)
from envweave.recording.replaying import Difference, EpisodeReplay, replay_on, replay_on_async
from envweave.recording.writer import EventWriter
from envweave.types import (
    Blame,
    EpisodeEnd,
    Reason,
    ResetResult,
    State,
    StepResult,
    Task,
    Tasks,
)
from envweave.types.requests import ToolResult

if TYPE_CHECKING:
    from envweave.vector.transport import AsyncTransport, Transport

REFUSED_CALLS = (SpecError, CallOrderError, OptionError, SeedError, TaskError, CapacityError)
"""Errors of calls that did nothing: the episode, if any, is unharmed."""


def public_task(task: Task | str | None) -> dict[str, Any] | None:
    """Return what a recording keeps of a task: everything but its private part."""
    if not isinstance(task, Task):
        return None if task is None else {"id": task}
    about = {"id": task.id, "split": task.split, "data": task.data}
    if task.image is not None:
        about["image"] = task.image
    if task.limits is not None:
        about["limits"] = task.limits
    return about


def failure_end(error: BaseException) -> EpisodeEnd:
    """Return the end of an episode for an error that a call raised."""
    reason: Reason = "lost"
    blame: Blame = "infrastructure"
    if isinstance(error, DeadlineError) or isinstance(error.__cause__, DeadlineError):
        reason, blame = "timeout", "environment"
    elif isinstance(error, EnvironmentFailure | RegistryError) and not isinstance(
        error, EnvironmentLostError
    ):
        reason, blame = "error", "environment"
    return EpisodeEnd(reason, blame, format_error(error))


@final
class EpisodeEvents:
    """Records the episodes of one environment.

    Args:
        writer: Writes them; several environments may share it.
        row: The row of the environment, in a vector.

    Attributes:
        about: Further fields of the next episode's `reset` event: `group`, `member`, `attempt`,
            `parent`. They are used once.
    """

    def __init__(self, writer: EventWriter, row: int | None = None) -> None:
        self._writer = writer
        self._row = row
        self._running: str | None = None  # the episode; without a row, only this knows
        self.about: dict[str, Any] = {}

    def began(
        self,
        result: Any,
        duration_s: float,
        *,
        seed: int | None = None,
        task: Task | str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Record the start of an episode, which ends one that was still running."""
        self.left("reset() began another episode.")
        self._running = result.episode_id
        about, self.about = self.about, {}
        asked = pack({"seed": seed, "task": public_task(task), "options": options, **about})
        packed = pack_result(result)
        taken = TakenReset(time(), self._row, packed, asked, duration_s)
        self._writer.put(taken, len(packed) + len(asked))

    def stepped(
        self,
        action: bytes,
        result: Any,
        duration_s: float,
        *,
        is_answer: bool = False,
        extra: bytes | None = None,
    ) -> None:
        """Record a step, or the answer to a tool call, with its action that was packed before."""
        if (
            result.end is None
            and not is_answer
            and result._needs is None  # noqa: SLF001 - a result's own fields
            and not result._events  # noqa: SLF001
            and result.terminated is False
            and result.truncated is False
        ):
            observation = result.observation
            array, size = None, 0
            if type(observation) is np.ndarray and observation.dtype.char in NUMBERS:
                # Copying it takes a third of the time of packing it.
                size = observation.nbytes
                array, observation = observation.copy(), None
            outcome = pack((observation, result.reward, result.info))
            episode, step = result.episode_id, result.step_index
            self._writer.put(
                TakenStep(
                    time(), self._row, episode, step, action, outcome, array, extra, duration_s
                ),
                size + len(outcome),
            )
            return
        packed = pack_result(result)
        self._writer.put(
            TakenResult(time(), self._row, action, is_answer, packed, extra, duration_s),
            len(packed),
        )
        if result.end is not None:
            self._running = None if result.ready is None else result.ready.episode_id
            self._writer.hurry()

    def restored(self, step: int, cause: str | None) -> None:
        """Record that the running episode was lost after this step, and brought back."""
        self._writer.put(TakenRestored(time(), self._row, self._running, step, cause), 0)

    @property
    def is_running(self) -> bool:
        """Whether an episode is running, as far as this recorded it."""
        return self._running is not None

    def failed(self, error: BaseException) -> None:
        """Record that a call raised; a refusal changes nothing, so nothing is recorded."""
        if not isinstance(error, REFUSED_CALLS) or isinstance(error, BadReturnError):
            self.ended(failure_end(error))

    def left(self, cause: str) -> None:
        """Record that the caller gives up the episode that is running, if there is one."""
        if self._row is None:
            self.ended(EpisodeEnd("truncated", cause=cause))

    def ended(self, end: EpisodeEnd) -> None:
        """Record the end of the running episode, if no result has it."""
        if self._running is None:
            return
        episode = self._running if self._row is None else None
        self._writer.put(TakenEnd(time(), self._row, episode, pack(end)), 0)
        self._writer.hurry()
        if self._row is None:
            self._running = None


@dataclass(frozen=True, slots=True)
class LoggedSnapshot:
    """A point of a running episode: a copy of its state, or the log that leads there.

    Attributes:
        state: What the transport's own snapshot returned; `None` if it has none.
        logged: What leads there; `None` if it is not logged.
        refusal: Why there is no `state`.
        episode_id: The episode.
        step_index: How many steps it had taken.
    """

    state: Any
    logged: LoggedPoint | None
    refusal: str
    episode_id: str | None
    step_index: int


@final
class LoggedEpisodes:
    """Records or logs the episodes of one environment, and takes and restores their snapshots.

    Args:
        interface: What the environment is.
        writer: Takes the events. An `EpisodeLog` makes it possible to fork environments that
            cannot be copied.
        row: The row of the environment, in a vector.

    Attributes:
        events: Records what happens.
    """

    def __init__(self, interface: Interface, writer: EventWriter, row: int | None = None) -> None:
        self._interface = interface
        self._log = writer if isinstance(writer, EpisodeLog) else None
        self.events = EpisodeEvents(writer, row)

    def began(self, result: ResetResult[Any], duration_s: float, params: Mapping[str, Any]) -> None:
        """Record the start of an episode, with the parameters of its reset."""
        asked = {name: params.get(name) for name in ("seed", "task", "options")}
        if self._log is not None:
            self._log.keep_request(asked["task"], asked["options"])
        self.events.began(result, duration_s, **asked)

    def keep_action(self, action: Any) -> None:
        """Keep the action of the step that begins, if the episode is logged."""
        if self._log is not None:
            self._log.keep_action(action)

    def taken(self, state: Any, refusal: ForkError | None) -> LoggedSnapshot:
        """Return a snapshot.

        Raises:
            ForkError: The state cannot be copied, and the episode is not logged.
            ResetNeededError: No episode is running.
        """
        if self._log is not None and not self.events.is_running:
            raise ResetNeededError(
                f"snapshot() of {self._interface.name} with no episode running. Call reset() first."
            )
        logged = None if self._log is None else self._log.point()
        if refusal is None:
            return LoggedSnapshot(state, logged, "", state.episode_id, state.step_index)
        if logged is None:
            raise refusal
        return LoggedSnapshot(None, logged, str(refusal), logged.about.episode_id, logged.length)

    def replay(
        self, point: LoggedSnapshot, refusal: ForkError | None, tasks: Tasks | None
    ) -> EpisodeReplay:
        """Return the replay that leads to a snapshot; the running episode ends.

        Args:
            point: The snapshot.
            refusal: Why its state could not be restored, if it has one.
            tasks: The tasks of the environment.

        Raises:
            ForkError: The episode was not logged, or is not deterministic.
        """
        why = point.refusal if refusal is None else str(refusal)
        if point.logged is None:
            raise ForkError(why) if refusal is None else refusal
        if not self._interface.deterministic:
            raise not_repeatable(why, self._interface.name)
        self.events.left(RESTORE_BEGAN)
        return point.logged.replay(tasks)

    def replayed(
        self,
        replay: EpisodeReplay,
        difference: Difference | None,
        point: LoggedSnapshot,
        refusal: ForkError | None,
        began_s: float,
    ) -> ResetResult[Any]:
        """Record an episode that was played again up to a snapshot.

        Raises:
            ForkError: The same state was not reached.
        """
        if difference is not None:
            raise not_the_same(str(refusal or point.refusal), point.step_index, difference)
        start = as_start(replay.result, replay.seed)
        return self.restored(start, began_s, point, replay.call_ids)

    def restored(
        self,
        result: ResetResult[Any],
        began_s: float,
        point: LoggedSnapshot,
        call_ids: Mapping[str, str] = MappingProxyType({}),
    ) -> ResetResult[Any]:
        """Record an episode that continues another one."""
        self.events.left(RESTORE_BEGAN)
        logged = point.logged
        if point.episode_id is not None:
            parent = {"episode": point.episode_id, "step": point.step_index}
            self.events.about = {"parent": parent}
        given = None if logged is None else logged.about.task
        task = given if isinstance(given, Task) else result.task_id
        options = None if logged is None else logged.about.options
        duration_s = perf_counter() - began_s
        self.events.began(result, duration_s, task=task, options=options)
        if self._log is not None:
            self._log.continue_from(logged, result.episode_id, call_ids)
        return result


def as_logged(point: Any) -> LoggedSnapshot:
    """Return a snapshot as a recorder's, also one of an environment that is not recorded."""
    if isinstance(point, LoggedSnapshot):
        return point
    return LoggedSnapshot(point, None, "", point.episode_id, point.step_index)


def as_fork(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a reset that uses no seed of the stream, for a replay."""
    return {**params, "keep_stream": True}


@final
class _ReplayTarget:
    """Where an episode is played again: a transport, whose stream of seeds stays where it is."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.step = transport.step

    def reset(self, **params: Any) -> Any:
        return self._transport.reset(**as_fork(params))


def not_repeatable(refusal: str, name: str) -> ForkError:
    """Return why an episode cannot be played again either."""
    return ForkError(
        f"{refusal} Its actions cannot be played again either: {name} is not deterministic, as its "
        "author declared."
    )


def not_the_same(refusal: str, step: int, difference: Difference) -> ForkError:
    """Return why an episode that was played again is not continued."""
    return ForkError(
        f"{refusal} Playing its {step} steps again did not lead to the same state. The first "
        f"difference is at {difference}.".lstrip()
    )


def _refuse_step(name: str, _: Any) -> NoReturn:
    raise ResetNeededError(
        f"step() on {name} with no episode running: its last restore() failed. Call reset() again."
    )


async def _refuse_step_async(name: str, action: Any) -> NoReturn:
    _refuse_step(name, action)


def as_start(result: StepResult[Any], seed: int | None) -> ResetResult[Any]:
    """Return a result as the first one of an episode that continues from it."""
    info = result.info if seed is None else {**result.info, "seed": seed}
    start: ResetResult[Any] = ResetResult(result.observation, info)
    start.episode_id, start.task_id = result.episode_id, result.task_id
    start.step_index = result.step_index
    start._needs = result._needs  # noqa: SLF001 - a result's own fields
    start._events = tuple(result.tool_calls)  # noqa: SLF001
    return start


@final
class RecordedTransport:
    """Carries the calls of an `Env`, and records or logs them.

    Args:
        transport: Carries them.
        writer: Records them; closed with this. An `EpisodeLog` makes it possible to fork
            environments that cannot be copied.
    """

    def __init__(self, transport: Transport, writer: EventWriter) -> None:
        self.interface: Interface = transport.interface
        self._transport = transport
        self._writer = writer
        self._episodes = LoggedEpisodes(transport.interface, writer)
        self._events = self._episodes.events
        self._step: Callable[[Any], Any] = transport.step

    def reset(self, **params: Any) -> ResetResult[Any]:
        """Begin an episode."""
        began_s = perf_counter()
        try:
            result = self._transport.reset(**params)
        except Exception as error:
            self._events.failed(error)
            raise
        self._episodes.began(result, perf_counter() - began_s, params)
        self._step = self._transport.step
        return result

    def step(self, action: Any) -> StepResult[Any]:
        """Take one step."""
        packed = pack(action)
        self._episodes.keep_action(action)
        began_s = perf_counter()
        try:
            result: StepResult[Any] = self._step(action)
        except Exception as error:
            self._events.failed(error)
            raise
        is_answer = type(action) is ToolResult
        self._events.stepped(packed, result, perf_counter() - began_s, is_answer=is_answer)
        return result

    def state(self) -> State:
        """Return the environment's state."""
        return self._transport.state()

    def snapshot(self) -> LoggedSnapshot:
        """Return the running episode. See `Env.snapshot`."""
        try:
            return self._episodes.taken(self._transport.snapshot(), None)
        except ForkError as refusal:
            return self._episodes.taken(None, refusal)

    def restore(self, point: LoggedSnapshot) -> ResetResult[Any]:
        """Continue from a snapshot. See `Env.restore`."""
        began_s = perf_counter()
        point, refusal, episodes = as_logged(point), None, self._episodes
        if point.state is not None:
            try:
                result = self._transport.restore(point.state)
                self._step = self._transport.step
                return episodes.restored(result, began_s, point)
            except ForkError as error:
                refusal = error
        replay = episodes.replay(point, refusal, self.tasks)
        self._step = partial(_refuse_step, self.interface.name)
        difference = replay_on(replay, _ReplayTarget(self._transport))
        start = episodes.replayed(replay, difference, point, refusal, began_s)
        self._step = self._transport.step
        return start

    def close(self) -> None:
        """Release everything, and end the recording. May be called twice."""
        try:
            self._transport.close()
        except BusyError:
            raise  # nothing was closed
        except BaseException:
            self._writer.close()
            raise
        self._writer.close()

    @property
    def tasks(self) -> Tasks | None:
        """The tasks of its episodes."""
        return self._transport.tasks

    @property
    def agents(self) -> list[str]:
        """The agents that take part now."""
        return self._transport.agents


@final
class RecordedAsyncTransport:
    """Carries the calls of an `AsyncEnv`, and records or logs them."""

    def __init__(self, transport: AsyncTransport, writer: EventWriter) -> None:
        self.interface: Interface = transport.interface
        self._transport = transport
        self._writer = writer
        self._episodes = LoggedEpisodes(transport.interface, writer)
        self._events = self._episodes.events
        self._step: Callable[[Any], Any] = transport.step

    async def reset(self, **params: Any) -> ResetResult[Any]:
        """Begin an episode."""
        began_s = perf_counter()
        try:
            result = await self._transport.reset(**params)
        except Exception as error:
            self._events.failed(error)
            raise
        self._episodes.began(result, perf_counter() - began_s, params)
        self._step = self._transport.step
        return result

    async def step(self, action: Any) -> StepResult[Any]:
        """Take one step."""
        packed = pack(action)
        self._episodes.keep_action(action)
        began_s = perf_counter()
        try:
            result: StepResult[Any] = await self._step(action)
        except Exception as error:
            self._events.failed(error)
            raise
        is_answer = type(action) is ToolResult
        self._events.stepped(packed, result, perf_counter() - began_s, is_answer=is_answer)
        return result

    async def state(self) -> State:
        """Return the environment's state."""
        return await self._transport.state()

    async def snapshot(self) -> LoggedSnapshot:
        """Return the running episode. See `Env.snapshot`."""
        try:
            return self._episodes.taken(await self._transport.snapshot(), None)
        except ForkError as refusal:
            return self._episodes.taken(None, refusal)

    async def restore(self, point: LoggedSnapshot) -> ResetResult[Any]:
        """Continue from a snapshot. See `Env.restore`."""
        began_s = perf_counter()
        point, refusal, episodes = as_logged(point), None, self._episodes
        if point.state is not None:
            try:
                result = await self._transport.restore(point.state)
                self._step = self._transport.step
                return episodes.restored(result, began_s, point)
            except ForkError as error:
                refusal = error
        replay = episodes.replay(point, refusal, self.tasks)
        self._step = partial(_refuse_step_async, self.interface.name)
        difference = await replay_on_async(replay, _ReplayTarget(self._transport))
        start = episodes.replayed(replay, difference, point, refusal, began_s)
        self._step = self._transport.step
        return start

    async def close(self) -> None:
        """Release everything, and end the recording. May be called twice."""
        try:
            await self._transport.close()
        finally:
            self._writer.close()

    @property
    def tasks(self) -> Tasks | None:
        """The tasks of its episodes."""
        return self._transport.tasks

    @property
    def agents(self) -> list[str]:
        """The agents that take part now."""
        return self._transport.agents

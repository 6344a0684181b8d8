"""The rules of an episode: one environment, one state machine, no I/O.

A driver gets permission from the session, runs the author's code, and reports the outcome:

    begin(...)  → keywords for the author's reset   → started(outcome) | reset_failed(error)
                  (on a new environment in its `slot`, if this one has failed)
    admit(...)  → the action for the author's step  → conclude(outcome) | fail(error)
                  (or `refuse(error)`, if the author's step raised an `ActionError`)

With `autoreset`, an end leaves `reset_due` set, and the driver continues with
`begin_next() → joined(result, outcome) | join_failed(result, error)`, so that the end and the
new episode's start travel in one result.

    FRESH ──started──▶ LIVE ◀──answer──▶ TOOL      any ──close──▶ CLOSED
                         └──end──▶ ENDED ──started──▶ LIVE
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from sys import getrefcount
from typing import Any, final

import numpy as np

from envweave.codec import Mismatch
from envweave.environment import Environment
from envweave.errors import (
    ActionError,
    ClosedError,
    EnvironmentLostError,
    EnvWeaveError,
    ForkError,
    ResetFailedError,
    ResetNeededError,
    StateFailedError,
    format_error,
)
from envweave.session import results
from envweave.session.agents import AgentStates
from envweave.session.episodes import EnvSlot, EpisodePlan, Position
from envweave.session.events import EventQueue
from envweave.session.loss_log import LOSSES_LOGGED
from envweave.session.results import (
    Parts,
    Start,
    compose,
    end_of,
    read_agents,
    read_agents_start,
    read_parts,
    read_start,
)
from envweave.session.snapshot import (
    UNSHARED_REFCOUNT,
    is_shallow_immutable,
    snapshot,
    snapshot_info,
    snapshot_state,
)
from envweave.types import (
    AGENT,
    AutoResetReady,
    Blame,
    EpisodeEnd,
    Event,
    NeedAction,
    Observation,
    Reason,
    ResetResult,
    State,
    StepResult,
    Tasks,
    ToolCallRequest,
    ToolResult,
)


class Phase(enum.Enum):
    """The state of a session."""

    FRESH = "fresh"
    LIVE = "live"
    TOOL = "tool"
    ENDED = "ended"
    CLOSED = "closed"


def refusal(phase: Phase, name: str, broken: str | None, *, autoreset: bool) -> EnvWeaveError:
    """Return the error for a step where no episode is running.

    Args:
        phase: The state of the session.
        name: The environment's name in messages.
        broken: Why the last episode was lost, or the next one could not begin.
        autoreset: Whether the session resets automatically.
    """
    if phase is Phase.CLOSED:
        return ClosedError(f"step() on {name}, which is closed. Make a new environment.")
    if phase is Phase.FRESH:
        return ResetNeededError(f"step() on {name} before its first episode. Call reset() first.")
    if broken is not None:
        return ResetNeededError(
            f"step() on {name} with no episode running: {broken}. Call reset() again."
        )
    ways = "" if autoreset else ", or make the environment with autoreset=True"
    return ResetNeededError(
        f"step() on {name} after the end of its episode. Call reset() first{ways}."
    )


@contextmanager
def reading_state(session: Session) -> Iterator[None]:
    """Guard a read of the author's state. Events emitted meanwhile are dropped.

    Raises:
        ClosedError: The session is closed.
        StateFailedError: The author's code raised.
    """
    name = session.interface.name
    if session.phase is Phase.CLOSED:
        raise ClosedError(f"state() on {name}, which is closed.")
    before = len(session.events)
    try:
        yield
    except Exception as error:
        raise StateFailedError(f"{name}.state failed: {format_error(error)}") from error
    finally:
        del session.events[before:]


logger = logging.getLogger("envweave.session")

_FRESH, _LIVE, _TOOL, _ENDED, _CLOSED = Phase
_make, _ndarray = object.__new__, np.ndarray


@final
@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """A point of a running episode, from which `Session.restored` continues.

    Attributes:
        environment: What the author's `snapshot` returned.
        episode_id: The episode.
        step_index: How many steps it had taken.
        task_id: Its task.
        seed: Its seed.
        last: The last observation.
        info: The info of the last result.
        pending_reward: What was earned since the agent acted, while tools were called.
        open_calls: The tool calls that wait for an answer.
        agents: The agents, if there are several.
    """

    environment: Any
    episode_id: str | None
    step_index: int
    task_id: str | None
    seed: int | None
    last: Any
    info: dict[str, Any]
    pending_reward: float | None
    open_calls: dict[str, ToolCallRequest]
    agents: AgentStates | None


def check_snapshot_kind(point: Any, kind: type, name: str) -> None:
    """Refuse a snapshot that was taken elsewhere than it is to be restored.

    Raises:
        ForkError: It was; nothing has changed.
    """
    if not isinstance(point, kind):
        raise ForkError(
            f"The snapshot was taken of a {name} that was made with another `backend`, `record` or "
            "`forkable`. Restore it where these are the same."
        )


@final
class Session:
    """One environment instance with its episode rules.

    Attributes:
        phase: The state of the session.
        reset_due: Whether the driver must do an autoreset.
        step_index: How many steps the episode has taken.
        last: The last good observation.
        info: The info of the last result.
        events: The events that the environment emitted.
        check_observation: Raises `BadReturnError` for an observation that a vector's columns
            cannot hold.
        slot: The environment under these rules, and whether it is still trusted.
    """

    def __init__(
        self,
        environment: Environment,
        *,
        autoreset: bool = False,
        transform: Callable[[Observation], Observation] | None = None,
    ) -> None:
        self.interface = interface = environment.describe()
        self.autoreset = autoreset
        self.phase = _FRESH
        self.reset_due = False
        self.step_index = 0
        self.episode_id: str | None = None
        self.task_id: str | None = None
        self.last: Any = None
        self.check_observation: Callable[[Any], None] | None = None
        self.transform = self._callers_transform = transform
        self._read_action = interface.action_spec.read
        self._name = interface.name
        self._queue = EventQueue()
        self.events = self._queue.events
        self.slot = EnvSlot(environment, self.events)
        self._plan = EpisodePlan(self.slot, interface)
        self.info: dict[str, Any] = {}
        self._pending_reward: float | None = (
            None  # earned since the agent acted, while tools were called
        )
        self._broken: str | None = None  # why no episode is running
        agents = interface.possible_agents
        self._agent_states = None if agents is None else AgentStates(agents, interface.action_spec)

    @property
    def environment(self) -> Environment:
        """The author's environment; a new one after a replacement."""
        return self.slot.environment

    @property
    def tasks(self) -> Tasks | None:
        """The tasks that the environment offers, without their private parts."""
        tasks = self.environment.tasks
        return None if tasks is None else tasks.public()

    def _move(self, phase: Phase) -> None:
        """Go to another phase; a closed session stays closed."""
        if self.phase is not _CLOSED:
            self.phase = phase

    # Beginning an episode

    def check_reset(self, **params: Any) -> None:
        """Refuse what `begin` would refuse; nothing changes."""
        if self.phase is _CLOSED:
            raise ClosedError(f"reset() on {self._name}, which is closed. Make a new environment.")
        self._plan.check(**params)

    def begin(
        self,
        *,
        seed: Any = None,
        task: Any = None,
        options: Any = None,
        episode_id: Any = None,
        keep_stream: bool = False,
    ) -> dict[str, Any]:
        """Return the keywords for the author's `reset`, or refuse; a refusal changes nothing.

        A fork that plays an episode again passes `keep_stream`; see `EpisodePlan.choose`.
        """
        self.check_reset(seed=seed, task=task, options=options)
        plan = self._plan
        return self._clear(plan.choose(seed, task, options, episode_id, keep_stream=keep_stream))

    def begin_next(self) -> dict[str, Any]:
        """Return the keywords for the `reset` of an autoreset."""
        self.reset_due = False
        return self._clear(self._plan.choose(None, None, None, None))

    def _clear(self, keywords: dict[str, Any]) -> dict[str, Any]:
        if self.phase is not _CLOSED:
            self.phase = _ENDED  # if reset fails there is no episode to step
        self.reset_due = False
        self._broken = self._pending_reward = None
        self.episode_id, self.task_id = self._plan.episode_id, self._plan.task_id
        self._queue.clear()
        return keywords

    def started(self, outcome: Any) -> ResetResult[Any]:
        """Take the outcome of the author's `reset`; the episode is live."""
        return results.make_start(*self._start(outcome))

    def _start(self, outcome: Any) -> Start:
        if self.phase is _CLOSED:
            raise ClosedError(f"{self._name} was closed while its reset() ran.")
        self.update_transform()
        if self._agent_states is None:
            shown, info = read_start(outcome, self.transform)
            if self.check_observation is not None:
                self.check_observation(shown)
            observation = shown.copy() if type(shown) is _ndarray else snapshot(shown)
            self.last = observation
        else:
            read = read_agents_start(outcome, self.transform, self.check_observation)
            self._agent_states.clear()
            info = read.info
            observation = self._agent_states.observe(read.observation, info)
            self.last = self._agent_states.seen
        if isinstance(outcome, StepResult):
            self._queue.extend(outcome)
        events = self._queue.read_start() if self.events else ()
        needs: tuple[NeedAction[Any], ...] | None = None
        if self._queue.open_calls:
            needs = ()
        elif self._agent_states is not None:
            needs = self._agent_states.request_actions(self.slot.to_act())
        self.step_index = 0
        self.phase = _TOOL if self._queue.open_calls else _LIVE
        info = self.info = snapshot_info(info)
        if self._plan.seed is not None:
            info["seed"] = self._plan.seed
        return AutoResetReady(observation, info, self.episode_id, self.task_id), needs, events

    def reset_failed(self, error: Exception) -> Exception:
        """Return the error to raise for a failed `reset` of the author's."""
        self._move(_ENDED)
        self.slot.failed = True
        self._broken = f"its last reset() failed: {format_error(error)}"
        kind = EnvironmentLostError if isinstance(error, EnvironmentLostError) else ResetFailedError
        return kind(f"{self._name}.reset() failed: {format_error(error)}")

    def joined(self, result: StepResult[Any], outcome: Any) -> StepResult[Any]:
        """Put the start of the new episode into the result that ended the last one."""
        try:
            start = self._start(outcome)
        except Exception as error:  # noqa: BLE001 - what the author's reset returned
            return self.join_failed(result, error)
        return results.join_start(result, *start)

    def join_failed(self, result: StepResult[Any], error: BaseException) -> StepResult[Any]:
        """Add to the result that the new episode could not begin; a reset is needed."""
        self._move(_ENDED)
        if self.episode_id != result.episode_id:  # else no task was found, and no reset ran
            self.slot.failed = True
        self._broken = f"its last reset() failed: {format_error(error)}"
        logger.warning("the autoreset of %s failed", self._name, exc_info=error)
        result.info = {**result.info, "reset_error": format_error(error)}
        return result

    # One step

    def admit(self, action: Any) -> Any:
        """Return the action in the form that the author's `step` takes, or refuse it."""
        if self.phase is not _LIVE:
            if self.phase is _TOOL:
                return self._queue.admit(action, self._name)
            raise refusal(self.phase, self._name, self._broken, autoreset=self.autoreset)
        if type(action) is ToolResult:
            raise ActionError(f"action: no tool call {action.call_id!r} waits for an answer")
        if self._agent_states is not None:
            return self._agent_states.read_actions(action)
        try:
            return self._read_action(action)
        except Mismatch as mismatch:
            raise ActionError(mismatch.describe("action")) from None

    def conclude(self, outcome: Any) -> StepResult[Any]:
        """Take the outcome of the author's `step`."""
        try:
            if self._agent_states is not None:
                return self._conclude_agents(self._agent_states, outcome)
            if self.transform is not None:
                return self._conclude_rare(outcome)
            if type(outcome) is tuple:
                try:
                    observation, reward, terminated, truncated, info = outcome
                except ValueError:
                    return self._conclude_rare(outcome)
            elif isinstance(outcome, Observation):
                observation, reward, info = outcome, outcome.reward, outcome.metadata
                terminated, truncated = outcome.done, outcome.truncated
            else:
                return self._conclude_rare(outcome)
            if (
                type(reward) is not float
                or reward != reward  # the cheapest test for NaN
                or (terminated is not False and terminated is not True)
                or (truncated is not False and truncated is not True)
                or self.events
                or self.phase is _TOOL
                or (info and (type(info) is not dict or "reward_parts" in info))
            ):
                return self._conclude_rare(outcome)
            if self.check_observation is not None:
                self.check_observation(observation)
            # Observations that the author could still write to are copied. For an array that
            # check costs as much as the copy; for a dataclass it is cheaper.
            kind, is_bare = type(observation), observation is outcome  # not part of a tuple
            if kind is _ndarray:
                observation = observation.copy()
            elif (
                not is_bare
                or info
                or getrefcount(observation) > UNSHARED_REFCOUNT
                or not is_shallow_immutable(kind)
            ):
                observation = snapshot(observation)
            info = snapshot_info(info) if info else {}
        except Exception as error:  # noqa: BLE001 - what the author returned
            return self.fail(error)
        self.last, self.info = observation, info
        self.step_index = index = self.step_index + 1
        # The hot path: what the constructor does, without its checks.
        result: StepResult[Any] = _make(StepResult)
        result.observation = observation
        result.reward = reward
        result.terminated = terminated
        result.truncated = truncated
        result.info = info
        result.end = None
        result.ready = None
        result.episode_id = self.episode_id
        result.step_index = index
        result.task_id = self.task_id
        result._needs = None  # noqa: SLF001 - the session makes results
        result._events = result._ready_events = ()  # noqa: SLF001
        if terminated or truncated:
            result.end = end_of(terminated)
            self._end()
        return result

    def _end(self) -> None:
        self._pending_reward = None
        self._move(_ENDED)
        self.reset_due = self.autoreset and self.phase is not _CLOSED

    def _conclude_rare(self, outcome: Any) -> StepResult[Any]:
        """Conclude a step with events, a transform, or another form of return value."""
        if isinstance(outcome, StepResult):
            self._queue.extend(outcome)
        observation, reward, terminated, truncated, info = read_parts(outcome, self.transform)
        if self.check_observation is not None:
            self.check_observation(observation)
        kept = snapshot(observation)
        answers = self._queue.answering is not None
        end, events = self._queue.read()
        end, terminated, truncated = results.settle_end(end, terminated, truncated)
        self.last = kept
        self.step_index += not answers
        if not answers:
            self._pending_reward = None
        needs = None
        if end is None:
            self._pending_reward = results.total(self._pending_reward, reward)
            if answers and not self._queue.open_calls:
                needs = (NeedAction(kept, info.get("action_mask"), self._pending_reward),)
        self.info = snapshot_info(info)
        parts = (kept, reward, terminated, truncated, self.info)
        return self._result(parts, end, events, needs)

    def _conclude_agents(self, states: AgentStates, outcome: Any) -> StepResult[Any]:
        read = read_agents(outcome, self.transform, self.check_observation)
        self._queue.extend(read)
        answers = self._queue.answering is not None
        declared, events = self._queue.read()
        applied = states.apply(read, declared)
        needs: tuple[NeedAction[Any], ...] = ()
        if applied.end is None and not self._queue.open_calls:
            needs = states.request_actions(self.slot.to_act())
        self.last = applied.parts[0] if applied.end is not None else states.seen
        self.step_index += not answers
        events = (*events, *applied.agent_ends)
        info = {agent: snapshot_info(one) if one else {} for agent, one in read.info.items()}
        self.info = info
        return self._result((*applied.parts, info), applied.end, events, needs)

    def _result(
        self,
        parts: Parts,
        end: EpisodeEnd | None,
        events: tuple[Event, ...],
        needs: tuple[NeedAction[Any], ...] | None = None,
    ) -> StepResult[Any]:
        """Make the result of a step that is not an ordinary one, and change the phase."""
        if end is not None:
            if not end.valid:
                parts, end = results.nan_rewards(parts, end)
                self.slot.failed = True
            events = tuple(event for event in events if not isinstance(event, ToolCallRequest))
            self._queue.clear()
            self._end()
        else:
            waiting = self._queue.open_calls
            events += tuple(call for call in waiting.values() if call not in events)
            needs = () if waiting else needs
            self._move(_TOOL if waiting else _LIVE)
        return results.make_result(parts, end, events, needs, self)

    def fail(
        self, error: BaseException, reason: Reason = "error", blame: Blame = "environment"
    ) -> StepResult[Any]:
        """End the episode by a failure: no reward, the last good observation, and a blame."""
        cause = f"{reason} ({blame}): {format_error(error)}"
        LOSSES_LOGGED.warn(logger, self._name, cause, error)
        self.step_index += self._queue.answering is None
        end = EpisodeEnd(reason, blame, format_error(error))
        last, events = snapshot(self.last), self._queue.logs()
        if self._agent_states is None:
            return self._result((last, None, False, True, {}), end, events)
        self._agent_states.clear()
        return self._result((last, *results.truncate_all(last), {}), end, events, ())

    def refuse(self, error: ActionError) -> ActionError:
        """Return the error to raise for an action that the author's `step` refused.

        The episode is unchanged: the same agents must act, and no step was taken.
        """
        self._queue.rollback()
        # Not the author's own error: another process may not know its class.
        return ActionError(str(error) or f"action: {self._name} refuses it")

    def refused(self, error: ActionError) -> StepResult[Any]:
        """Return the row of a refused action in a batch whose other rows were stepped."""
        last, waiting = snapshot(self.last), tuple(self._queue.open_calls.values())
        if self._agent_states is not None:
            needs = self._agent_states.repeat_needs()
        else:
            needs = (NeedAction(last, snapshot(self.info.get("action_mask"))),)
        several = self._agent_states is not None
        return results.refused_row(error, last, needs, waiting, self, several_agents=several)

    def abandon(self) -> None:
        """Give up the episode: the author's code was interrupted, so its state is unknown."""
        self._move(_ENDED)
        self.reset_due = False
        self._broken = "the last call was interrupted"

    @property
    def agents(self) -> list[str]:
        """The agents that take part now."""
        return [AGENT] if self._agent_states is None else self._agent_states.living

    def state(self) -> State:
        """Return a copy of the author's state, with missing fields filled in."""
        with reading_state(self):
            return self.read_state(self.environment.state)

    def read_state(self, state: Any) -> State:
        """Return a copy of a state that the author's `state` returned."""
        return snapshot_state(state, self.episode_id, self.step_index)

    def update_transform(self) -> None:
        """Use the environment's current `transform` from the next observation on."""
        self.transform = compose(self.slot.environment.transform, self._callers_transform)

    # Forks

    def check_snapshot(self) -> None:
        """Refuse a snapshot where no episode is running.

        Raises:
            ResetNeededError: No episode is running.
            ClosedError: The session is closed.
        """
        if self.phase is _LIVE or self.phase is _TOOL:
            return
        if self.phase is _CLOSED:
            raise ClosedError(f"snapshot() of {self._name}, which is closed.")
        raise ResetNeededError(
            f"snapshot() of {self._name} with no episode running. Call reset() first."
        )

    def taken(self, state: Any) -> SessionSnapshot:
        """Return the snapshot that the author's `snapshot` completes."""
        states = self._agent_states
        return SessionSnapshot(
            state,
            self.episode_id,
            self.step_index,
            self.task_id,
            self._plan.seed,
            snapshot(self.last),
            snapshot_info(self.info),
            self._pending_reward,
            dict(self._queue.open_calls),
            None if states is None else states.copied(),
        )

    def check_restore(self, point: Any) -> None:
        """Refuse to restore a session that is closed, or what is no snapshot of a session."""
        if self.phase is _CLOSED:
            raise ClosedError(f"restore() of {self._name}, which is closed. Make a new one.")
        check_snapshot_kind(point, SessionSnapshot, self._name)

    def restored(self, point: SessionSnapshot) -> ResetResult[Any]:
        """Take the place of a snapshot, after the author's `restore`; the episode is live.

        It is an episode of its own, with an id of its own, and the steps so far.
        """
        self.check_restore(point)
        self._clear({})
        self.update_transform()
        if self.check_observation is not None:
            self.check_observation(point.last)
        self._plan.adopt(point.seed, point.task_id)
        self.episode_id, self.task_id = self._plan.episode_id, self._plan.task_id
        self._queue.open_calls.update(point.open_calls)
        self._pending_reward = point.pending_reward
        self.step_index = point.step_index
        self.last, self.info = snapshot(point.last), snapshot_info(point.info)
        events = tuple(point.open_calls.values())
        needs: tuple[NeedAction[Any], ...] | None = () if events else None
        if point.agents is not None:
            self._agent_states = point.agents.copied()
            needs = () if events else self._agent_states.current_needs()
        self.phase = _TOOL if events else _LIVE
        info = snapshot_info(self.info)
        if point.seed is not None:
            info["seed"] = point.seed
        start = AutoResetReady(snapshot(self.last), info, self.episode_id, self.task_id)
        result = results.make_start(start, needs, events)
        result.step_index = self.step_index
        return result

    def restore_failed(self, error: Exception) -> ForkError:
        """Return the error to raise for a failed `restore` of the author's."""
        self._move(_ENDED)
        self.slot.failed = True
        self._broken = f"its last restore() failed: {format_error(error)}"
        if isinstance(error, ForkError):
            return ForkError(str(error))
        return ForkError(f"{self._name}.restore() failed: {format_error(error)}")

    @property
    def position(self) -> Position:
        """The point that the stream of episodes has reached, for another session to resume from."""
        return self._plan.position

    def resume_from(self, position: Position) -> None:
        """Continue the seeds and episode ids of another session."""
        self._plan.resume_from(position)

    def close(self) -> bool:
        """Close; return whether the author's `close` still has to run."""
        was_open = self.phase is not _CLOSED
        self.phase = _CLOSED
        return was_open

"""The rules of an episode: one environment, one state machine, no I/O.

A driver asks the session for leave, runs the author's code, and tells the session how it went:

    begin(...)  → keywords for the author's reset   → started(outcome) | reset_failed(error)
    admit(...)  → the action for the author's step  → conclude(outcome) | fail(error)

With `autoreset`, an end leaves `reset_due` set, and the driver goes on with
`begin_next() → joined(result, outcome) | join_failed(result, error)`, so that the end and the
new episode's start travel in one result.

    FRESH ──started──▶ LIVE ◀──answer──▶ TOOL      any ──close──▶ CLOSED
                         └──end──▶ ENDED ──started──▶ LIVE
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, final

from envweave.codec import Mismatch
from envweave.environment import Environment
from envweave.environment.outcome import (
    bad_step,
    check_parts,
    flag,
    number,
)
from envweave.errors import (
    ActionError,
    BadReturnError,
    ClosedError,
    ResetFailedError,
    StateFailedError,
    in_words,
)
from envweave.session.keeping import keep
from envweave.session.ledger import AgentLedger
from envweave.session.outbox import Outbox
from envweave.session.phase import Phase, refusal
from envweave.session.plan import EpisodePlan
from envweave.session.reading import read_agents, read_agents_start, read_result, read_start
from envweave.transforms import apply_transform
from envweave.types import (
    AGENT,
    AgentEnd,
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
    ToolCallRequest,
)

logger = logging.getLogger("envweave.session")


_FRESH, _LIVE, _TOOL, _ENDED, _CLOSED = Phase
_make = object.__new__


@final
class Session:
    """One environment instance with its episode rules.

    Attributes:
        phase: Where the session stands.
        reset_due: Whether the driver owes an autoreset.
        step_index: How many steps the episode has taken.
        last: The last good observation; `raw` is the author's own object behind it.
        said: What the environment emits goes here.
        fits: Raises `BadReturnError` for an observation that a vector's columns cannot take.
    """

    def __init__(
        self,
        environment: Environment,
        *,
        autoreset: bool = False,
        transform: Callable[[Observation], Observation] | None = None,
    ) -> None:
        self.environment = environment
        self.interface = interface = environment.describe()
        self.autoreset = autoreset
        self.phase = _FRESH
        self.reset_due = False
        self.step_index = 0
        self._name = interface.name
        self._plan = EpisodePlan(environment.tasks, interface)
        self.episode_id: str | None = None
        self.task_id: str | None = None
        self._own_transform = transform
        self.transform = transform
        self.fits: Callable[[Any], None] | None = None
        self._outbox = Outbox()
        self.said = self._outbox.said
        environment.connect(self.said)
        self._read_action = interface.action_spec.read
        self.last: Any = None
        self.raw: Any = None
        self._broken: str | None = None  # why the last reset began no episode
        self._ledger: AgentLedger | None = None
        self._to_act: Callable[[], Any] = lambda: None
        if interface.possible_agents is not None:
            self._ledger = AgentLedger(interface.possible_agents, interface.action_spec)
            self._to_act = environment.to_act  # type: ignore[attr-defined] # several have it

    # Beginning an episode

    def begin(
        self,
        *,
        seed: Any = None,
        task: Any = None,
        options: Mapping[str, Any] | None = None,
        episode_id: str | None = None,
    ) -> dict[str, Any]:
        """Return the keywords for the author's `reset`, or refuse; a refusal changes nothing."""
        if self.phase is _CLOSED:
            raise ClosedError(f"reset() on {self._name}, which is closed. Make a new environment.")
        wanted = {"seed": seed, "task": task, "options": options, "episode_id": episode_id}
        return self._clear(self._plan.choose(**wanted))

    def _clear(self, keywords: dict[str, Any]) -> dict[str, Any]:
        self.phase = _ENDED  # if reset fails there is no episode to step
        self.reset_due = False
        self._broken = None
        self.episode_id, self.task_id = self._plan.episode_id, self._plan.task_id
        self._outbox.clear()
        return keywords

    def started(self, outcome: Any) -> ResetResult[Any]:
        """Take the outcome of the author's `reset`; the episode is live."""
        ready, asked, events = self._start(outcome)
        result: ResetResult[Any] = ResetResult(
            ready.initial_obs,
            ready.initial_info,
            episode_id=ready.episode_id,
            task_id=ready.task_id,
        )
        result._asked, result._events = asked, events  # noqa: SLF001 - the session makes results
        return result

    def _start(
        self, outcome: Any
    ) -> tuple[AutoResetReady[Any], tuple[NeedAction[Any], ...] | None, tuple[Event, ...]]:
        transform = self.transform = self._own_transform or self.environment.transform
        ledger = self._ledger
        if ledger is None:
            observation, info = read_start(outcome, transform)
            if self.fits is not None:
                self.fits(observation)
            self.raw = observation
            observation = self.last = keep(observation)
        else:
            observation, info = read_agents_start(outcome, transform)
            ledger.clear()
            observation = ledger.observe(observation, info)
            self.last = ledger.seen
        _, events = self._outbox.read()
        asked: tuple[NeedAction[Any], ...] | None = None
        if self._outbox.open_calls:
            asked = ()
        elif ledger is not None:
            asked = ledger.ask(self._to_act())
        self.step_index = 0
        self.phase = _TOOL if self._outbox.open_calls else _LIVE
        if self._plan.seed is not None:
            info = {**info, "seed": self._plan.seed}
        ready = AutoResetReady(observation, info, self.episode_id, self.task_id)
        return ready, asked, events

    def reset_failed(self, error: Exception) -> Exception:
        """Return what to raise for an author's `reset` that failed."""
        self.phase = _ENDED
        self._broken = f"its last reset() failed: {in_words(error)}"
        failure = ResetFailedError(f"{self._name}.reset() failed: {in_words(error)}")
        failure.__cause__ = error
        return failure

    # One step

    def admit(self, action: Any) -> Any:
        """Return the action as the author's `step` wants it, or refuse; nothing changes."""
        if self.phase is not _LIVE:
            if self.phase is _TOOL:
                return self._outbox.admit(action, self._name)
            raise refusal(self.phase, self._name, self._broken, autoreset=self.autoreset)
        if self._ledger is not None:
            return self._ledger.read_actions(action)
        try:
            return self._read_action(action)
        except Mismatch as mismatch:
            raise ActionError(mismatch.describe("action")) from None

    def conclude(self, outcome: Any) -> StepResult[Any]:
        """Take the outcome of the author's `step`."""
        try:
            if self._ledger is not None:
                return self._conclude_agents(self._ledger, outcome)
            if type(outcome) is tuple and len(outcome) == 5:
                observation, reward, terminated, truncated, info = outcome
                if self.transform is not None:
                    apply_transform(self.transform, observation)  # refuses: a tuple has none
            elif isinstance(outcome, Observation):
                if self.transform is not None:
                    outcome = apply_transform(self.transform, outcome)
                observation, reward, info = outcome, outcome.reward, outcome.metadata
                terminated, truncated = outcome.done, outcome.truncated
            elif isinstance(outcome, StepResult):
                self._overhear(outcome)
                read = read_result(outcome, self.transform)
                observation, reward, terminated, truncated, info = read
            else:
                raise bad_step(outcome)
            if type(reward) is not float or terminated is not False or truncated is not False:
                reward = number(reward)
                terminated = flag(terminated, "terminated")
                truncated = flag(truncated, "truncated")
            if info:
                if not isinstance(info, dict):
                    raise BadReturnError(f"info {info!r} is not a dict.")
                if "reward_parts" in info:
                    check_parts(info["reward_parts"], reward)
            elif info is None:
                info = {}
            if self.fits is not None:
                self.fits(observation)
            if self.said or terminated or truncated or self.phase is _TOOL:
                return self._conclude_rare(observation, reward, terminated, truncated, info)
            # An author who writes to one buffer is handed copies of it.
            if observation is self.raw:
                observation = keep(observation)
            else:
                self.raw = observation
        except Exception as error:  # noqa: BLE001 - what the author returned, or a transform
            return self.fail(error)
        self.last = observation
        self.step_index = index = self.step_index + 1
        # The hot path: what the constructor does, without its questions.
        result: StepResult[Any] = _make(StepResult)
        result.observation = observation
        result.reward = reward
        result.terminated = False
        result.truncated = False
        result.info = info
        result.end = None
        result.ready = None
        result.episode_id = self.episode_id
        result.step_index = index
        result.task_id = self.task_id
        result._asked = None  # noqa: SLF001 - the session makes results
        result._events = ()  # noqa: SLF001
        return result

    def _overhear(self, outcome: StepResult[Any]) -> None:
        """Take what an author put into a result of their own as emitted."""
        if outcome.end is not None:
            self.said.append(outcome.end)
        self.said.extend(event for event in outcome.events if not isinstance(event, AgentEnd))

    def _conclude_rare(
        self, observation: Any, reward: Any, terminated: Any, truncated: Any, info: dict[str, Any]
    ) -> StepResult[Any]:
        """Conclude a step with an end, an event or a tool call."""
        answers = self._outbox.answering is not None
        end, events = self._outbox.read()
        if end is not None and not (terminated or truncated):
            terminated, truncated = end.reason == "terminated", end.reason != "terminated"
        if end is None and (terminated or truncated):
            end = EpisodeEnd("terminated" if terminated else "truncated")
        if observation is self.raw or end is not None:
            observation = keep(observation)  # an autoreset may write over it
        else:
            self.raw = observation
        self.last = observation
        self.step_index += not answers
        return self._result((observation, reward, terminated, truncated, info), end, events)

    def _conclude_agents(self, ledger: AgentLedger, outcome: Any) -> StepResult[Any]:
        read = read_agents(outcome, self.transform)
        self._overhear(read)
        answers = self._outbox.answering is not None
        declared, events = self._outbox.read()
        settled = ledger.settle(read, declared)
        asked: tuple[NeedAction[Any], ...] = ()
        if settled.end is None and not self._outbox.open_calls:
            asked = ledger.ask(self._to_act())
        self.last = ledger.seen
        self.step_index += not answers
        events = (*events, *settled.agent_ends)
        return self._result((*settled.parts, read.info), settled.end, events, asked)

    def _result(
        self,
        parts: tuple[Any, Any, Any, Any, dict[str, Any]],
        end: EpisodeEnd | None,
        events: tuple[Event, ...],
        asked: tuple[NeedAction[Any], ...] | None = None,
    ) -> StepResult[Any]:
        """Make the result of a step that was not an ordinary one, and move on."""
        if end is not None and not end.valid:
            parts = (parts[0], _unpaid(parts[1]), *parts[2:])
        result: StepResult[Any] = StepResult(*parts, end=end, step_index=self.step_index)
        result.episode_id, result.task_id = self.episode_id, self.task_id
        if end is not None:
            events = tuple(said for said in events if not isinstance(said, ToolCallRequest))
            self._outbox.clear()
            self.phase = _ENDED
            self.reset_due = self.autoreset
        else:
            self.phase = _TOOL if self._outbox.open_calls else _LIVE
        result._asked = () if self.phase is _TOOL else asked  # noqa: SLF001 - its maker
        result._events = events  # noqa: SLF001
        return result

    def fail(
        self, error: BaseException, reason: Reason = "error", blame: Blame = "environment"
    ) -> StepResult[Any]:
        """End the episode by a failure: no reward, the last good observation, an owner."""
        logger.warning("an episode of %s ended: %s (%s)", self._name, reason, blame, exc_info=error)
        self.step_index += self._outbox.answering is None
        events = tuple(said for said in self.said if not isinstance(said, EpisodeEnd))
        end = EpisodeEnd(reason, blame, in_words(error))
        last = keep(self.last)
        if self._ledger is None:
            return self._result((last, None, False, True, {}), end, events)
        unpaid, running, cut = (dict.fromkeys(last, one) for one in (None, False, True))
        return self._result((last, unpaid, running, cut, {}), end, events, ())

    def abandon(self) -> None:
        """Forget the episode: the author's code was interrupted, and nobody knows where."""
        if self.phase is not _CLOSED:
            self.phase = _ENDED
            self._broken = "the last call was interrupted"

    # The next episode, in the same result

    def begin_next(self) -> dict[str, Any]:
        """Return the keywords for the `reset` that an autoreset owes."""
        return self._clear(self._plan.next())

    def joined(self, result: StepResult[Any], outcome: Any) -> StepResult[Any]:
        """Put the start of the new episode into the result that ended the last one."""
        try:
            result.ready, result._asked, events = self._start(outcome)  # noqa: SLF001 - its maker
        except Exception as error:  # noqa: BLE001 - what the author's reset returned
            return self.join_failed(result, error)
        result._events += events  # noqa: SLF001
        return result

    def join_failed(self, result: StepResult[Any], error: BaseException) -> StepResult[Any]:
        """Tell in the result that the new episode could not begin; a reset is needed."""
        self.phase = _ENDED
        self._broken = f"its last reset() failed: {in_words(error)}"
        logger.warning("the autoreset of %s failed", self._name, exc_info=error)
        result.info = {**result.info, "reset_error": in_words(error)}
        return result

    # The rest

    @property
    def agents(self) -> list[str]:
        """Who takes part now."""
        return [AGENT] if self._ledger is None else self._ledger.living

    def state(self) -> State:
        """Return a copy of the author's state, with what it leaves open filled in."""
        if self.phase is _CLOSED:
            raise ClosedError(f"state() on {self._name}, which is closed.")
        try:
            state: State = keep(self.environment.state)
        except Exception as error:
            raise StateFailedError(f"{self._name}.state failed: {in_words(error)}") from error
        if isinstance(state, State) and state.episode_id is None:
            steps = state.step_count or self.step_index
            return dataclasses.replace(state, episode_id=self.episode_id, step_count=steps)
        return state

    def close(self) -> bool:
        """Close; return whether the author's `close` is still to be run."""
        was_open = self.phase is not _CLOSED
        self.phase = _CLOSED
        return was_open


def _unpaid(reward: Any) -> Any:
    """A failure is never a reward, of 0 or of anything."""
    return dict.fromkeys(reward, math.nan) if isinstance(reward, dict) else math.nan

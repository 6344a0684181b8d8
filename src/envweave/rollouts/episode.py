"""Plays one episode, the agent and the environment in turn, and records it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, final, runtime_checkable

from envweave.errors import (
    BadReturnError,
    DeadlineError,
    EnvironmentFailure,
    EnvironmentLostError,
    RegistryError,
    format_error,
)
from envweave.rollouts.pool import REFUSALS, PoolSlot
from envweave.rollouts.schedule import EpisodeJob, RemoteTask
from envweave.session.snapshot import snapshot
from envweave.types import Blame, Episode, EpisodeEnd, EpisodeStep, Reason, StepResult

Agent: TypeAlias = Callable[[StepResult[Any]], Any]
"""Takes the last result and returns the next action, directly or as an awaitable."""


@runtime_checkable
class EpisodeAgents(Protocol):
    """Makes an agent for each episode, with its own view of the environment, such as `ChatAgent`.

    The episode holds the observations and actions of the view.
    """

    def begin(self, env: Any, described: Any) -> tuple[Any, Agent]:
        """Return the view, which has `reset` and `step`, and the agent that acts on its results.

        Args:
            env: The environment, with coroutines `reset` and `step`.
            described: The pool, which has its `id`, `action_spec` and `possible_agents`.
        """
        ...


@dataclass(frozen=True, slots=True)
class Decision:
    """An action, with data to record.

    An agent may return one instead of an action. The environment only gets the action.

    Attributes:
        action: The action.
        extra: Any data, such as log-probabilities or tokens. It becomes `EpisodeStep.extra`.
    """

    action: Any
    extra: Any = None


@dataclass(frozen=True, slots=True)
class EpisodeAttempt:
    """One attempt at a job.

    Attributes:
        job: The episode to play.
        episode_id: Its id.
        number: The number of the attempt, from 1.
        agents: Every agent that may ever take part; `None` for one unnamed agent.
        max_steps: Truncate it after this many steps.
    """

    job: EpisodeJob
    episode_id: str
    number: int
    agents: tuple[str, ...] | None
    max_steps: int | None


async def play(slot: PoolSlot, agent: Agent, attempt: EpisodeAttempt) -> Episode:
    """Play one episode to its end, or to `max_steps`. A failure is an end too.

    Raises:
        EnvWeaveError: The environment refused the task, the seed or an action. A note says where.
        Exception: The agent raised. A note says where.
    """
    recorder = EpisodeRecorder(attempt)
    job, episode_id, max_steps = attempt.job, attempt.episode_id, attempt.max_steps
    result: StepResult[Any]
    try:
        if isinstance(job.task, RemoteTask):
            recorder.task = await job.task.fetch()
        result = await slot.reset(seed=job.seed, task=recorder.task, episode_id=episode_id)
    except REFUSALS as error:
        error.add_note(f"Refused at the start of episode {episode_id} ({job.describe()}).")
        raise
    except BaseException as error:
        if not _is_failure(error):
            raise
        return recorder.failed(error)
    recorder.begin(result)
    while not result.done:
        decision = await _decide(agent, result, attempt)
        kept = Decision(_copy_action(decision.action), decision.extra)  # agents may reuse a buffer
        try:
            after = await slot.step(decision.action)
        except REFUSALS as error:
            error.add_note(f"Refused {_where(result, attempt)}.")
            raise
        except BaseException as error:
            if not _is_failure(error):
                raise
            return recorder.failed(error)
        recorder.add(result, kept, after)
        result = after
        if max_steps is not None and result.step_index >= max_steps and not result.done:
            return recorder.truncate()
        # Agent and environment may never await anything, so let the other episodes run.
        await asyncio.sleep(0)
    return recorder.end(result.end)


def _copy_action(action: Any) -> Any:
    try:
        return snapshot(action)
    except BadReturnError:
        return action  # it cannot be copied, so it is not a buffer that is reused


async def _decide(agent: Agent, result: StepResult[Any], attempt: EpisodeAttempt) -> Decision:
    try:
        answer = agent(result)
        if isinstance(answer, Awaitable):
            answer = await answer
    except asyncio.CancelledError as error:
        if _is_cancelled():
            raise
        failure = RuntimeError("something that the agent awaits was cancelled")
        failure.add_note(f"Raised by the agent {_where(result, attempt)}.")
        raise failure from error
    except Exception as error:
        error.add_note(f"Raised by the agent {_where(result, attempt)}.")
        raise
    return answer if type(answer) is Decision else Decision(answer)


def _where(result: StepResult[Any], attempt: EpisodeAttempt) -> str:
    step = result.step_index + 1
    return f"in step {step} of episode {attempt.episode_id} ({attempt.job.describe()})"


def _is_failure(error: BaseException) -> bool:
    """Whether an error of a call is about the environment rather than a bug of the caller's."""
    if isinstance(error, asyncio.CancelledError):
        return not _is_cancelled()
    return isinstance(error, Exception)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


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
class EpisodeRecorder:
    """Records one episode while it is played.

    Attributes:
        task: Its task, once that is known.
    """

    def __init__(self, attempt: EpisodeAttempt) -> None:
        task = attempt.job.task
        self.task = None if isinstance(task, RemoteTask) else task
        self._attempt = attempt
        self._agents = attempt.agents
        self._began_s = time.perf_counter()
        self._steps: list[EpisodeStep] = []
        self._first: StepResult[Any] | None = None
        self._last: StepResult[Any] | None = None
        self._total: Any = None if self._agents is None else {}
        self._parts: dict[str, Any] = {}
        self._metrics: dict[str, Any] = {}

    def begin(self, result: StepResult[Any]) -> None:
        """Record the first result."""
        self._first = self._last = result

    def add(self, seen: StepResult[Any], decision: Decision, after: StepResult[Any]) -> None:
        """Record one step: the result acted on, the action, and the new result."""
        self._last = after
        step = EpisodeStep(
            observation=seen.observation,
            action=decision.action,
            reward=after.reward,
            terminated=after.terminated,
            truncated=after.truncated,
            info=after.info,
            action_mask=self._mask(seen),
            events=tuple(after.events),
            extra=decision.extra,
            step_index=after.step_index,
        )
        self._steps.append(step)
        if self._agents is None:
            if after.reward is not None:
                self._total = (self._total or 0.0) + after.reward
            _add(self._parts, after.reward_parts)
            self._metrics = after.metrics or self._metrics
        else:
            self._add_agents(after)

    def _mask(self, seen: StepResult[Any]) -> Any:
        if self._agents is None:
            return seen.info.get("action_mask")
        masks = {need.agent_id: need.action_mask for need in seen.needs}
        return masks if any(mask is not None for mask in masks.values()) else None

    def _add_agents(self, after: StepResult[Any]) -> None:
        for agent, reward in after.reward.items():
            self._total.setdefault(agent, None)
            if reward is not None:
                self._total[agent] = (self._total[agent] or 0.0) + reward
        for agent, info in after.info.items():
            if info.get("reward_parts"):
                _add(self._parts.setdefault(agent, {}), info["reward_parts"])
            if info.get("metrics"):
                self._metrics[agent] = info["metrics"]

    def truncate(self) -> Episode:
        """Return the episode, truncated at the current step."""
        step = self._steps[-1]
        if self._agents is None:
            step.truncated = True
        else:
            step.truncated = {agent: not over for agent, over in step.terminated.items()}
        return self.end(EpisodeEnd("truncated"))

    def failed(self, error: BaseException) -> Episode:
        """Return the episode, ended by an error that a call raised."""
        return self.end(failure_end(error))

    def end(self, end: EpisodeEnd | None) -> Episode:
        """Return the episode."""
        assert end is not None
        first, last, job = self._first, self._last, self._attempt.job
        if not end.valid:
            self._total = (
                math.nan if self._agents is None else dict.fromkeys(self._agents, math.nan)
            )
            self._parts = {}
        return Episode(
            task=None if self.task is None else self.task.public(),
            task_id=self.task.id if self.task is not None else first.task_id if first else None,
            seed=job.seed,
            group=job.group,
            member=job.member,
            episode_id=self._attempt.episode_id,
            steps=self._steps,
            final_observation=None if last is None else last.observation,
            reward=self._total,
            reward_parts=self._parts,
            metrics=self._metrics,
            info={} if first is None else first.info,
            end=end,
            length=0 if last is None else last.step_index,
            duration_s=time.perf_counter() - self._began_s,
            attempts=self._attempt.number,
        )


def _add(sums: dict[str, float], parts: dict[str, float]) -> None:
    for part, value in parts.items():
        sums[part] = sums.get(part, 0.0) + value

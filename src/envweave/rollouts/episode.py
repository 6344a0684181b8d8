"""Plays one episode, the agent and the environment in turn, and records it."""

from __future__ import annotations

import asyncio
import copy
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, final, runtime_checkable

from envweave.errors import BadReturnError, ForkError, OptionError, format_error
from envweave.recording.recorder import as_start, failure_end
from envweave.rollouts.logged_slot import SlotSnapshot
from envweave.rollouts.pool import REFUSALS
from envweave.rollouts.schedule import EpisodeJob, RemoteTask
from envweave.session.snapshot import snapshot
from envweave.types import (
    Episode,
    EpisodeEnd,
    EpisodeParent,
    EpisodeStep,
    ResetResult,
    StepResult,
    Task,
)

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
class EpisodeFork:
    """Where an episode of a rollout is forked, and what the others continue with.

    Attributes:
        point: The state of the environment.
        env: The environment that the agent's view was around.
        view: What the agent played in: `env`, or a view of it.
        agent: The agent.
        result: The last result that it got.
        task: The task, which may have been fetched.
        actions: The actions so far.
    """

    point: SlotSnapshot
    env: Any
    view: Any
    agent: Agent
    result: StepResult[Any]
    task: Task | None
    actions: list[Any]

    @property
    def parent(self) -> EpisodeParent:
        """The episode that is forked, and its step."""
        return self.point.parent

    def copied(self, env: Any, episode_id: str, described: Any) -> EpisodeFork:
        """Return this with copies of the view and the agent, for another environment.

        What they refer to of `env` and `result` is that of the copy; they share `described`.

        Raises:
            OptionError: They cannot be copied.
        """
        if getattr(self.agent, "__closure__", None):
            raise OptionError(
                f"branch_at cannot copy the agent {self.agent!r}, a function with variables of its "
                "own. Have begin() return an object with __call__, which deepcopy can copy."
            )
        start = as_start(self.result, self.point.params.get("seed"))
        start.episode_id = episode_id
        memo = {id(self.env): env, id(self.result): start, id(described): described}
        try:
            view, agent = copy.deepcopy((self.view, self.agent), memo)
        except Exception as error:
            raise OptionError(
                f"branch_at cannot copy the agent that begin() returned: {format_error(error)}. "
                "Give its class a __deepcopy__."
            ) from error
        return replace(self, env=env, view=view, agent=agent, result=start)

    async def begin(self, env: Any, view: Any, episode_id: str) -> StepResult[Any]:
        """Return the first result of an episode that continues from here."""
        start: ResetResult[Any] = await env.restore(self.point, episode_id)
        return start if view is env else self.result


@dataclass(frozen=True, slots=True)
class EpisodeAttempt:
    """One attempt at a job.

    Attributes:
        job: The episode to play.
        episode_id: Its id.
        number: The number of the attempt, from 1.
        agents: Every agent that may ever take part; `None` for one unnamed agent.
        max_steps: Truncate it after this many steps.
        env_id: The ID of the environment.
        branch_at: The step to stop at, to be forked.
        fork: Where it continues another episode from.
    """

    job: EpisodeJob
    episode_id: str
    number: int
    agents: tuple[str, ...] | None
    max_steps: int | None
    env_id: str | None = None
    branch_at: int | None = None
    fork: EpisodeFork | None = None


class EpisodePlayer(Protocol):
    """What `play` needs of an environment: a `PoolSlot`, or one that records too."""

    async def reset(self, **params: Any) -> StepResult[Any]:
        """Begin an episode."""
        ...

    async def step(self, action: Any) -> StepResult[Any]:
        """Take one step."""
        ...


async def play(
    slot: EpisodePlayer, agent: Agent, attempt: EpisodeAttempt, env: Any
) -> Episode | EpisodeFork:
    """Play one episode to its end, or to `max_steps`. A failure is an end too.

    Args:
        slot: What the agent plays in: `env`, or a view of it.
        agent: Chooses the actions.
        attempt: What to play.
        env: A `LoggedSlot`, or one that records too, if the attempt is to be forked or is a fork.

    Returns:
        The episode; or, at the step `attempt.branch_at`, from where others continue.

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
        if attempt.fork is None:
            result = await slot.reset(seed=job.seed, task=recorder.task, episode_id=episode_id)
        else:
            result = await attempt.fork.begin(env, slot, episode_id)
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
        if attempt.branch_at is not None and result.step_index >= attempt.branch_at:
            if result.done:
                break
            try:
                point = await env.snapshot()
            except ForkError as error:
                return recorder.failed(error)
            return EpisodeFork(point, env, slot, agent, result, recorder.task, recorder.actions)
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

    @property
    def actions(self) -> list[Any]:
        """The actions so far."""
        return [step.action for step in self._steps]

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
        fork = self._attempt.fork
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
            env_id=self._attempt.env_id,
            parent=None if fork is None else fork.parent,
            inherited=[] if fork is None else list(fork.actions),
        )


def _add(sums: dict[str, float], parts: dict[str, float]) -> None:
    for part, value in parts.items():
        sums[part] = sums.get(part, 0.0) + value

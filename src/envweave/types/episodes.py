"""A complete run to train on: `Episode` and its steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from envweave.types.requests import EpisodeEnd, ToolResult
from envweave.types.results import Event
from envweave.types.tasks import Task


@dataclass(slots=True, kw_only=True)
class EpisodeStep:
    """One action of an episode: the observation, the action and its result.

    With several agents, per-agent values are dicts keyed by agent id, as in a `StepResult`.

    Attributes:
        observation: The observation that the action was chosen from.
        action: The action, as the agent gave it; a `ToolResult` where it answered a tool call.
        reward: What the action earned; `None` means not scored, NaN that the step failed.
        terminated: Whether the task ended the episode here.
        truncated: Whether a limit ended the episode here.
        info: The info of the result.
        action_mask: Which actions were legal, if the environment gave a mask.
        events: What happened in the step, in order: logs, tool calls, agents that left.
        extra: Data that the agent attached, such as log-probabilities or tokens.
        step_index: Which step of the episode it was, from 1. The answer to a tool call does
            not count, and has the number of the step before it.
    """

    observation: Any
    action: Any
    reward: Any
    terminated: Any
    truncated: Any
    info: dict[str, Any]
    action_mask: Any = None
    events: tuple[Event, ...] = ()
    extra: Any = None
    step_index: int = 0

    @property
    def is_answer(self) -> bool:
        """Whether it answered a tool call, which does not count as a step of the episode."""
        return isinstance(self.action, ToolResult)


@dataclass(slots=True, kw_only=True)
class Episode:
    """A finished run.

    Attributes:
        task: What it was about, if anything; without its private part.
        task_id: The id of that task.
        seed: The seed its reset was given, if the environment takes one.
        group: Which group it belongs to, from 0. A group shares its task.
        member: Which one of its group it is, from 0.
        episode_id: Names this run.
        steps: What was done, in order, with the answers to tool calls.
        final_observation: The last observation; `None` if there was none.
        reward: The sum of all rewards, by agent where there are several. `None` if nothing was
            scored, NaN if the episode is not usable.
        reward_parts: The sums of the parts that the rewards were made of, by agent where there
            are several; empty if none were named.
        metrics: The figures of the last step that had any, by agent where there are several.
        info: The info of the first observation.
        end: What ended it.
        length: How many steps it took, not counting answers to tool calls.
        duration_s: How long it took, including its reset.
        attempts: How many runs it took to get this one: more than 1 if faults were retried.
    """

    task: Task | None = None
    task_id: str | None = None
    seed: int | None = None
    group: int = 0
    member: int = 0
    episode_id: str | None = None
    steps: list[EpisodeStep] = field(default_factory=list)
    final_observation: Any = None
    reward: Any = None
    reward_parts: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    end: EpisodeEnd
    length: int = 0
    duration_s: float = 0.0
    attempts: int = 1

    @property
    def usable(self) -> bool:
        """Whether it may be trained on: nothing failed, or the agent caused the failure."""
        return self.end.valid

    @property
    def observations(self) -> list[Any]:
        """All observations in order: one more than there are steps."""
        return [*(step.observation for step in self.steps), self.final_observation]

"""A run from start to end, to learn from: `Episode` and its steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from envweave.types.requests import EpisodeEnd, ToolResult
from envweave.types.results import Event
from envweave.types.tasks import Task


@dataclass(slots=True, kw_only=True)
class EpisodeStep:
    """One action of an episode: what was seen, what was done, what came of it.

    With several agents, what has a value for each is a dict keyed by agent id, as in a
    `StepResult`.

    Attributes:
        observation: What the action was chosen from.
        action: The action, as the agent gave it; a `ToolResult` where it answered a tool call.
        reward: What the action earned; `None` means not scored, NaN that the step failed.
        terminated: Whether the task ended the episode here.
        truncated: Whether a limit ended the episode here.
        info: What the environment said with the result.
        action_mask: Which actions were legal, if the environment said so.
        events: What happened in the step, in order: logs, tool calls, agents that left.
        extra: What the agent wanted kept, such as log-probabilities or tokens.
        step_index: Which step of the episode it was, from 1. The answer to a tool call is no
            step, and has the number of the step before it.
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
        """Whether it answered a tool call, which is no step of the episode."""
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
        final_observation: The last thing the environment showed; `None` if nothing was.
        reward: The sum of all rewards, by agent where there are several. `None` if nothing was
            scored, NaN if the episode is not usable.
        reward_parts: The sums of the parts that the rewards were made of, by agent where there
            are several; empty if none were named.
        metrics: The figures of the last step that had any, by agent where there are several.
        info: What the environment said with the first observation.
        end: What ended it.
        length: How many steps it took; answers to tool calls are none.
        duration_s: How long it took, with its reset.
        attempts: How many runs it took to get this one: more than 1 where faults were replaced.
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
        """Whether it may be learnt from: nothing failed, or the agent caused it."""
        return self.end.valid

    @property
    def observations(self) -> list[Any]:
        """Everything that was seen, in order: one more than there are steps."""
        return [*(step.observation for step in self.steps), self.final_observation]

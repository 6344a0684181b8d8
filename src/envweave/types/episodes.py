"""Episodes: finished runs, as `rollout` plays them and `load` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from envweave.errors import ForkError, OptionError
from envweave.types.messages import messages_of, plain_of
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


@dataclass(frozen=True, slots=True)
class EpisodeParent:
    """Where an episode was forked from.

    Attributes:
        episode: The id of the other episode.
        step: How many of its steps they share.
    """

    episode: str
    step: int


class EpisodeOrigin(Protocol):
    """What a loaded episode came from, and can be forked with."""

    def fork(
        self,
        step: int,
        n: int,
        *,
        backend: str | None,
        env: Any,
        kwargs: Mapping[str, Any] | None,
    ) -> list[Any]:
        """Return environments that continue from a step. See `EpisodePoint.fork`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodePoint:
    """A point of an episode: what leads there from the start.

    Attributes:
        episode: The episode.
        step: How many steps it had taken.
        seed: The seed of its reset.
        task: Its task, or only the id where nothing else is known.
        options: The options of its reset.
        inherited: The actions of its parents, if it was forked.
        actions: Its own actions up to there, with the answers to tool calls.
        observations: What was seen: of the start, and after each action.
        digests: Their digests, if the episode was loaded from a recording.
    """

    episode: Episode
    step: int
    seed: int | None
    task: Task | str | None
    options: Mapping[str, Any] | None
    inherited: list[Any]
    actions: list[Any]
    observations: list[Any]
    digests: list[str]

    def fork(
        self,
        n: int = 1,
        *,
        backend: str | None = None,
        env: Any = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Return `n` environments (`Env`) that continue from here, each by itself.

        The recorded environment is made again, and the episode's actions are taken again in it;
        every result is compared with the recorded one. Close each of the environments. They can be
        forked in turn.

        Args:
            n: How many.
            backend: Where they run; by default where the episode did.
            env: Another ID, class or function to make them of, such as where the recording does
                not say how; by default what was recorded.
            kwargs: Keywords for the constructor, which replace recorded ones: those that look like
                secrets are not in the recording.

        Raises:
            ForkError: The episode was not loaded from a recording, or the same state is not
                reached; the message has the first difference. Nothing is left open.
            EnvWeaveError: The environment cannot be made.
        """
        origin = self.episode.origin
        if origin is None:
            raise ForkError(
                f"Episode {self.episode.episode_id!r} cannot be forked: it was not loaded from a "
                "recording here. Record it with record=, and take it from envweave.load()."
            )
        return origin.fork(self.step, n, backend=backend, env=env, kwargs=kwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A point of a running episode, to which `Env.restore` and `VectorEnv.restore` return.

    It can be restored many times, in the environment that it was taken of and in others that were
    made in the same way in this process.

    Attributes:
        env_id: The ID or name of the environment.
        episode_id: The episode.
        step: How many steps it had taken.
        state: What the place where the environment runs kept of it.
    """

    env_id: str
    episode_id: str | None
    step: int
    state: Any = field(repr=False)


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
        restored: How often it was lost and brought back, in a pool that is `durable`.
        env_id: The ID of the environment.
        options: The options that its reset was given.
        parent: Where it was forked from, if it was.
        inherited: The actions of its parents up to there.
        digests: Of each observation, in order, if it was loaded from a recording.
        definition: How to make its environment again, if it was loaded from a recording that
            knows.
        origin: What forks it, if it was loaded from a recording in this process.
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
    restored: int = 0
    env_id: str | None = None
    options: Mapping[str, Any] | None = None
    parent: EpisodeParent | None = None
    inherited: list[Any] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    definition: Mapping[str, Any] | None = None
    origin: EpisodeOrigin | None = field(default=None, repr=False, compare=False)

    @property
    def usable(self) -> bool:
        """Whether it may be trained on: nothing failed, or the agent caused the failure."""
        return self.end.valid

    @property
    def observations(self) -> list[Any]:
        """All observations in order: one more than there are steps."""
        return [*(step.observation for step in self.steps), self.final_observation]

    def at(self, step: int) -> EpisodePoint:
        """Return the point after `step` steps: 0 is the start.

        Raises:
            OptionError: The episode has no such step; one that was forked begins at its fork.
        """
        first = 0 if self.parent is None else self.parent.step
        if not isinstance(step, int) or isinstance(step, bool) or not first <= step <= self.length:
            forked = "" if self.parent is None else f" It was forked from {self.parent.episode!r}."
            raise OptionError(
                f"step must be from {first} to {self.length}, the length of episode "
                f"{self.episode_id!r}, got {step!r}.{forked}"
            )
        count = sum(one.step_index <= step for one in self.steps)
        return EpisodePoint(
            episode=self,
            step=step,
            seed=self.seed,
            task=self.task if self.task is not None else self.task_id,
            options=self.options,
            inherited=list(self.inherited),
            actions=[one.action for one in self.steps[:count]],
            observations=self.observations[: count + 1],
            digests=self.digests[: count + 1],
        )

    def messages(self) -> list[dict[str, Any]]:
        """Return the episode as a chat: messages with `role` and `content`.

        An observation is the user's message and an action the assistant's. Of an environment whose
        actions are code, the assistant's message is the code and its output is a `tool` message; a
        tool call of the environment is the assistant's too, with its answer as `tool`. If the
        observations are a conversation themselves (`ChatWrapper`), the messages are those of the
        last one.
        """
        return messages_of(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the episode as data for `json.dumps`.

        Arrays become nested lists, bytes base64, objects dicts of their fields; NaN and infinities
        become `None`, so look at `usable` before `reward`. A recording keeps values exactly.
        """
        shown = {name: getattr(self, name) for name in _SHOWN}
        steps = [
            {name: getattr(step, name) for name in EpisodeStep.__slots__} for step in self.steps
        ]
        plain = plain_of({**shown, "usable": self.usable, "steps": steps})
        return {name: plain[name] for name in (*_SHOWN, "usable", "steps")}


_SHOWN = (
    "episode_id",
    "env_id",
    "task_id",
    "task",
    "seed",
    "options",
    "group",
    "member",
    "attempts",
    "parent",
    "reward",
    "reward_parts",
    "metrics",
    "info",
    "end",
    "length",
    "duration_s",
    "final_observation",
)

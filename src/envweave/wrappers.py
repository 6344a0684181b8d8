"""Wrappers: change actions, timing or limits of an environment from the outside."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Callable
from typing import Any, final

from envweave.codec import Spec
from envweave.environment import Environment, Interface
from envweave.environment.interface import by_agent, for_one, read_spec
from envweave.environment.outcome import read_agents_reset, read_agents_step, read_reset, read_step
from envweave.errors import OptionError
from envweave.types import (
    EpisodeEnd,
    LogEvent,
    Observation,
    ResetResult,
    StepResult,
    ToolCallRequest,
    ToolResult,
)


class Wrapper(Environment):
    """Stands around another environment, sync or async, for one agent or many.

    Override `before_step`, `after_reset`, `after_step` or `after_answer`; they are plain
    functions, whatever the colour of the environment inside.
    """

    def __init__(self, environment: Environment) -> None:
        self.environment = environment = environment.take_apart()
        self.deterministic = environment.deterministic
        self.tasks = environment.tasks
        self._interface = environment.describe()
        several = self._interface.possible_agents is not None
        self._read_reset = read_agents_reset if several else read_reset
        self._read_step = read_agents_step if several else read_step

    @property
    def transform(self) -> Callable[[Observation], Observation] | None:
        """The transform of the environment inside."""
        return self.environment.transform

    @transform.setter
    def transform(self, transform: Callable[[Observation], Observation] | None) -> None:
        self.environment.transform = transform

    def before_step(self, action: Any) -> Any:
        """Return the action that the environment inside is given."""
        return action

    def after_reset(self, result: ResetResult[Any]) -> ResetResult[Any]:
        """Return the start that is shown."""
        return result

    def after_step(self, result: StepResult[Any]) -> StepResult[Any]:
        """Return the outcome that is shown."""
        return result

    def after_answer(self, result: StepResult[Any]) -> StepResult[Any]:
        """Return the outcome that is shown after the answer to a tool call."""
        return result

    def reset(self, **kwargs: Any) -> Any:
        """Begin an episode inside."""
        outcome = self.environment.reset(**kwargs)
        return self._then("reset", outcome, lambda raw: self.after_reset(self._read_reset(raw)))

    def step(self, action: Any) -> Any:
        """Step inside."""
        outcome = self.environment.step(self.before_step(action))
        return self._then("step", outcome, lambda raw: self.after_step(self._read_step(raw)))

    def answer(self, result: ToolResult) -> Any:
        """Pass the answer to a tool call on."""
        outcome = self.environment.answer(result)
        return self._then("answer", outcome, lambda raw: self.after_answer(self._read_step(raw)))

    def _then(self, method: str, outcome: Any, read: Callable[[Any], Any]) -> Any:
        if method in self._interface.async_methods:
            return _later(outcome, read)
        return read(outcome)

    @property
    def state(self) -> Any:
        """The state of the environment inside."""
        return self.environment.state

    def close(self) -> Any:
        """Close the environment inside."""
        return self.environment.close()

    def connect(self, outbox: list[LogEvent | ToolCallRequest | EpisodeEnd]) -> None:
        """Connect this and the environment inside."""
        super().connect(outbox)
        self.environment.connect(outbox)

    def hold(self) -> Callable[[], None]:
        """Keep what environments like the one inside share."""
        return self.environment.hold()

    def describe(self) -> Interface:
        """Describe the environment inside, with the specs that this wrapper sets."""
        return dataclasses.replace(
            self._interface,
            action_spec=self._set("action_spec"),
            observation_spec=self._set("observation_spec"),
        )

    def _set(self, name: str) -> Spec:
        """The spec that this wrapper sets, or that of the environment inside."""
        given, agents = getattr(self, name), self._interface.possible_agents
        if given is None:
            inside: Spec = getattr(self._interface, name)
            return inside
        read = read_spec(given, f"{type(self).__name__}.{name}")
        return for_one(read, name) if agents is None else by_agent(read, agents, name)

    @property
    def possible_agents(self) -> tuple[str, ...]:
        """All that may ever take part inside; empty for one agent without a name."""
        return self._interface.possible_agents or ()

    def to_act(self) -> Any:
        """Name who may act now, as the environment inside does."""
        return self.environment.to_act()  # type: ignore[attr-defined] # asked only of several


@final
class TimeLimit(Wrapper):
    """Truncates an episode after `max_steps` steps."""

    def __init__(self, environment: Environment, max_steps: int) -> None:
        super().__init__(environment)
        if max_steps < 1:
            raise OptionError(f"max_steps={max_steps!r} leaves no room for a step; use 1 or more.")
        self.max_steps = max_steps
        self._taken = 0

    def after_reset(self, result: ResetResult[Any]) -> ResetResult[Any]:
        """Start to count."""
        self._taken = 0
        return result

    def after_step(self, result: StepResult[Any]) -> StepResult[Any]:
        """Set `truncated` on the last step that is allowed."""
        self._taken += 1
        if any(isinstance(said, ToolCallRequest) for said in self._outbox or ()):
            return result  # the step is not over before its tool call is answered
        return self.after_answer(result)

    def after_answer(self, result: StepResult[Any]) -> StepResult[Any]:
        """Set `truncated` once the last step's tool calls are answered."""
        if self._taken >= self.max_steps:
            if isinstance(result.truncated, dict):
                result.truncated = {**result.truncated, "__all__": True}
            else:
                result.truncated = True
        return result


@final
class EpisodeStatistics(Wrapper):
    """Adds `info["episode"]` to the last result: `return`, `length` and `duration_s`.

    With several agents `return` is a dict keyed by agent id.
    """

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._return: Any = 0.0
        self._length = 0
        self._began_s = 0.0
        self._living: set[str] = set()

    def after_reset(self, result: ResetResult[Any]) -> ResetResult[Any]:
        """Start to count."""
        several = self._interface.possible_agents is not None
        self._return = {} if several else 0.0
        self._living = set(result.observation) if several else set()
        self._length, self._began_s = 0, time.perf_counter()
        return result

    def after_step(self, result: StepResult[Any]) -> StepResult[Any]:
        """Count the step and its reward."""
        self._length += 1
        return self.after_answer(result)

    def after_answer(self, result: StepResult[Any]) -> StepResult[Any]:
        """Count the reward; at the end, tell the sums."""
        if isinstance(result.reward, dict):
            for agent, reward in result.reward.items():
                self._return[agent] = self._return.get(agent, 0.0) + (reward or 0.0)
        else:
            self._return += result.reward or 0.0
        if self._ends(result):
            statistics = {
                "return": self._return,
                "length": self._length,
                "duration_s": time.perf_counter() - self._began_s,
            }
            result.info = {**result.info, "episode": statistics}
        return result

    def _ends(self, result: StepResult[Any]) -> bool:
        if result.end is not None:
            return True
        if any(isinstance(event, EpisodeEnd) for event in self._outbox or ()):
            return True
        terminated, truncated = result.terminated, result.truncated
        if not isinstance(terminated, dict) or not isinstance(truncated, dict):
            return bool(terminated or truncated)
        left = {agent for flags in (terminated, truncated) for agent in flags if flags[agent]}
        self._living = (self._living | set(result.observation)) - left
        return "__all__" in left or not self._living


async def _later(outcome: Awaitable[Any], read: Callable[[Any], Any]) -> Any:
    return read(await outcome)

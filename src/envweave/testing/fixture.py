"""The environment under test, and playing its episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from envweave.api import Env
from envweave.errors import SeedError, SpecError
from envweave.testing.check_result import NotApplicable, require
from envweave.testing.policy import RandomPolicy, take_step
from envweave.types import StepResult, ToolResult


@dataclass(frozen=True)
class PlayedEpisode:
    """One episode: the actions, and every result from the reset on."""

    actions: list[Any]
    results: list[StepResult[Any]]

    @property
    def last(self) -> StepResult[Any]:
        """The result of the last step, or of the reset."""
        return self.results[-1]

    @property
    def steps(self) -> list[StepResult[Any]]:
        """The results of the steps, without the reset."""
        return self.results[1:]


@dataclass(frozen=True)
class Subject:
    """An environment under test.

    Attributes:
        open: Makes a fresh environment through `make`; takes `autoreset`.
        episode: Returns actions that lead to an end; default: random actions.
        seed: Random seed.
        deterministic: Whether the same seed must give the same episode.
        max_steps: Maximum number of steps to wait for an end.
    """

    open: Callable[..., Env]
    episode: Callable[[], Iterable[Any]] | None = None
    seed: int = 0
    deterministic: bool = True
    max_steps: int = 1000
    _cache: dict[str, Any] = field(default_factory=dict, repr=False)

    @contextmanager
    def opened(self, *, autoreset: bool = False) -> Iterator[Env]:
        """Open an environment, and close it whatever happens."""
        env = self.open(autoreset=autoreset)
        try:
            yield env
        finally:
            env.close()

    @property
    def takes_seed(self) -> bool:
        """Whether the environment takes a seed."""
        if "takes_seed" not in self._cache:
            with self.opened() as env:
                try:
                    env.reset(seed=self.seed)
                except SeedError:
                    self._cache["takes_seed"] = False
                else:
                    self._cache["takes_seed"] = True
        return bool(self._cache["takes_seed"])

    @property
    def has_agents(self) -> bool:
        """Whether it has several agents."""
        with self.opened() as env:
            return env.possible_agents is not None

    def start(self, env: Env) -> StepResult[Any]:
        """Reset, with the seed if the environment takes one."""
        return env.reset(seed=self.seed) if self.takes_seed else env.reset()

    def policy(self, env: Env) -> Callable[[StepResult[Any]], Any]:
        """Return a policy: the actions of the given episode, or random ones."""
        if self.episode is None:
            return RandomPolicy(env.action_spec, self.seed)
        actions = iter(self.episode())

        def scripted(result: StepResult[Any]) -> Any:
            if result.tool_calls:
                return ToolResult(result.tool_calls[0].call_id)
            action = next(actions, None)
            if action is None:
                raise NotApplicable("The given actions ran out before the episode ended.")
            return action

        return scripted

    def play(self, env: Env, *, until_end: bool = False) -> PlayedEpisode:
        """Play one episode, to its end or `max_steps`.

        Raises:
            NotApplicable: With `until_end`, the episode did not end in time.
        """
        result = self.start(env)
        choose = self.policy(env)
        actions: list[Any] = []
        results: list[StepResult[Any]] = [result]
        while not result.done and len(actions) < self.max_steps:
            action, result = self.act(env, choose, result)
            actions.append(action)
            results.append(result)
        if until_end and not result.done:
            raise NotApplicable(f"No episode ended within {self.max_steps} steps.")
        return PlayedEpisode(actions, results)

    def act(
        self, env: Env, choose: Callable[[StepResult[Any]], Any], result: StepResult[Any]
    ) -> tuple[Any, StepResult[Any]]:
        """Take one step; if the environment refuses an action, choose another.

        Raises:
            ActionError: It refused every action, or one of the given episode.
        """
        if self.episode is None:
            return take_step(env, choose, result)
        action = choose(result)
        return action, env.step(action)

    def first_action(self, env: Env, result: StepResult[Any]) -> Any:
        """Return an action that the environment accepts now."""
        return self.policy(env)(result)

    def any_action(self, env: Env) -> Any:
        """Return a well-formed action, for use when no action is allowed."""
        if self.episode is not None:
            return next(iter(self.episode()))
        try:
            return env.action_spec.sample(np.random.default_rng(self.seed))
        except SpecError as error:
            raise NotApplicable(str(error)) from None

    def same_episode(self, left: PlayedEpisode, right: PlayedEpisode, what: str) -> None:
        """Fail unless two episodes are the same, step by step."""
        from envweave.types.results import same

        for index, (one, other) in enumerate(zip(left.results, right.results, strict=False)):
            for name in ("observation", "reward", "terminated", "truncated"):
                first, second = getattr(one, name), getattr(other, name)
                require(
                    same(first, second), f"{what}: {name} of step {index}: {first!r} != {second!r}"
                )
        lengths = len(left.results), len(right.results)
        require(lengths[0] == lengths[1], f"{what}: {lengths[0]} results versus {lengths[1]}.")

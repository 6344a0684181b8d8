"""An `Env` as a `gymnasium.Env`. Imports Gymnasium."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar, final

import gymnasium
from gymnasium.envs.registration import EnvSpec

from envweave.adapters.export import (
    check_result,
    decode_action,
    encode_observation,
    number_of_actions,
    to_reward,
    with_mask,
)
from envweave.codec.flat_spaces import flatten_actions, flatten_observations
from envweave.codec.gymnasium_spaces import bridge
from envweave.errors import DefinitionError, OptionError


@final
class AsGymnasium(gymnasium.Env[Any, Any]):
    """An `Env` as a `gymnasium.Env`. See `to_gymnasium`."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 4}  # type: ignore[misc] # theirs is an instance variable

    def __init__(self, env: Any, render_mode: str | None, *, flatten: bool) -> None:
        if env.possible_agents is not None:
            raise DefinitionError(
                f"{env.id!r} has several agents, but a gymnasium.Env has one. Use to_pettingzoo()."
            )
        if render_mode not in (None, "ansi"):
            raise OptionError(
                f"render_mode must be 'ansi' or None, got {render_mode!r}. Observations are shown "
                "as text."
            )
        self._env = env
        self._actions = bridge(env.action_spec, "action")
        self._observations = bridge(env.observation_spec, "observation")
        if flatten:
            self._actions = flatten_actions(self._actions, "action")
            self._observations = flatten_observations(self._observations, "observation")
        self.action_space = self._actions.space
        self.observation_space = self._observations.space
        self._number_of_actions = number_of_actions(self.action_space)
        self.render_mode = render_mode
        self._shown: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        result = self._env.reset(seed=seed, options=options or None)
        check_result(result, self._env.id)
        return self._show(result.observation), self._tell(result.info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act once."""
        result = self._env.step(decode_action(self._actions.decode, action, "action"))
        check_result(result, self._env.id)
        return (
            self._show(result.observation),
            to_reward(result.reward),
            result.terminated,
            result.truncated,
            self._tell(result.info),
        )

    def _show(self, observation: Any) -> Any:
        self._shown = observation
        return encode_observation(self._observations.encode, observation, "observation")

    def _tell(self, info: dict[str, Any]) -> dict[str, Any]:
        return with_mask(info, info.get("action_mask"), self._number_of_actions)

    def render(self) -> str | None:
        """Return the last observation as text; `None` without a render mode."""
        return None if self.render_mode is None else repr(self._shown)

    def close(self) -> None:
        """Close the environment. May be called twice."""
        self._env.close()

    def __repr__(self) -> str:
        return f"AsGymnasium({self._env!r})"


def spec_of(env: Any, make_again: Callable[..., Any]) -> EnvSpec:
    """Return Gymnasium's spec of an environment, under a name that Gymnasium allows."""
    name = re.sub(r"[^\w.-]+", "_", env.id.removeprefix("local://"))
    return EnvSpec(f"envweave/{name}", make_again, nondeterministic=not env.deterministic)

"""Adapters from and to PettingZoo environments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, final

from envweave.adapters.export import open_env
from envweave.environment import Interface, MultiAgentEnvironment
from envweave.errors import BadReturnError, DefinitionError, MissingExtraError, OptionError

if TYPE_CHECKING:
    import pettingzoo

Infos = dict[str, dict[str, Any]]
Five = tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any], Infos]


def pettingzoo_module() -> Any:
    """Import and return PettingZoo.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import pettingzoo
    except ImportError:
        raise MissingExtraError.for_extra("PettingZoo is not installed.", "pettingzoo") from None
    return pettingzoo


def is_foreign(candidate: Any) -> bool:
    """Whether this is a PettingZoo environment, parallel or AEC."""
    try:
        from pettingzoo import AECEnv, ParallelEnv
    except ImportError:
        return False
    return isinstance(candidate, AECEnv | ParallelEnv)


def from_pettingzoo(env: Any) -> MultiAgentEnvironment:
    """Return a PettingZoo environment, parallel or AEC, as a `MultiAgentEnvironment`.

    In a parallel environment all living agents act at once; in an AEC environment the agent that
    PettingZoo selects. The empty last action that PettingZoo expects of an ended agent is supplied
    here: the caller sees the agent leave. An `action_mask` in an observation or an info is shown
    in `NeedAction`, and the observation is unchanged.

    Raises:
        MissingExtraError: PettingZoo is not installed.
        DefinitionError: It is not a PettingZoo environment, or has no `possible_agents`.
    """
    pettingzoo = pettingzoo_module()
    if isinstance(env, pettingzoo.ParallelEnv):
        return FromParallel(env)
    if isinstance(env, pettingzoo.AECEnv):
        return FromAEC(env)
    raise DefinitionError(
        f"{type(env).__name__} cannot be adapted: it is neither a ParallelEnv nor an AECEnv."
    )


class _FromPettingZoo(MultiAgentEnvironment):
    """Base of the adapters of both kinds of environment."""

    def __init__(self, env: Any) -> None:
        from gymnasium import spaces

        from envweave.codec.gymnasium_spaces import from_space

        dict_space = spaces.Dict
        self.env = env
        self._name = str(env)
        possible: list[Any] = list(getattr(env, "possible_agents", None) or ())
        if not possible:
            raise DefinitionError(
                f"{self._name} has no possible_agents. List every agent that may ever take part."
            )
        if not all(isinstance(agent, str) for agent in possible):
            raise DefinitionError(
                f"{self._name} has agents whose names are not strings: {possible!r}."
            )
        self.possible_agents = possible
        self.action_spec = {agent: from_space(env.action_space(agent)) for agent in possible}
        shown = {agent: env.observation_space(agent) for agent in possible}
        self.observation_spec = {agent: from_space(space) for agent, space in shown.items()}
        self._masked = {
            agent
            for agent, space in shown.items()
            if isinstance(space, dict_space) and "action_mask" in space.spaces
        }

    def _inform(self, agent: str, observation: Any, infos: Mapping[str, Any]) -> dict[str, Any]:
        info = infos.get(agent) or {}
        if agent in self._masked:
            return {**info, "action_mask": observation["action_mask"]}
        return dict(info)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def describe(self) -> Interface:
        """Describe the environment by its spaces, and by its own name."""
        return dataclasses.replace(super().describe(), name=self._name)


@final
class FromParallel(_FromPettingZoo):
    """A `pettingzoo.ParallelEnv`, as a `MultiAgentEnvironment`."""

    def __init__(self, env: pettingzoo.ParallelEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self._here: frozenset[str] = frozenset()

    def to_act(self) -> list[str]:
        """Return the agents that PettingZoo lists."""
        return list(self.env.agents)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], Infos]:
        """Begin an episode."""
        observations, infos = self.env.reset(seed=seed, options=options)
        self._here = frozenset(self.env.agents)
        observations = self._only(self._here, observations)
        return observations, self._inform_each(observations, infos)

    def step(self, actions: dict[str, Any]) -> Five:
        """Take the actions of all agents."""
        observations, *rest, infos = self.env.step(actions)
        now = frozenset(self.env.agents)
        # Some environments keep reporting agents that left, or add keys that are not agents.
        concerned = self._here | now
        self._here = now
        observations = self._only(concerned, observations)
        rewards, terminated, truncated = (self._only(concerned, one) for one in rest)
        return (
            observations,
            rewards,
            terminated,
            truncated,
            self._inform_each(observations, infos),
        )

    @staticmethod
    def _only(agents: frozenset[str], by_agent: Mapping[str, Any]) -> dict[str, Any]:
        return {agent: one for agent, one in by_agent.items() if agent in agents}

    def _inform_each(self, observations: dict[str, Any], infos: Mapping[str, Any]) -> Infos:
        return {agent: self._inform(agent, one, infos) for agent, one in observations.items()}


@final
class FromAEC(_FromPettingZoo):
    """A `pettingzoo.AECEnv`, as a `MultiAgentEnvironment` by turns.

    After a step only the next agent, new agents and leaving agents get an observation, since
    `observe` may be expensive. An agent leaves when PettingZoo removes it, not before, since
    until then it may still get rewards.
    """

    def __init__(self, env: pettingzoo.AECEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self._living: set[str] = set()

    def to_act(self) -> list[str]:
        """Return the agent that PettingZoo selects."""
        return [self.env.agent_selection]

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], Infos]:
        """Begin an episode."""
        self.env.reset(seed=seed, options=options)
        self._living = set(self.env.agents)
        observations: dict[str, Any] = {}
        infos: Infos = {}
        for agent in self.env.agents:
            self._look(agent, observations, infos)
        return observations, infos

    def step(self, actions: dict[str, Any]) -> Five:
        """Take the action of the selected agent, and remove agents that have ended."""
        env = self.env
        observations: dict[str, Any] = {}
        terminated: dict[str, Any] = {}
        truncated: dict[str, Any] = {}
        infos: Infos = {}
        env.step(actions[env.agent_selection])
        rewards = dict(env.rewards)
        while env.agents and self._has_ended(env.agent_selection):
            agent = env.agent_selection
            if agent in terminated:
                raise BadReturnError(f"{env} keeps selecting {agent!r}, which has ended.")
            self._look(agent, observations, infos)
            terminated[agent] = env.terminations[agent]
            truncated[agent] = env.truncations[agent]
            env.step(None)
            for earner, reward in env.rewards.items():
                rewards[earner] = rewards.get(earner, 0) + reward
        self._living -= terminated.keys()
        newcomers = [agent for agent in env.agents if agent not in self._living]
        self._living.update(newcomers)
        for agent in [*newcomers, *([env.agent_selection] if env.agents else [])]:
            self._look(agent, observations, infos)
        return observations, rewards, terminated, truncated, infos

    def _has_ended(self, agent: str) -> bool:
        return bool(self.env.terminations[agent] or self.env.truncations[agent])

    def _look(self, agent: str, observations: dict[str, Any], infos: Infos) -> None:
        observations[agent] = self.env.observe(agent)
        infos[agent] = self._inform(agent, observations[agent], self.env.infos)


def to_pettingzoo(env: Any, *, api: Literal["parallel", "aec"] = "parallel", **kwargs: Any) -> Any:
    """Return an environment as a `pettingzoo.ParallelEnv` or `AECEnv`.

    PettingZoo's parallel API takes an action of every agent at every step, so it fits
    environments where all living agents act at once; if only some must act, that step raises.
    `api="aec"` fits every environment: if several agents act at once, PettingZoo selects one after
    the other, and the step is taken when all have acted.

    Spaces and values are those of `to_gymnasium`, for each agent. An agent without a reward in a
    step gets 0; one whose reward is not scored yet gets NaN. Options for an environment that takes
    none are ignored, since PettingZoo's callers may always pass some.

    Args:
        env: An ID, an environment object, a class, or an `Env` made without `autoreset`.
        api: Which of PettingZoo's two APIs: `"parallel"` or `"aec"`.
        **kwargs: Passed to `make`.

    Raises:
        MissingExtraError: PettingZoo is not installed.
        SpecError: Gymnasium has no space for a part of an action or observation.
        DefinitionError: It has only one agent.
        OptionError: There is no such API, or a keyword is unknown.

    While stepping, it raises what `Env` raises, and `EnvironmentFailure` for a failed episode,
    which has no reward.
    """
    pettingzoo_module()
    from envweave.adapters.pettingzoo_out import AsAEC, AsParallel

    forms: dict[str, Any] = {"parallel": AsParallel, "aec": AsAEC}
    if api not in forms:
        raise OptionError(f"api must be 'parallel' or 'aec', got {api!r}.")
    opened = open_env(env, kwargs)
    try:
        return forms[api](opened)
    except Exception:
        if opened is not env:
            opened.close()
        raise

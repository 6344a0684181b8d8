"""An `Env` of several agents as PettingZoo's `ParallelEnv` or `AECEnv`.

Imports PettingZoo.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import pettingzoo
from gymnasium import spaces

from envweave.adapters.export import (
    check_result,
    decode_action,
    encode_observation,
    number_of_actions,
    to_reward,
    with_mask,
)
from envweave.codec import AgentsSpec
from envweave.codec.gymnasium_spaces import bridge
from envweave.errors import DefinitionError, OptionError, ResetNeededError
from envweave.types import AgentEnd, StepResult


@dataclass(frozen=True, slots=True)
class AgentTurn:
    """One result in PettingZoo's terms, for the agents before the step and new ones.

    Attributes:
        agents: The agents that take part from now on.
        acting: The agents that must act now.
    """

    observations: dict[str, Any]
    rewards: dict[str, float]
    terminations: dict[str, bool]
    truncations: dict[str, bool]
    infos: dict[str, dict[str, Any]]
    agents: list[str]
    acting: list[str]


@final
class _EnvHolder:
    """The environment inside, with an interface in PettingZoo's terms."""

    def __init__(self, env: Any) -> None:
        if env.possible_agents is None:
            raise DefinitionError(f"{env.id!r} has one unnamed agent. Use to_gymnasium().")
        self._env = env
        self.name: str = env.id
        self.possible_agents: list[str] = list(env.possible_agents)
        given, shown = env.action_spec, env.observation_spec
        assert isinstance(given, AgentsSpec)
        assert isinstance(shown, AgentsSpec)
        self._given = {a: bridge(given[a], f"action[{a!r}]") for a in self.possible_agents}
        self._shown = {a: bridge(shown[a], f"observation[{a!r}]") for a in self.possible_agents}
        self.action_spaces = {agent: one.space for agent, one in self._given.items()}
        self.observation_spaces = {agent: one.space for agent, one in self._shown.items()}
        self._number_of_actions = {
            agent: number_of_actions(space) for agent, space in self.action_spaces.items()
        }
        self._seen: dict[str, Any] = {}
        self._agents: list[str] = []

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> AgentTurn:
        """Begin an episode."""
        try:
            result = self._env.reset(seed=seed, options=options or None)
        except OptionError:  # refused before anything ran: it takes no options
            result = self._env.reset(seed=seed)
        self._seen = {}
        self._agents = []
        return self._make_turn(result)

    def step(self, actions: dict[str, Any]) -> AgentTurn:
        """Take a step, with the decoded actions of exactly the agents that must act."""
        return self._make_turn(self._env.step(actions))

    def decode(self, agent: str, action: Any) -> Any:
        """Return an agent's action in the form that the environment takes."""
        return decode_action(self._given[agent].decode, action, f"action[{agent!r}]")

    def observe(self, agent: str) -> Any:
        """Return the last observation of an agent."""
        name = f"observation[{agent!r}]"
        return encode_observation(self._shown[agent].encode, self._seen[agent], name)

    def _make_turn(self, result: StepResult[Any]) -> AgentTurn:
        check_result(result, self.name)
        ends = {one.agent_id: one for one in result.events if isinstance(one, AgentEnd)}
        needs = {need.agent_id: need for need in result.needs}
        self._seen |= {agent: end.observation for agent, end in ends.items()}
        self._seen |= result.observation
        self._seen |= {agent: need.observation for agent, need in needs.items()}
        before, self._agents = self._agents, [] if result.done else list(self._env.agents)
        # After a reset there are no rewards and flags yet.
        rewards = result.reward or {}
        concerned = before + [agent for agent in self._agents if agent not in before]
        flags = {agent: _flags(agent, result, ends.get(agent)) for agent in concerned}
        return AgentTurn(
            {agent: self.observe(agent) for agent in concerned},
            {agent: to_reward(rewards.get(agent, 0.0)) for agent in concerned},
            {agent: terminated for agent, (terminated, _) in flags.items()},
            {agent: truncated for agent, (_, truncated) in flags.items()},
            {agent: self._inform(agent, result.info, needs.get(agent)) for agent in concerned},
            list(self._agents),
            list(needs),
        )

    def _inform(self, agent: str, infos: dict[str, Any], need: Any) -> dict[str, Any]:
        mask = None if need is None else need.action_mask
        return with_mask(infos.get(agent) or {}, mask, self._number_of_actions[agent])

    def text(self) -> str:
        """Return the last observation of each agent, one per line."""
        return "\n".join(f"{agent}: {self._seen[agent]!r}" for agent in self._agents)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def _flags(agent: str, result: StepResult[Any], end: AgentEnd[Any] | None) -> tuple[bool, bool]:
    """Whether the task, and whether a limit, ended the episode for this agent."""
    if end is not None:
        return end.terminated, end.truncated
    if result.end is None:
        return False, False
    terminated, truncated = result.terminated.get(agent, False), result.truncated.get(agent, False)
    if terminated or truncated:
        return terminated, truncated
    return result.end.reason == "terminated", result.end.reason != "terminated"


@final
class AsParallel(pettingzoo.ParallelEnv[str, Any, Any]):  # type: ignore[misc] # it has no types
    """An `Env` whose agents all act at once, as a `ParallelEnv`. See `to_pettingzoo`."""

    def __init__(self, env: Any) -> None:
        self._inside = inside = _EnvHolder(env)
        self.metadata = {"name": inside.name, "render_modes": ["ansi"]}
        self.render_mode = "ansi"
        self.possible_agents = inside.possible_agents
        self.observation_spaces = inside.observation_spaces
        self.action_spaces = inside.action_spaces
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the observation space of an agent."""
        return self._inside.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the action space of an agent."""
        return self._inside.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Begin an episode."""
        turn = self._inside.reset(seed, options)
        self._take(turn)
        return turn.observations, turn.infos

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[
        dict[str, Any],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """Take the actions of all agents."""
        known = self._inside.action_spaces
        # An unknown agent is refused inside, by name.
        turn = self._inside.step(
            {a: self._inside.decode(a, one) if a in known else one for a, one in actions.items()}
        )
        self._take(turn)
        return turn.observations, turn.rewards, turn.terminations, turn.truncations, turn.infos

    def _take(self, turn: AgentTurn) -> None:
        self.agents = turn.agents
        waiting = [agent for agent in turn.agents if agent not in turn.acting]
        if waiting:
            raise DefinitionError(
                f"In {self._inside.name} only {', '.join(map(repr, turn.acting))} must act while "
                f"{', '.join(map(repr, waiting))} must wait, but PettingZoo's parallel API needs "
                "an action of every agent. Use to_pettingzoo(..., api='aec')."
            )

    def render(self) -> str:
        """Return the last observation of each agent, as text."""
        return self._inside.text()

    def close(self) -> None:
        """Close the environment. May be called twice."""
        self._inside.close()


@final
class AsAEC(pettingzoo.AECEnv[str, Any, Any]):  # type: ignore[misc] # it has no types
    """An `Env` as a PettingZoo `AECEnv`. See `to_pettingzoo`."""

    def __init__(self, env: Any) -> None:
        super().__init__()
        self._inside = inside = _EnvHolder(env)
        self.metadata = {
            "name": inside.name,
            "render_modes": ["ansi"],
            "is_parallelizable": False,
        }
        self.render_mode = "ansi"
        self.possible_agents = inside.possible_agents
        self.observation_spaces = inside.observation_spaces
        self.action_spaces = inside.action_spaces
        self.agents: list[str] = []
        self.agent_selection = ""
        self._cumulative_rewards: dict[str, float] = {}
        self._acting: list[str] = []
        self._given: dict[str, Any] = {}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the observation space of an agent."""
        return self._inside.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the action space of an agent."""
        return self._inside.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode."""
        turn = self._inside.reset(seed, options)
        self._cumulative_rewards = {}
        self._skip_agent_selection = None
        self._take(turn)

    def observe(self, agent: str) -> Any:
        """Return the last observation of an agent."""
        return self._inside.observe(agent)

    def step(self, action: Any) -> None:
        """Take the action of the selected agent; the step is taken when all have acted."""
        if not self.agents:
            raise ResetNeededError(
                f"step() on {self._inside.name} with no episode running. Call reset() first."
            )
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._given[agent] = self._inside.decode(agent, action)
        self._cumulative_rewards[agent] = 0.0
        waiting = [one for one in self._acting if one not in self._given]
        if waiting:
            self._clear_rewards()
            self.agent_selection = waiting[0]
            return
        self._take(self._inside.step(self._given))

    def _take(self, turn: AgentTurn) -> None:
        # Agents that left stay listed until their empty last action.
        self.agents = list(turn.observations)
        self.rewards = turn.rewards
        self.terminations = turn.terminations
        self.truncations = turn.truncations
        self.infos = turn.infos
        self._given, self._acting = {}, turn.acting
        for agent in self.agents:
            self._cumulative_rewards.setdefault(agent, 0.0)
        self._accumulate_rewards()
        self.agent_selection = turn.acting[0] if turn.acting else self.agents[0]
        self._deads_step_first()

    def render(self) -> str:
        """Return the last observation of each agent, as text."""
        return self._inside.text()

    def close(self) -> None:
        """Close the environment. May be called twice."""
        self._inside.close()

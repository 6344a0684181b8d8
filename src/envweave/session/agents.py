"""Multi-agent state: which agents live, which must act, and their rewards since they last acted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

from envweave.codec import AgentsSpec, Mismatch, Spec
from envweave.errors import ActionError, BadReturnError, suggest
from envweave.session.results import check_parts, number, split_all
from envweave.session.snapshot import snapshot
from envweave.types import AgentEnd, EpisodeEnd, NeedAction, StepResult


@dataclass(frozen=True, slots=True)
class AgentRewards:
    """One step of several agents, after it was applied to their states."""

    parts: tuple[
        dict[str, Any], dict[str, float | None], dict[str, bool], dict[str, bool]
    ]  # observation, reward, terminated, truncated
    end: EpisodeEnd | None
    agent_ends: tuple[AgentEnd[Any], ...]


@final
class AgentStates:
    """The agents of one multi-agent episode. Makes no decisions; the session reads it.

    Attributes:
        acting: The agents that must act now.
    """

    def __init__(self, possible_agents: tuple[str, ...], action_spec: Spec) -> None:
        assert isinstance(action_spec, AgentsSpec)
        self._possible = possible_agents
        self._specs = action_spec
        self.acting: tuple[str, ...] = ()
        self.clear()

    def clear(self) -> None:
        """Forget all agents."""
        # Rewards since each agent last acted. The keys are the living agents, in order.
        self._pending_rewards: dict[str, float | None] = {}
        self._gone: set[str] = set()
        self._seen: dict[str, Any] = {}
        self._masks: dict[str, Any] = {}
        self.acting = ()

    def restore(self, living: Iterable[str], gone: Iterable[str], acting: Iterable[str]) -> None:
        """Take the place of another `AgentStates`, to read actions as it would."""
        self._pending_rewards = dict.fromkeys(living)
        self._gone = set(gone)
        self.acting = tuple(acting)

    def copied(self) -> AgentStates:
        """Return a copy that changes apart from this one."""
        twin = AgentStates(self._possible, self._specs)
        twin._pending_rewards = dict(self._pending_rewards)
        twin._gone = set(self._gone)
        twin._seen = snapshot(self._seen)
        twin._masks = snapshot(self._masks)
        twin.acting = self.acting
        return twin

    @property
    def living(self) -> list[str]:
        """The agents that take part now."""
        return list(self._pending_rewards)

    @property
    def seen(self) -> dict[str, Any]:
        """The last observation of each living agent."""
        return {agent: self._seen[agent] for agent in self._pending_rewards}

    def read_actions(self, actions: Any) -> dict[str, Any]:
        """Return the actions, one for each agent that must act and no other.

        Raises:
            ActionError: One is missing, unexpected, or does not fit its spec.
        """
        if not isinstance(actions, Mapping):
            raise ActionError(
                f"action: {actions!r} is not a dict keyed by agent id. To act now: {self._names()}."
            )
        for agent in actions:
            if agent not in self.acting:
                raise ActionError(f"action[{agent!r}]: {self._why_not(agent)}")
        read = {}
        for agent in self.acting:
            if agent not in actions:
                raise ActionError(
                    f"action[{agent!r}]: this agent's action is missing. "
                    f"To act now: {self._names()}."
                )
            try:
                read[agent] = self._specs[agent].read(actions[agent])
            except Mismatch as mismatch:
                raise ActionError(mismatch.describe(f"action[{agent!r}]")) from None
        return read

    def _names(self) -> str:
        return ", ".join(map(repr, self.acting))

    def _why_not(self, agent: Any) -> str:
        if agent in self._gone:
            return f"this agent has left. To act now: {self._names()}."
        if agent in self._pending_rewards:
            return f"it is not this agent's turn. To act now: {self._names()}."
        return f"there is no such agent.{suggest(str(agent), self.acting)} To act: {self._names()}."

    def observe(self, observations: Mapping[str, Any], infos: Mapping[str, Any]) -> dict[str, Any]:
        """Record what each agent sees, add new agents, and return copies safe to hand out."""
        shown = {}
        for agent, observation in observations.items():
            if agent in self._gone:
                raise BadReturnError(f"There is an observation for {agent!r}, which has left.")
            if agent not in self._pending_rewards:
                if agent not in self._possible:
                    raise BadReturnError(
                        f"There is an observation for {agent!r}, which is not in possible_agents."
                    )
                self._pending_rewards[agent] = None
            shown[agent] = self._seen[agent] = snapshot(observation)
            info = infos.get(agent)
            mask = info.get("action_mask") if isinstance(info, dict) else None
            self._masks[agent] = snapshot(mask)
        return shown

    def apply(self, read: StepResult[dict[str, Any]], end: EpisodeEnd | None) -> AgentRewards:
        """Apply one step: observations, rewards, agents that leave, and the end of the episode.

        Args:
            read: The author's return value, every part keyed by agent.
            end: The end that the environment emitted, if any.
        """
        terminated, all_terminated = split_all(read.terminated, "terminated")
        truncated, all_truncated = split_all(read.truncated, "truncated")
        shown = self.observe(read.observation, read.info)
        for agent in {**terminated, **truncated}:
            if agent not in self._pending_rewards and agent not in self._gone:
                raise BadReturnError(f"There is a flag for {agent!r}, which takes no part.")
        earned = {agent: number(reward) for agent, reward in read.reward.items()}
        for agent, info in read.info.items():
            if isinstance(info, dict) and "reward_parts" in info:
                check_parts(info["reward_parts"], earned.get(agent))
        self._credit(earned)
        if end is not None:
            all_terminated |= end.reason == "terminated"
            all_truncated |= end.reason != "terminated"
        for agent in self._pending_rewards:
            terminated[agent] = terminated.get(agent, False) or all_terminated
            truncated[agent] = truncated.get(agent, False) or all_truncated
        leaving = [
            agent for agent in self._pending_rewards if terminated[agent] or truncated[agent]
        ]
        agent_ends: tuple[AgentEnd[Any], ...] = ()
        if len(leaving) == len(self._pending_rewards):
            end = end or EpisodeEnd("terminated" if any(terminated.values()) else "truncated")
            end.rewards = dict(self._pending_rewards)
            self._pending_rewards.clear()
        else:
            agent_ends = tuple(
                AgentEnd(a, self._seen[a], self._pending_rewards[a], terminated[a], truncated[a])
                for a in leaving
            )
            for agent in leaving:
                del self._pending_rewards[agent]
                self._gone.add(agent)
        present = [agent for agent in terminated if agent in shown or agent in earned]
        terminated = {agent: terminated[agent] for agent in present}
        truncated = {agent: truncated[agent] for agent in present}
        return AgentRewards((shown, earned, terminated, truncated), end, agent_ends)

    def _credit(self, rewards: Mapping[str, float | None]) -> None:
        """Add the rewards of a step; for agents that just acted, the sum starts over."""
        for agent in self.acting:
            self._pending_rewards[agent] = None
        self.acting = ()
        for agent, reward in rewards.items():
            if agent not in self._pending_rewards:
                raise BadReturnError(f"There is a reward for {agent!r}, which takes no part.")
            if reward is not None:
                self._pending_rewards[agent] = (self._pending_rewards[agent] or 0.0) + reward

    def _in_order(self, agents: Any) -> tuple[str, ...]:
        """The agents in a fixed order: the author's, or for a set that of `possible_agents`."""
        if isinstance(agents, str):
            raise BadReturnError(f"to_act() returned the str {agents!r}; return a list of agents.")
        if isinstance(agents, set | frozenset):
            known = [agent for agent in self._possible if agent in agents]
            return (*known, *sorted(agents.difference(known)))
        return tuple(agents)

    def repeat_needs(self) -> tuple[NeedAction[Any], ...]:
        """Request actions from the same agents again, after a refusal. There is no new reward."""
        return tuple(
            NeedAction(self._seen[agent], self._masks[agent], None, agent) for agent in self.acting
        )

    def current_needs(self) -> tuple[NeedAction[Any], ...]:
        """Request actions from the same agents, with what they earned since they last acted."""
        return tuple(
            NeedAction(self._seen[agent], self._masks[agent], self._pending_rewards[agent], agent)
            for agent in self.acting
        )

    def request_actions(self, agents: Iterable[str] | None) -> tuple[NeedAction[Any], ...]:
        """Request actions from these agents; `None` means all living agents."""
        acting = tuple(self._pending_rewards) if agents is None else self._in_order(agents)
        for agent in acting:
            if agent not in self._pending_rewards:
                raise BadReturnError(f"to_act() returned {agent!r}, which takes no part now.")
        if not acting or len(set(acting)) < len(acting):
            raise BadReturnError(
                f"to_act() returned {list(acting)!r} while {self.living!r} live; it must return at "
                "least one agent, and none twice."
            )
        self.acting = acting
        return self.current_needs()

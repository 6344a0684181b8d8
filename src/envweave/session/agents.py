"""Who lives, who is asked to act, and what each agent has earned since it last acted."""

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
    """One step of several agents, after the books are made up."""

    parts: tuple[
        dict[str, Any], dict[str, float | None], dict[str, bool], dict[str, bool]
    ]  # observation, reward, terminated, truncated
    end: EpisodeEnd | None
    agent_ends: tuple[AgentEnd[Any], ...]


@final
class AgentStates:
    """The books of one multi-agent episode. It decides nothing; the session reads it."""

    def __init__(self, possible_agents: tuple[str, ...], action_spec: Spec) -> None:
        assert isinstance(action_spec, AgentsSpec)
        self._possible = possible_agents
        self._specs = action_spec
        self.acting: tuple[str, ...] = ()
        self.clear()

    def clear(self) -> None:
        """Begin an empty book."""
        self._pending_rewards: dict[str, float | None] = {}  # its keys are those who live, in order
        self._gone: set[str] = set()
        self._seen: dict[str, Any] = {}
        self._masks: dict[str, Any] = {}
        self.acting = ()

    def restore(self, living: Iterable[str], gone: Iterable[str], asked: Iterable[str]) -> None:
        """Stand where another ledger stands, to read actions as that one would."""
        self._pending_rewards = dict.fromkeys(living)
        self._gone = set(gone)
        self.acting = tuple(asked)

    @property
    def living(self) -> list[str]:
        """Those who take part now."""
        return list(self._pending_rewards)

    @property
    def seen(self) -> dict[str, Any]:
        """The last observation of each that lives."""
        return {agent: self._seen[agent] for agent in self._pending_rewards}

    def read_actions(self, actions: Any) -> dict[str, Any]:
        """Return the actions, one of exactly those asked.

        Raises:
            ActionError: One is missing, uncalled for, or does not fit.
        """
        if not isinstance(actions, Mapping):
            raise ActionError(
                f"action: {actions!r} is no dict keyed by agent id. To act now: {self._names()}."
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
        """Note what each agent sees, let newcomers join, and return copies safe to hand out."""
        shown = {}
        for agent, observation in observations.items():
            if agent in self._gone:
                raise BadReturnError(f"An observation came for {agent!r}, who has left.")
            if agent not in self._pending_rewards:
                if agent not in self._possible:
                    raise BadReturnError(
                        f"An observation came for {agent!r}, who is not in possible_agents."
                    )
                self._pending_rewards[agent] = None
            shown[agent] = self._seen[agent] = snapshot(observation)
            info = infos.get(agent)
            mask = info.get("action_mask") if isinstance(info, dict) else None
            self._masks[agent] = snapshot(mask)
        return shown

    def apply(self, read: StepResult[dict[str, Any]], end: EpisodeEnd | None) -> AgentRewards:
        """Book one step: who sees what, who earned what, who leaves, and whether all is over.

        Args:
            read: What the author returned, every part keyed by agent.
            end: The end that the environment declared itself, if it did.
        """
        terminated, all_terminated = split_all(read.terminated, "terminated")
        truncated, all_truncated = split_all(read.truncated, "truncated")
        shown = self.observe(read.observation, read.info)
        for agent in {**terminated, **truncated}:
            if agent not in self._pending_rewards and agent not in self._gone:
                raise BadReturnError(f"A flag came for {agent!r}, who takes no part.")
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
        """Add what a step earned; what was owed to those who just acted starts anew."""
        for agent in self.acting:
            self._pending_rewards[agent] = None
        self.acting = ()
        for agent, reward in rewards.items():
            if agent not in self._pending_rewards:
                raise BadReturnError(f"A reward came for {agent!r}, who takes no part.")
            if reward is not None:
                self._pending_rewards[agent] = (self._pending_rewards[agent] or 0.0) + reward

    def _in_order(self, agents: Any) -> tuple[str, ...]:
        """The named agents in a fixed order: the author's, or for a set the possible agents'."""
        if isinstance(agents, str):
            raise BadReturnError(f"to_act() returned the text {agents!r}; return a list of agents.")
        if isinstance(agents, set | frozenset):
            known = [agent for agent in self._possible if agent in agents]
            return (*known, *sorted(agents.difference(known)))
        return tuple(agents)

    def repeat_needs(self) -> tuple[NeedAction[Any], ...]:
        """Ask the same agents again, whose actions were refused. They have earned nothing new."""
        return tuple(
            NeedAction(self._seen[agent], self._masks[agent], None, agent) for agent in self.acting
        )

    def request_actions(self, agents: Iterable[str] | None) -> tuple[NeedAction[Any], ...]:
        """Ask these to act, or with `None` all that live."""
        asked = tuple(self._pending_rewards) if agents is None else self._in_order(agents)
        for agent in asked:
            if agent not in self._pending_rewards:
                raise BadReturnError(f"to_act() named {agent!r}, who takes no part now.")
        if not asked or len(set(asked)) < len(asked):
            raise BadReturnError(
                f"to_act() named {list(asked)!r} while {self.living!r} live; it must name "
                "somebody, and nobody twice."
            )
        self.acting = asked
        return tuple(
            NeedAction(self._seen[agent], self._masks[agent], self._pending_rewards[agent], agent)
            for agent in asked
        )

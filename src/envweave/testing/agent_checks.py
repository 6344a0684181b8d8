"""The promises about several agents."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from envweave.errors import ActionError
from envweave.testing.check_result import NotApplicable, refuses, require
from envweave.testing.fixture import Subject
from envweave.types import AgentEnd, StepResult


def _needs_agents(subject: Subject) -> None:
    if not subject.has_agents:
        raise NotApplicable("The environment has one agent.")


def results_are_keyed_by_agent(subject: Subject) -> None:
    """With several agents, the parts of a result are dicts keyed by agent id; `done` is a bool."""
    _needs_agents(subject)
    with subject.opened() as env:
        known = set(env.possible_agents or ())
        for result in subject.play(env).steps:
            for name in ("observation", "reward", "terminated", "truncated"):
                part = getattr(result, name)
                require(
                    isinstance(part, dict) and set(part) <= known,
                    f"{name} of step {result.step_index} is {part!r}.",
                )
            require(isinstance(result.done, bool), f"done is {result.done!r}.")


def only_those_asked_may_act(subject: Subject) -> None:
    """A missing action and one of an agent that must not act are refused, naming the agent."""
    _needs_agents(subject)
    with subject.opened() as env:
        result = subject.start(env)
        actions = subject.first_action(env, result)
        acting = [need.agent_id for need in result.needs]
        others = [agent for agent in env.possible_agents or () if agent not in acting]

        refusal = refuses(
            lambda: env.step({a: actions[a] for a in acting[1:]}), ActionError, "A missing action"
        )
        require(repr(acting[0]) in str(refusal), f"{acting[0]!r} is not named: {refusal}")
        for other in others:
            spare = actions[acting[0]]
            refusal = refuses(
                lambda: env.step({**actions, other: spare}),  # noqa: B023 - called at once
                ActionError,
                f"An action of {other!r}, which must not act now,",
            )
            require(repr(other) in str(refusal), f"{other!r} is not named: {refusal}")
        env.step(actions)


def what_needs_carry_sums_to_what_was_earned(subject: Subject) -> None:
    """The rewards in `NeedAction`s and ends sum to the total reward of each agent."""
    _needs_agents(subject)
    with subject.opened() as env:
        played = subject.play(env, until_end=True)
        earned: dict[str, list[float]] = defaultdict(list)
        carried: dict[str, list[float]] = defaultdict(list)
        for result in played.results:
            if isinstance(result.reward, dict):
                for agent, reward in result.reward.items():
                    earned[agent].append(reward or 0.0)
            for agent, reward in _carried(result):
                carried[agent].append(reward or 0.0)

        for agent, rewards in earned.items():
            total, reported = math.fsum(rewards), math.fsum(carried[agent])
            require(
                math.isclose(total, reported, rel_tol=1e-9, abs_tol=1e-9),
                f"{agent!r} earned {total}, but its requests report {reported}.",
            )


def an_agent_leaves_once(subject: Subject) -> None:
    """An agent that leaves early gets one `AgentEnd`, and never has to act again."""
    _needs_agents(subject)
    with subject.opened() as env:
        gone: set[str] = set()
        for result in subject.play(env).results:
            for end in (event for event in result.events if isinstance(event, AgentEnd)):
                require(end.agent_id not in gone, f"{end.agent_id!r} left twice.")
                require(not result.done, f"{end.agent_id!r} left early at the episode's end.")
                require(end.terminated or end.truncated, f"{end!r} has no flag set.")
                gone.add(end.agent_id)
            acting = {need.agent_id for need in result.needs}
            require(not acting & gone, f"{sorted(acting & gone)} have left but must act.")


def _carried(result: StepResult[Any]) -> list[tuple[str, float | None]]:
    rewards = [(need.agent_id, need.reward) for need in result.needs]
    rewards += [(e.agent_id, e.reward) for e in result.events if isinstance(e, AgentEnd)]
    if result.end is not None:
        rewards += list(result.end.rewards.items())
    return rewards


AGENT_CHECKS = [
    results_are_keyed_by_agent,
    only_those_asked_may_act,
    what_needs_carry_sums_to_what_was_earned,
    an_agent_leaves_once,
]

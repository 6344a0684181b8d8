"""The promises about actions of several kinds."""

from __future__ import annotations

import numpy as np

from envweave.api import Env
from envweave.codec import AgentsSpec
from envweave.codec.containers import draw_each_member
from envweave.errors import ActionError, SpecError
from envweave.testing.check_result import NotApplicable, require
from envweave.testing.fixture import Subject
from envweave.testing.policy import RandomPolicy
from envweave.types import AGENT

_STATES = 100  # number of states in which an action of each kind is tried


def each_kind_of_action_can_be_taken(subject: Subject) -> None:
    """If actions are a union, an action of each member can be taken."""
    with subject.opened() as env:
        spec = env.action_spec
        several = isinstance(spec, AgentsSpec)
        specs = spec.agents if isinstance(spec, AgentsSpec) else {AGENT: spec}
        rng = np.random.default_rng(subject.seed)
        try:
            kinds = {
                (agent, name)
                for agent, one in specs.items()
                for name, _ in draw_each_member(one, rng)
            }
        except SpecError as error:
            raise NotApplicable(str(error)) from None
        if not kinds:
            raise NotApplicable("Actions are of one kind.")
        for agent, name in sorted(kinds):
            refusal = _take_kind(subject, env, agent, name, rng, several=several)
            whose = f" of {agent!r}" if several else ""
            require(refusal is None, f"No {name}{whose} was ever accepted: {refusal}")


def _take_kind(
    subject: Subject, env: Env, agent: str, name: str, rng: np.random.Generator, *, several: bool
) -> str | None:
    """Try an action of one kind until it is accepted; return why it never was."""
    policy = RandomPolicy(env.action_spec, subject.seed)
    result = subject.start(env)
    refusal = f"{agent!r} never has to act"
    for _ in range(min(subject.max_steps, _STATES)):
        if result.done:
            result = env.reset()
        if agent in [need.agent_id for need in result.needs]:
            own = env.action_spec[agent] if isinstance(env.action_spec, AgentsSpec) else None
            action = dict(draw_each_member(own or env.action_spec, rng))[name]
            try:
                result = env.step({**policy(result), agent: action} if several else action)
            except ActionError as error:
                refusal = str(error)
            else:
                end = result.end
                failed = end is not None and not end.valid
                require(not failed, f"After a {name} the episode ended as {end!r}.")
                return None
        _, result = subject.act(env, policy, result)
    return refusal


ACTION_CHECKS = (each_kind_of_action_can_be_taken,)

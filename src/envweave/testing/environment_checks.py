"""The promises that every environment keeps, on every backend."""

from __future__ import annotations

import math
import random
import threading
from collections import defaultdict
from typing import Any

import numpy as np

from envweave.api import Env
from envweave.codec import AgentsSpec, Spec
from envweave.codec.containers import DataclassSpec, PydanticSpec, draw_each_member
from envweave.errors import (
    ActionError,
    ClosedError,
    ForkError,
    OptionError,
    ResetNeededError,
    SeedError,
    SpecError,
)
from envweave.session.snapshot import snapshot
from envweave.testing.check_result import Check, NotApplicable, refuses, require
from envweave.testing.fixture import Subject
from envweave.testing.policy import RandomPolicy
from envweave.types import AGENT, AgentEnd, AutoResetReady, EpisodeEnd, NeedAction, StepResult
from envweave.types.results import same


def a_seed_is_honored_or_refused(subject: Subject) -> None:
    """A seed is used and shown in `info`, or refused; an invalid seed is refused."""
    with subject.opened() as env:
        try:
            result = env.reset(seed=subject.seed)
        except SeedError:
            require("seed" not in env.reset().info, "info shows a seed although none is supported.")
            return
        require(
            result.info.get("seed") == subject.seed,
            f"reset(seed={subject.seed}) shows info['seed']={result.info.get('seed')!r}.",
        )
        refuses(lambda: env.reset(seed="seven"), SeedError, "seed='seven'")  # type: ignore[arg-type]
        refuses(lambda: env.reset(seed=-1), SeedError, "seed=-1")


def the_same_seed_gives_the_same_episode(subject: Subject) -> None:
    """The same seed and actions give the same results, whatever happened in between."""
    if not subject.deterministic:
        raise NotApplicable("The environment declares deterministic=False.")
    if not subject.takes_seed:
        raise NotApplicable("The environment takes no seed.")
    with subject.opened() as env:
        first = subject.play(env)
        again = subject.play(env)
    with subject.opened() as other:
        afresh = subject.play(other)

        subject.same_episode(first, again, "The second episode with the same seed differs")
        subject.same_episode(first, afresh, "A fresh environment with the same seed differs")


def sessions_share_no_randomness(subject: Subject) -> None:
    """Two environments, and the caller's own random draws, do not affect each other."""
    if not subject.deterministic or not subject.takes_seed:
        raise NotApplicable("Two episodes of this environment cannot be compared.")
    with subject.opened() as env:
        alone = subject.play(env)
    before = random.getstate(), np.random.get_state()
    try:
        with subject.opened() as left, subject.opened() as right:
            rows: list[list[StepResult[Any]]] = [[subject.start(left)], [subject.start(right)]]
            for action in alone.actions:
                random.random()  # noqa: S311 - changes the global state
                np.random.random()
                rows[0].append(left.step(action))
                rows[1].append(right.step(action))
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])

    for row in rows:
        subject.same_episode(
            alone,
            type(alone)(alone.actions, row),
            "With another session in parallel the episode differs",
        )


def later_episodes_have_their_own_seeds(subject: Subject) -> None:
    """Each episode after a seeded one gets a seed from the same stream, shown in `info`."""
    if not subject.takes_seed:
        raise NotApplicable("The environment takes no seed.")
    with subject.opened() as env:
        streams = []
        for _ in range(2):
            seeds = [subject.start(env).info["seed"]]
            seeds += [env.reset().info["seed"] for _ in range(3)]
            streams.append(seeds)

        require(len(set(streams[0])) == 4, f"Seeds are repeated in one stream: {streams[0]}.")
        require(streams[0] == streams[1], f"The same seed gives different streams: {streams}.")


def options_are_taken_or_refused(subject: Subject) -> None:
    """Options for a reset that takes none are refused, not ignored."""
    with subject.opened() as env:
        try:
            env.reset(options={})
        except OptionError as refusal:
            require(str(refusal), "The refusal has no message.")


SEED_CHECKS = [
    a_seed_is_honored_or_refused,
    the_same_seed_gives_the_same_episode,
    sessions_share_no_randomness,
    later_episodes_have_their_own_seeds,
    options_are_taken_or_refused,
]


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


def only_agents_that_must_act_may_act(subject: Subject) -> None:
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


def rewards_in_requests_sum_to_the_total(subject: Subject) -> None:
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
            for agent, reward in _list_rewards(result):
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


def _list_rewards(result: StepResult[Any]) -> list[tuple[str, float | None]]:
    rewards = [(need.agent_id, need.reward) for need in result.needs]
    rewards += [(e.agent_id, e.reward) for e in result.events if isinstance(e, AgentEnd)]
    if result.end is not None:
        rewards += list(result.end.rewards.items())
    return rewards


AGENT_CHECKS = [
    results_are_keyed_by_agent,
    only_agents_that_must_act_may_act,
    rewards_in_requests_sum_to_the_total,
    an_agent_leaves_once,
]


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


def an_episode_can_be_played(subject: Subject) -> None:
    """An episode can be played with valid actions, and no step fails."""
    with subject.opened() as env:
        played = subject.play(env)

        end = played.last.end
        require(
            end is None or end.valid,
            f"The episode ended as {end!r}." if end else "",
        )


def step_before_reset_is_refused(subject: Subject) -> None:
    """A step before the first reset is refused, and the message says what to do."""
    with subject.opened() as env:
        action = subject.any_action(env)

        refusal = refuses(lambda: env.step(action), ResetNeededError, "step() before reset()")

        require("reset()" in str(refusal), f"The refusal does not say what to do: {refusal}")


def step_after_the_end_is_refused(subject: Subject) -> None:
    """A step after the end, without autoreset, is refused, and the message says what to do."""
    with subject.opened() as env:
        played = subject.play(env, until_end=True)

        refusal = refuses(
            lambda: env.step(played.actions[-1]), ResetNeededError, "step() at an end"
        )

        require("reset()" in str(refusal), f"The refusal does not say what to do: {refusal}")


def every_result_says_what_happens_next(subject: Subject) -> None:
    """Every result needs an action, waits for a tool, or reports the end of the episode."""
    with subject.opened() as env:
        for result in subject.play(env).results:
            ends = [r for r in result.requests if isinstance(r, EpisodeEnd)]
            needs = [r for r in result.requests if isinstance(r, NeedAction)]
            require(
                len(ends) == (1 if result.done else 0),
                f"Step {result.step_index} is done={result.done} with {len(ends)} EpisodeEnd.",
            )
            require(
                bool(needs or result.tool_calls) != result.done,
                f"Step {result.step_index} is done={result.done} with {len(needs)} NeedAction.",
            )


def an_episode_ends_exactly_once(subject: Subject) -> None:
    """With autoreset, each episode reports its end once and has a new ID."""
    with subject.opened(autoreset=True) as env:
        result = subject.start(env)
        choose = subject.policy(env)
        ended: list[str | None] = []
        for _ in range(subject.max_steps):
            try:
                _, result = subject.act(env, choose, result)
            except NotApplicable:
                break
            if result.end is not None:
                ended.append(result.episode_id)
                require(
                    len([r for r in result.requests if isinstance(r, EpisodeEnd)]) == 1,
                    f"Episode {result.episode_id} reported its end more than once.",
                )
            if len(ended) == 3:
                break
        if not ended:
            raise NotApplicable(f"No episode ended within {subject.max_steps} steps.")
        require(len(set(ended)) == len(ended), f"Episode IDs are repeated: {ended}.")


def the_final_observation_survives_an_autoreset(subject: Subject) -> None:
    """The last observation is the final one, also with autoreset."""
    if not subject.deterministic or not subject.takes_seed:
        raise NotApplicable("Two episodes of this environment cannot be compared.")
    with subject.opened() as env:
        plain = subject.play(env, until_end=True)
    with subject.opened(autoreset=True) as env:
        joined = subject.play(env, until_end=True)

        subject.same_episode(plain, joined, "With autoreset the episode differs")


def an_autoreset_travels_in_the_last_result(subject: Subject) -> None:
    """With autoreset, one result has the end, the new start and who acts next, in this order."""
    with subject.opened(autoreset=True) as env:
        last = subject.play(env, until_end=True).last
        kinds: list[Any] = [type(r) for r in last.requests if not hasattr(r, "level")]
        kinds = [kind for kind in kinds if kind in (EpisodeEnd, AutoResetReady, NeedAction)]

        require(
            kinds[:3] == [EpisodeEnd, AutoResetReady, NeedAction] and last.ready is not None,
            f"The last result has {[kind.__name__ for kind in kinds]}; expected EpisodeEnd, "
            f"AutoResetReady, NeedAction. {last.info.get('reset_error', '')}",
        )
        require(
            last.ready is not None and same(last.current, last.ready.initial_obs),
            "`current` is not the new episode's first observation.",
        )


def flags_and_reason_agree(subject: Subject) -> None:
    """`terminated`, `truncated` and `done` agree with the reason of the end."""
    with subject.opened() as env:
        for result in subject.play(env).results:
            flags = [_any(result.terminated), _any(result.truncated)]
            if result.end is None:
                over = [_all(result, "terminated"), _all(result, "truncated")]
                require(not any(over), f"{flags} without an EpisodeEnd at {result.step_index}.")
                continue
            expected = flags[0] if result.end.reason == "terminated" else flags[1]
            require(
                expected and result.done,
                f"The reason is {result.end.reason!r} with terminated={result.terminated!r}, "
                f"truncated={result.truncated!r}, done={result.done}.",
            )


def an_unknown_field_is_refused(subject: Subject) -> None:
    """An action with a misspelled field is refused by its path, never given a default."""
    with subject.opened() as env:
        record = _record(env.action_spec, env.possible_agents)
        result = subject.start(env)
        invalid = {"no_such_field_": 1}

        refusal = refuses(
            lambda: env.step(_for_all(result, invalid, env.possible_agents)),
            ActionError,
            f"The action {invalid!r}",
        )

        require(
            "no_such_field_" in str(refusal),
            f"The refusal does not name the field of {record.cls.__name__}: {refusal}",
        )


def a_refused_action_leaves_the_episode_unharmed(subject: Subject) -> None:
    """An action of the wrong type is refused, and the episode continues unchanged."""
    if not subject.deterministic or not subject.takes_seed:
        raise NotApplicable("Two episodes of this environment cannot be compared.")
    nonsense = object()
    with subject.opened() as env:
        plain = subject.play(env)
        if env.action_spec.contains(nonsense):
            raise NotApplicable("The environment accepts any object as an action.")
    with subject.opened() as env:
        results: list[StepResult[Any]] = [subject.start(env)]
        for action in plain.actions:
            refuses(lambda: env.step(nonsense), ActionError, "An object() as action")
            results.append(env.step(action))
        disturbed = type(plain)(plain.actions, results)

        subject.same_episode(plain, disturbed, "After a refused action the episode differs")


def observations_fit_their_spec(subject: Subject) -> None:
    """Observations match the type hints or the spec."""
    with subject.opened() as env:
        for result in subject.play(env).results:
            try:
                env.observation_spec.check(result.observation, "observation")
            except SpecError as error:
                require(False, f"After step {result.step_index}: {error}")  # noqa: FBT003


def observations_do_not_change_later(subject: Subject) -> None:
    """An observation does not change after it was returned."""
    with subject.opened() as env:
        result = subject.start(env)
        choose = subject.policy(env)
        shown = [(0, result.observation, snapshot(result.observation))]
        while not result.done and len(shown) < subject.max_steps:
            _, result = subject.act(env, choose, result)
            shown.append((result.step_index, result.observation, snapshot(result.observation)))
        subject.start(env)

        for index, observation, copy in shown:
            require(
                same(observation, copy),
                f"The observation of step {index} was {copy!r} and became {observation!r}. "
                "Return a fresh object, or a copy.",
            )


def state_names_the_episode(subject: Subject) -> None:
    """`state()` names the running episode and counts its steps."""
    with subject.opened() as env:
        result = subject.start(env)
        before = env.state()
        _, result = subject.act(env, subject.policy(env), result)
        after = env.state()

        require(after.episode_id, f"state() has no episode ID: {after!r}.")
        require(
            (before.step_count, after.step_count) == (0, 1),
            f"state() counts {before.step_count} and then {after.step_count}; expected 0 and 1.",
        )


def reward_parts_sum_to_the_reward(subject: Subject) -> None:
    """If a reward has parts, they sum to it."""
    with subject.opened() as env:
        seen = False
        for result in subject.play(env).steps:
            if result.reward_parts and isinstance(result.reward, float):
                seen = True
                total = sum(result.reward_parts.values())
                require(
                    abs(total - result.reward) <= 1e-6 * max(1.0, abs(total)),
                    f"The parts {result.reward_parts} sum to {total}, not to {result.reward}.",
                )
        if not seen:
            raise NotApplicable("No reward has parts.")


def close_may_be_called_twice(subject: Subject) -> None:
    """A second close does nothing, and every other call is refused after close."""
    env = subject.open(autoreset=False)
    subject.start(env)
    action = subject.any_action(env)

    env.close()
    env.close()

    refuses(lambda: env.step(action), ClosedError, "step() after close()")
    refuses(lambda: env.reset(), ClosedError, "reset() after close()")


def a_fork_continues_from_the_very_state(subject: Subject) -> None:
    """A fork continues as the episode would have, and neither changes the other."""
    if not subject.deterministic:
        raise NotApplicable("The environment declares deterministic=False.")
    if not subject.takes_seed:
        raise NotApplicable("The environment takes no seed.")
    with subject.opened() as env:
        whole = subject.play(env)
        half = len(whole.actions) // 2
        subject.start(env)
        for action in whole.actions[:half]:
            env.step(action)
        try:
            children = env.fork(2)
        except ForkError as refusal:
            raise NotApplicable(str(refusal)) from None
        try:
            rest = whole.actions[half:]
            rows = [[one.step(action) for action in rest] for one in (env, *children)]
        finally:
            for child in children:
                child.close()
    expected = type(whole)(whole.actions, whole.results[half + 1 :])
    for row, what in zip(rows, ("parent", "first child", "second child"), strict=True):
        other = type(whole)(whole.actions, row)
        subject.same_episode(expected, other, f"After a fork at step {half} the {what} differs")


def close_leaves_no_thread_behind(subject: Subject) -> None:
    """After close, no thread of the environment is left."""
    before = set(threading.enumerate())
    with subject.opened() as env:
        subject.play(env)

    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(timeout=5.0)
    left = [thread for thread in left if thread.is_alive()]
    require(not left, f"Threads are still running: {left}.")


def _record(spec: Spec, agents: tuple[str, ...] | None) -> DataclassSpec | PydanticSpec:
    one = spec[agents[0]] if agents else spec  # type: ignore[index] # an AgentsSpec if there are agents
    if not isinstance(one, DataclassSpec | PydanticSpec):
        raise NotApplicable("Actions have no fields.")
    return one


def _for_all(result: StepResult[Any], action: Any, agents: tuple[str, ...] | None) -> Any:
    return {need.agent_id: action for need in result.needs} if agents else action


def _any(flag: Any) -> bool:
    return any(flag.values()) if isinstance(flag, dict) else bool(flag)


def _all(result: StepResult[Any], name: str) -> bool:
    flag = getattr(result, name)
    # With several agents one may be done while the episode continues.
    return False if isinstance(flag, dict) else bool(flag)


ENVIRONMENT_CHECKS: list[Check[Subject]] = [
    Check(run)
    for run in (
        an_episode_can_be_played,
        step_before_reset_is_refused,
        step_after_the_end_is_refused,
        every_result_says_what_happens_next,
        an_episode_ends_exactly_once,
        the_final_observation_survives_an_autoreset,
        an_autoreset_travels_in_the_last_result,
        flags_and_reason_agree,
        an_unknown_field_is_refused,
        a_refused_action_leaves_the_episode_unharmed,
        *ACTION_CHECKS,
        *SEED_CHECKS,
        a_fork_continues_from_the_very_state,
        observations_fit_their_spec,
        observations_do_not_change_later,
        state_names_the_episode,
        reward_parts_sum_to_the_reward,
        close_may_be_called_twice,
        close_leaves_no_thread_behind,
        *AGENT_CHECKS,
    )
]

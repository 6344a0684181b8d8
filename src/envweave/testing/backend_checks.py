"""The promises of a backend, checked with scripted environments."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from envweave.api import Env
from envweave.errors import (
    ActionError,
    ResetFailedError,
    ResetNeededError,
    SeedError,
    TaskError,
    ToolCallOpenError,
)
from envweave.session import episode_seed
from envweave.testing.check_result import Check, refuses, require
from envweave.testing.scripted import PRIVATE_ANSWER, ScriptedObservation, ScriptedState
from envweave.types import AgentEnd, EpisodeEnd, LogEvent, NeedAction, ToolResult

SCRIPTED = "pkg://envweave.testing.scripted:ScriptedEnvironment"
AGENTS = "pkg://envweave.testing.scripted:ScriptedAgents"
NOTHING: dict[str, Any] = {}


@dataclass(frozen=True)
class BackendSubject:
    """A backend under test.

    Attributes:
        make: `make` with the backend chosen; takes an ID and keywords.
        scripted: ID of the environment that follows scripts.
    """

    make: Callable[..., Env]
    scripted: str = SCRIPTED

    def script(self, *entries: dict[str, Any], **options: Any) -> Env:
        """Make an environment that follows these entries."""
        return self.make(self.scripted, script=list(entries), **options)


def a_failing_step_ends_the_episode_with_a_blame(subject: BackendSubject) -> None:
    """A step that raises ends the episode as an error of the environment, without a reward."""
    with subject.script({"reward": 1.0}, {"raise": "out of tea"}) as env:
        env.reset(seed=1)
        good = env.step({"text": "before"})

        result = env.step({"text": "now"})

        end = result.end
        require(end is not None and end.reason == "error", f"The end is {end!r}.")
        assert end is not None
        require(end.blame == "environment", f"The blame is {end.blame!r}.")
        require("out of tea" in (end.cause or ""), f"The cause is missing: {end.cause!r}.")
        require(math.isnan(result.reward), f"A failure has the reward {result.reward!r}.")
        require(not result.valid, "A failed step counts as valid.")
        require(
            result.observation == good.observation,
            f"{result.observation!r} is not the last good observation, {good.observation!r}.",
        )
        refuses(lambda: env.step(NOTHING), ResetNeededError, "step() after a failure")
        require(env.reset().observation.at == 0, "No new episode after a failure.")


def a_failure_under_autoreset_begins_a_new_episode(subject: BackendSubject) -> None:
    """With autoreset a failed episode is followed by a new one, in the same result."""
    with subject.script({"raise": "out of tea"}, autoreset=True) as env:
        env.reset(seed=1)

        result = env.step(NOTHING)

        require(not result.valid and result.ready is not None, f"The result is {result!r}.")
        require(result.current.at == 0, f"`current` is {result.current!r}.")


def a_failing_reset_runs_once_and_reports_why(subject: BackendSubject) -> None:
    """A reset that raises runs once, reports its cause, and the next one may succeed."""
    with subject.make(subject.scripted, fail_seeds=[7]) as env:
        refusal = refuses(lambda: env.reset(seed=7), ResetFailedError, "A reset that raises")

        require("is set to fail" in str(refusal), f"The cause is missing: {refusal}")
        require(_state(env).resets == 1, f"The reset ran {_state(env).resets} times.")
        refuses(lambda: env.step(NOTHING), ResetNeededError, "step() after a failed reset()")
        require(env.reset(seed=8).needs != [], "The next reset() after a failed one does not work.")


def a_failed_environment_is_replaced_and_its_seeds_continue(subject: BackendSubject) -> None:
    """A failed environment is replaced, and the stream of seeds continues."""
    with subject.make(subject.scripted, script=[{"raise": "no more"}], autoreset=True) as env:
        env.reset(seed=3)

        result = env.step(NOTHING)

        ready = result.ready
        require(ready is not None, f"The next episode has not begun: {result.requests!r}.")
        require(_state(env).resets == 1, "The environment that failed was used again.")
        shown = ready and ready.initial_info["seed"]
        require(
            shown == episode_seed(3, 1),
            f"The seed is {shown}, which is not the next of the stream.",
        )


def a_failed_autoreset_is_reported_and_needs_a_reset(subject: BackendSubject) -> None:
    """A failed autoreset leaves the last step intact, and a reset is needed."""
    entries = [{"reward": 5.0}]
    with subject.make(subject.scripted, script=entries, fail_resets=[1], autoreset=True) as env:
        env.reset()

        result = env.step(NOTHING)

        require(result.reward == 5.0 and result.valid, f"The last step was changed: {result!r}.")
        require(
            result.ready is None and not result.needs,
            f"The episode continues: {result.requests!r}.",
        )
        require("reset_error" in result.info, f"The failure is not reported: {result.info!r}.")
        refusal = refuses(lambda: env.step(NOTHING), ResetNeededError, "step() without an episode")
        require("is set to fail" in str(refusal), f"The cause is missing: {refusal}")


def the_agents_own_fault_is_a_valid_outcome(subject: BackendSubject) -> None:
    """An end caused by the agent has a reason and a blame, and keeps its reward."""
    with subject.script({"reward": -1.0, "end": ["timeout", "agent"]}) as env:
        env.reset()

        result = env.step(NOTHING)

        require(result.end == EpisodeEnd("timeout", "agent"), f"The end is {result.end!r}.")
        require(result.reward == -1.0 and result.valid, f"The reward is {result.reward!r}.")
        require(result.truncated and not result.terminated, "The flags do not match the reason.")


def both_flags_may_be_true(subject: BackendSubject) -> None:
    """`terminated` and `truncated` are stored as they are; the reason is then `terminated`."""
    with subject.script({"terminated": True, "truncated": True}) as env:
        env.reset()

        result = env.step(NOTHING)

        require(result.terminated and result.truncated and result.done, f"{result!r}")
        require(result.end is not None and result.end.reason == "terminated", f"{result.end!r}")


def a_reward_of_none_means_not_scored_yet(subject: BackendSubject) -> None:
    """A reward of `None` stays `None`, and does not become 0."""
    with subject.script({}, {"reward": 0.0}) as env:
        env.reset()

        rewards = [env.step(NOTHING).reward, env.step(NOTHING).reward]

        require(rewards[0] is None and rewards[1] == 0.0, f"The rewards are {rewards!r}.")


def wrong_reward_parts_are_the_environments_fault(subject: BackendSubject) -> None:
    """Reward parts that do not sum to the reward end the episode as an error."""
    right = {"reward": 3.0, "info": {"reward_parts": {"a": 1.0, "b": 2.0}}}
    wrong = {"reward": 4.0, "info": {"reward_parts": {"a": 1.0, "b": 2.0}}}
    with subject.script(right, wrong) as env:
        env.reset()

        results = [env.step(NOTHING), env.step(NOTHING)]

        require(results[0].reward_parts == {"a": 1.0, "b": 2.0}, f"{results[0].reward_parts!r}")
        require(not results[1].valid, f"Wrong parts were accepted: {results[1]!r}.")


def logs_travel_with_the_step(subject: BackendSubject) -> None:
    """Events of a step come first in its requests."""
    with subject.script({"log": "hello"}, {}) as env:
        env.reset()

        requests = env.step(NOTHING).requests

        require(requests[0] == LogEvent("hello"), f"The requests begin with {requests[0]!r}.")
        require(isinstance(requests[-1], NeedAction), f"They end with {requests[-1]!r}.")


def a_tool_call_waits_for_its_answer(subject: BackendSubject) -> None:
    """While a tool call is open, actions are refused, and the answer is not a step."""
    with subject.script({"tool": "search"}, {"reward": 1.0}) as env:
        env.reset()

        result = env.step(NOTHING)

        call = result.tool_calls[0]
        require((call.name, call.arguments) == ("search", {"at": 1}), f"The call is {call!r}.")
        require(not result.needs, f"An action is needed: {result.needs!r}.")
        refuses(lambda: env.step(NOTHING), ToolCallOpenError, "An action while a tool call waits")
        refuses(lambda: env.step(ToolResult("no-such-call")), ToolCallOpenError, "A wrong call_id")
        answered = env.step(ToolResult(call.call_id, {"found": 3}))
        require(answered.step_index == 1, f"The answer counts as step {answered.step_index}.")
        require("found" in answered.observation.text, f"The answer was lost: {answered!r}.")
        require(env.step(NOTHING).step_index == 2, "The episode did not continue.")


def an_answer_without_a_tool_call_is_refused(subject: BackendSubject) -> None:
    """A `ToolResult` without an open tool call is refused."""
    with subject.script({"reward": 1.0}) as env:
        env.reset()

        refuses(
            lambda: env.step(ToolResult("call-1")), ActionError, "An answer without a tool call"
        )


def a_task_reaches_the_environment(subject: BackendSubject) -> None:
    """A task is found by its id, shown in the result, or refused; without one it is drawn."""
    with subject.script({}) as env:
        chosen = env.reset(task="third")
        state = _state(env)
        drawn = [env.reset(seed=9).task_id, env.reset(seed=9).task_id]

        require(chosen.task_id == state.task == "third", f"{chosen.task_id!r}, {state.task!r}")
        require(drawn[0] in ("first", "second"), f"Drawn from the wrong split: {drawn[0]!r}.")
        require(drawn[0] == drawn[1], f"The same seed drew {drawn}.")
        refusal = refuses(lambda: env.reset(task="thrid"), TaskError, "An unknown task")
        require("third" in str(refusal), f"The nearest task is not named: {refusal}")


def what_is_private_stays_with_the_environment(subject: BackendSubject) -> None:
    """Only the environment sees the private part of a task; a caller does not."""
    with subject.script({}) as env:
        assert env.tasks is not None
        task = env.tasks.get("third")
        result = env.reset(task=task)
        state = _state(env)

        require(state.knows_answer, "The private part of the task did not reach the environment.")
        for shown in (repr(task), repr(pickle.dumps(task)), repr(result), repr(state)):
            require(PRIVATE_ANSWER not in shown, f"A caller can see the private part: {shown}.")


def options_and_names_reach_the_environment(subject: BackendSubject) -> None:
    """Options and the caller's episode ID arrive unchanged."""
    with subject.script({}) as env:
        result = env.reset(options={"text": "given"}, episode_id="mine")

        require(result.observation.text == "given", f"The options were lost: {result!r}.")
        require(result.episode_id == "mine", f"The id became {result.episode_id!r}.")
        require(env.state().episode_id == "mine", f"state() names {env.state().episode_id!r}.")


def a_wrong_type_is_refused_by_its_path(subject: BackendSubject) -> None:
    """A field of the wrong type is refused by its path, as a dict and as an object."""
    with subject.script({}) as env:
        env.reset()

        refusal = refuses(lambda: env.step({"number": "one"}), ActionError, "A string as a number")

        require("action.number" in str(refusal), f"The path is missing: {refusal}")
        refusal = refuses(lambda: env.step({"nmuber": 1}), ActionError, "A misspelled field")
        require("'number'" in str(refusal), f"The nearest field is not named: {refusal}")
        require(_state(env).calls == 0, "A refused action reached the environment.")


def a_step_may_refuse_its_action(subject: BackendSubject) -> None:
    """An `ActionError` of the author's code refuses the action; the episode is unchanged."""
    with subject.make(
        subject.scripted, script=[{"reward": 1.0}, {"log": "on"}, {}], refuses="no", autoreset=True
    ) as env:
        env.reset(seed=5)
        before = env.step({"text": "yes"})

        refusal = refuses(lambda: env.step({"text": "no"}), ActionError, "A step that refuses")

        require("'no' is refused here" in str(refusal), f"The reason is missing: {refusal}")
        again = refuses(lambda: env.step({"text": "no"}), ActionError, "A second refusal")
        require(str(again) == str(refusal), f"It was refused with {refusal}, then with {again}.")
        after = env.step({"text": "yes"})
        require(after.step_index == 2, f"The step after two refusals is {after.step_index}.")
        require(after.episode_id == before.episode_id, "The refusal began another episode.")
        require(after.observation.at == 2, f"The script is at {after.observation.at}.")
        require(_state(env).step_count == 2, f"{_state(env).step_count} steps are counted.")


def agents_may_have_their_actions_refused(subject: BackendSubject) -> None:
    """After a refused action the same agents must act, with the same pending rewards."""
    script = [{"rewards": {"a": 1.0, "b": 10.0}, "act": ["b"]}, {"rewards": {"a": 2.0}}, {}]
    with subject.make(AGENTS, script=script, refuses="no", first=["a"]) as env:
        env.reset()
        env.step({"a": NOTHING})

        refuses(lambda: env.step({"b": {"text": "no"}}), ActionError, "A step that refuses")

        after = env.step({"b": {"text": "yes"}})
        require(after.step_index == 2, f"The step after a refusal is {after.step_index}.")
        pending = {need.agent_id: need.reward for need in after.needs}
        require(pending == {"a": 3.0, "b": None}, f"The pending rewards are {pending!r}.")


def no_environment_return_value_crashes_the_caller(subject: BackendSubject) -> None:
    """An invalid value returned from `step` is an error of the environment, with a cause."""
    for nonsense in (None, 3, "text", [1, 2], {"observation": 1}):
        with subject.script({"returns": nonsense}) as env:
            env.reset()

            result = env.step(NOTHING)

            end = result.end
            require(
                end is not None and end.blame == "environment" and bool(end.cause),
                f"step() returned {nonsense!r}, and the end is {end!r}.",
            )


def agents_may_join_and_leave(subject: BackendSubject) -> None:
    """Agents can join and leave early, with their last reward, and act in the given order."""
    script = [
        {"rewards": {"a": 1.0, "b": 10.0}, "act": ["b"]},
        {"rewards": {"a": 2.0, "b": 20.0}, "join": ["c"], "leave": ["a"], "act": ["c"]},
        {"rewards": {"b": 30.0, "c": 300.0}},
    ]
    with subject.make(
        AGENTS, agents=["a", "b"], possible_agents=["a", "b", "c"], first=["a"], script=script
    ) as env:
        start = env.reset()
        first = env.step({"a": NOTHING})
        second = env.step({"b": NOTHING})
        last = env.step({"c": NOTHING})

        turns = [[n.agent_id for n in result.needs] for result in (start, first, second, last)]
        require(turns == [["a"], ["b"], ["c"], []], f"The turns are {turns}.")
        require(first.needs[0].reward == 10.0, f"The reward of 'b' is {first.needs[0].reward!r}.")
        left = [event for event in second.events if isinstance(event, AgentEnd)]
        require(
            left == [AgentEnd("a", ScriptedObservation(2, "a", reward=2.0, done=True), 3.0)],
            f"The agent that left got {left!r}.",
        )
        rewards = last.end.rewards if last.end else None
        require(rewards == {"b": 50.0, "c": 300.0}, f"The rewards at the end are {rewards!r}.")


def a_failure_rewards_no_agent(subject: BackendSubject) -> None:
    """With several agents, a failure rewards no agent, and all see the last good observation."""
    with subject.make(AGENTS, script=[{"rewards": {"a": 1.0}}, {"raise": "no more"}]) as env:
        env.reset()
        good = env.step({"a": NOTHING, "b": NOTHING})

        result = env.step({"a": NOTHING, "b": NOTHING})

        require(result.done and not result.valid, f"The result is {result!r}.")
        require(all(map(math.isnan, result.reward.values())), f"The rewards are {result.reward!r}.")
        require(
            result.observation == good.observation, f"The observation is {result.observation!r}."
        )


def an_unsupported_seed_is_refused(subject: BackendSubject) -> None:
    """A seed for an environment that takes none is refused, and nothing is reset."""
    with subject.make("pkg://envweave.testing.scripted:SeedlessEnvironment") as env:
        refuses(lambda: env.reset(seed=1), SeedError, "A seed for an environment that takes none")

        require("seed" not in env.reset().info, "info shows a seed although none is supported.")


def _state(env: Env) -> ScriptedState:
    state = env.state()
    assert isinstance(state, ScriptedState)
    return state


def a_fork_continues_from_the_very_state(subject: BackendSubject) -> None:
    """A fork continues as the episode would have, also after its parent was closed."""
    entries: list[dict[str, Any]] = [{"reward": float(i)} for i in range(4)]
    with subject.script(*entries, forkable=True) as env:
        env.reset(seed=5, task="second")
        env.step({"text": "before"})
        left, right = env.fork(2)
        expected = [env.step({"text": "after"}) for _ in entries[1:]]
    shown = []
    for child in (left, right):
        with child:
            shown.append([child.step({"text": "after"}) for _ in entries[1:]])
    for row in shown:
        for one, other in zip(expected, row, strict=True):
            require(one.observation == other.observation, f"{other!r} follows, not {one!r}.")
            require(one.reward == other.reward, f"The reward is {other.reward!r}.")
            require(one.step_index == other.step_index, f"It is step {other.step_index}.")
            require(one.task_id == other.task_id, f"The task is {other.task_id!r}.")
    require(shown[0][-1].done, "The last step of the fork does not end its episode.")


def a_snapshot_is_restored_many_times(subject: BackendSubject) -> None:
    """A snapshot brings the same state back each time, as an episode of its own."""
    with subject.script({"reward": 1.0}, {"reward": 2.0}, {}, forkable=True) as env:
        env.reset(seed=5)
        before = env.step({"text": "before"})
        point = env.snapshot()
        seen = []
        for _ in range(2):
            start = env.restore(point)
            require(start.observation == before.observation, f"It shows {start.observation!r}.")
            require(start.step_index == 1, f"It is step {start.step_index}.")
            require(start.episode_id != before.episode_id, "It has the id of the old episode.")
            seen.append(env.step({"text": "after"}).observation)
        require(seen[0] == seen[1], f"{seen[0]!r} and {seen[1]!r} follow.")


def agents_are_forked_with_what_they_are_owed(subject: BackendSubject) -> None:
    """A fork knows who lives, who must act, and what each has earned since it last acted."""
    entries = [{"rewards": {"a": 1.0, "b": 2.0}, "act": ["a"]}, {"rewards": {"b": 4.0}}, {}]
    with subject.make(AGENTS, script=entries, forkable=True) as env:
        env.reset(seed=5)
        before = env.step({"a": NOTHING, "b": NOTHING})
        point = env.snapshot()
        expected = env.step({"a": NOTHING})

        start = env.restore(point)

        require(start.needs == before.needs, f"{start.needs!r} is asked, not {before.needs!r}.")
        require(env.step({"a": NOTHING}).needs == expected.needs, "Other agents are asked next.")


BACKEND_CHECKS: list[Check[BackendSubject]] = [
    Check(run)
    for run in (
        a_failing_step_ends_the_episode_with_a_blame,
        a_failure_under_autoreset_begins_a_new_episode,
        a_failing_reset_runs_once_and_reports_why,
        a_failed_environment_is_replaced_and_its_seeds_continue,
        a_failed_autoreset_is_reported_and_needs_a_reset,
        the_agents_own_fault_is_a_valid_outcome,
        both_flags_may_be_true,
        a_reward_of_none_means_not_scored_yet,
        wrong_reward_parts_are_the_environments_fault,
        logs_travel_with_the_step,
        a_tool_call_waits_for_its_answer,
        an_answer_without_a_tool_call_is_refused,
        a_task_reaches_the_environment,
        what_is_private_stays_with_the_environment,
        options_and_names_reach_the_environment,
        a_wrong_type_is_refused_by_its_path,
        a_step_may_refuse_its_action,
        agents_may_have_their_actions_refused,
        no_environment_return_value_crashes_the_caller,
        agents_may_join_and_leave,
        a_failure_rewards_no_agent,
        an_unsupported_seed_is_refused,
        a_fork_continues_from_the_very_state,
        a_snapshot_is_restored_many_times,
        agents_are_forked_with_what_they_are_owed,
    )
]

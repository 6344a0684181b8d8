"""For each promise something that breaks it, and the check that catches it."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import envweave as ew
from envweave.api import Env
from envweave.errors import ActionError, ClosedError, ResetNeededError, SeedError
from envweave.examples import CounterAction, CounterEnv
from envweave.testing import ENVIRONMENT_CHECKS, ScriptedAgents, Subject
from envweave.testing.backend_checks import BACKEND_CHECKS, BackendSubject
from envweave.types import AgentEnd, EpisodeEnd, NeedAction, StepResult

CHECKS = {check.name: check for check in ENVIRONMENT_CHECKS}
BACKEND = {check.name: check for check in BACKEND_CHECKS}


# Environments that break a promise


@dataclass
class Shown(ew.Observation):
    value: float = 0.0


class Sound(ew.Environment):
    """Breaks nothing; three steps, a draw each."""

    def reset(self, *, seed: int | None = None) -> Shown:
        self.rng, self.at = random.Random(seed), 0
        return Shown(self.rng.random())

    def step(self, action: CounterAction) -> Shown:
        self.at += 1
        return Shown(self.rng.random(), reward=1.0, done=self.at == 3)


class Raises(Sound):
    def step(self, action: CounterAction) -> Shown:
        raise RuntimeError("broken on purpose")


class GlobalRandomness(Sound):
    def reset(self, *, seed: int | None = None) -> Shown:
        random.seed(seed)
        self.at = 0
        return Shown(random.random())

    def step(self, action: CounterAction) -> Shown:
        self.at += 1
        return Shown(random.random(), reward=1.0, done=self.at == 3)


class GlobalNumpyRandomness(GlobalRandomness):
    def reset(self, *, seed: int | None = None) -> Shown:
        np.random.seed(seed % 2**32)
        self.at = 0
        return Shown(np.random.random())

    def step(self, action: CounterAction) -> Shown:
        self.at += 1
        return Shown(np.random.random(), reward=1.0, done=self.at == 3)


class DropsTheSeed(Sound):
    def reset(self, *, seed: int | None = None) -> Shown:
        return super().reset(seed=None)


class RemembersTheLastEpisode(Sound):
    total = 0

    def step(self, action: CounterAction) -> Shown:
        shown = super().step(action)
        self.total += 1
        shown.value = float(self.total)
        return shown


class WritesIntoOldObservations(Sound):
    def reset(self, *, seed: int | None = None) -> Shown:
        self.shared: dict[str, Any] = {"count": 0}
        shown = super().reset(seed=seed)
        shown.metadata = self.shared
        return shown

    def step(self, action: CounterAction) -> Shown:
        self.shared["count"] += 1
        shown = super().step(action)
        shown.metadata = self.shared
        return shown


class ShowsWhatItsHintsDeny(Sound):
    def step(self, action: CounterAction) -> Shown:
        shown = super().step(action)
        shown.value = "three"
        return shown


class MiscountsItsState(Sound):
    @property
    def state(self) -> ew.State:
        return ew.State(episode_id="mine", step_count=7)


class LeavesAThread(Sound):
    def reset(self, *, seed: int | None = None) -> Shown:
        self.stop = threading.Event()
        STOPS.append(self.stop)
        threading.Thread(target=self.stop.wait, args=(60.0,), daemon=True).start()
        return super().reset(seed=seed)


STOPS: list[threading.Event] = []


# Backends that break a promise: a sound session behind a transport that spoils it


class Spoilt:
    """Passes every call on; subclasses spoil one thing."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.interface, self.tasks = inner.interface, inner.tasks

    @property
    def agents(self) -> list[str]:
        return self.inner.agents

    def reset(self, **keywords: Any) -> Any:
        return self.inner.reset(**keywords)

    def step(self, action: Any) -> Any:
        return self.inner.step(action)

    def state(self) -> Any:
        return self.inner.state()

    def close(self) -> None:
        self.inner.close()


class ResetsBehindYourBack(Spoilt):
    """Continues silently on a fresh episode."""

    def step(self, action: Any) -> Any:
        try:
            return self.inner.step(action)
        except ResetNeededError:
            self.inner.reset()
            return self.inner.step(action)


class ForgetsWhoActs(Spoilt):
    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        result._asked = ()
        return result


class SaysTheEndTwice(Spoilt):
    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        if result.end is not None:
            result._events = (*result._events, result.end)
        return result


class ShowsTheNextEpisodesFirst(Spoilt):
    """What Gymnasium before 1.0 did: the final observation is lost in an autoreset."""

    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        if result.ready is not None:
            result.observation = result.ready.initial_obs
        return result


class ResetsOneStepLate(Spoilt):
    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        if result.ready is not None:
            result.ready, result._asked = None, ()
        return result


class MergesTheFlags(Spoilt):
    """`done` alone: a cut is told as a termination."""

    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        result.terminated, result.truncated = result.done, False
        return result


class PaysFailuresNothing(Spoilt):
    """A failure becomes a reward of 0."""

    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        if not result.valid:
            result.reward, result.end = 0.0, EpisodeEnd("truncated")
        return result


class TakesAnyAction(Spoilt):
    """`{"dleta": 1}` is taken as a default."""

    def step(self, action: Any) -> Any:
        try:
            return self.inner.step(action)
        except ActionError:
            return self.inner.step(CounterAction(delta=0))


class HarmsTheEpisode(Spoilt):
    def step(self, action: Any) -> Any:
        try:
            return self.inner.step(action)
        except ActionError:
            self.inner.step(CounterAction(delta=0))
            raise


class DropsSeeds(Spoilt):
    def reset(self, *, seed: Any = None, **keywords: Any) -> Any:
        return self.inner.reset(**keywords)


class TakesSeedsNobodyHonours(Spoilt):
    def reset(self, *, seed: Any = None, **keywords: Any) -> Any:
        try:
            return self.inner.reset(seed=seed, **keywords)
        except SeedError:
            return self.inner.reset(**keywords)


class RepeatsOneSeed(Spoilt):
    def reset(self, *, seed: Any = None, **keywords: Any) -> Any:
        return self.inner.reset(seed=5 if seed is None else seed, **keywords)


class CrashesOnOptions(Spoilt):
    def reset(self, *, options: Any = None, **keywords: Any) -> Any:
        if options is not None:
            raise KeyError("options")
        return self.inner.reset(**keywords)


class WorksAfterClose(Spoilt):
    def close(self) -> None:
        pass


class ClosesOnce(Spoilt):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise ClosedError("closed already")
        self.closed = True
        self.inner.close()


class LetsAnybodyAct(Spoilt):
    def step(self, action: Any) -> Any:
        asked = self.inner.session._ledger.asked
        spare = next(iter(action.values()), {})
        return self.inner.step({agent: action.get(agent, spare) for agent in asked})


class LosesWhatWasEarnedWaiting(Spoilt):
    """A NeedAction carries only the last step's reward."""

    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        result._asked = tuple(
            NeedAction(n.observation, n.action_mask, result.reward.get(n.agent_id), n.agent_id)
            for n in result.needs
        )
        return result


class TellsLeaversTwice(Spoilt):
    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        self.left = getattr(self, "left", ()) + tuple(
            event for event in result._events if isinstance(event, AgentEnd)
        )
        result._events = self.left
        return result


class FlattensAgents(Spoilt):
    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        result.reward = sum(reward or 0.0 for reward in result.reward.values())
        return result


class SpoilsParts(Spoilt):
    def step(self, action: Any) -> Any:
        result: StepResult[Any] = self.inner.step(action)
        result.info = {**result.info, "reward_parts": {"a": 99.0}}
        return result


class RetriesReset(Spoilt):
    """A failing reset is run a second time: the old `except TypeError` way."""

    def reset(self, **keywords: Any) -> Any:
        try:
            return self.inner.reset(**keywords)
        except ew.errors.ResetFailedError:
            self.inner.session.environment._fail_resets = frozenset()
            self.inner.reset(**keywords)
            raise


class CountsAnswersAsSteps(Spoilt):
    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        if isinstance(action, ew.ToolResult):
            result.step_index += 1
        return result


class SwallowsLogs(Spoilt):
    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        result._events = ()
        return result


class ScoresWhatIsNotScored(Spoilt):
    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        result.reward = result.reward or 0.0
        return result


class BlamesNobody(Spoilt):
    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        if result.end is not None:
            result.end = EpisodeEnd("truncated")
        return result


class HidesFailedResets(Spoilt):
    def step(self, action: Any) -> Any:
        result = self.inner.step(action)
        result.info.pop("reset_error", None)
        return result


class TakesAnswersNobodyAskedFor(Spoilt):
    def step(self, action: Any) -> Any:
        return self.inner.step({} if isinstance(action, ew.ToolResult) else action)


class DropsWhatResetIsGiven(Spoilt):
    def reset(self, *, seed: Any = None, **keywords: Any) -> Any:
        return self.inner.reset(seed=seed)


def environment_subject(environment: Any, spoil: type[Spoilt] = Spoilt) -> Subject:
    def open_env(*, autoreset: bool = False) -> Env:
        made = ew.make(environment, autoreset=autoreset)
        return Env(spoil(made._transport), made.id)

    return Subject(open_env, max_steps=50)


def backend_subject(spoil: type[Spoilt]) -> BackendSubject:
    def make_env(env_id: str, **options: Any) -> Env:
        made = ew.make(env_id, **options)
        return Env(spoil(made._transport), made.id)

    return BackendSubject(make_env)


def truncating() -> ew.Environment:
    return ew.TimeLimit(Sound(), max_steps=2)


def turns() -> ScriptedAgents:
    script = [
        {"rewards": {"a": 1.0, "b": 1.0}, "act": ["b"]},
        {"rewards": {"a": 2.0}, "join": ["c"], "act": ["c"]},
        {"rewards": {"a": 4.0}, "leave": ["b"], "act": ["a"]},
        {"rewards": {"a": 8.0}, "act": ["c"]},
        {"rewards": {"c": 1.0}},
    ]
    return ScriptedAgents(["a", "b"], script, possible_agents=["a", "b", "c"], first=["a"])


# (promise of the design, what is broken, the check that catches it)
BROKEN = [
    (1, CounterEnv, ResetsBehindYourBack, "step_before_reset_is_refused"),
    (1, Sound, ResetsBehindYourBack, "step_after_the_end_is_refused"),
    (2, Sound, ForgetsWhoActs, "every_result_says_what_happens_next"),
    (2, Sound, SaysTheEndTwice, "an_episode_ends_exactly_once"),
    (2, turns, LetsAnybodyAct, "only_those_asked_may_act"),
    (2, turns, LosesWhatWasEarnedWaiting, "what_needs_carry_sums_to_what_was_earned"),
    (2, turns, TellsLeaversTwice, "an_agent_leaves_once"),
    (3, Sound, ShowsTheNextEpisodesFirst, "the_final_observation_survives_an_autoreset"),
    (3, Sound, ResetsOneStepLate, "an_autoreset_travels_in_the_last_result"),
    (3, WritesIntoOldObservations, Spoilt, "observations_do_not_change_later"),
    (4, truncating, MergesTheFlags, "flags_and_reason_agree"),
    (5, Raises, Spoilt, "an_episode_can_be_played"),
    (6, CounterEnv, TakesAnyAction, "an_unknown_field_is_refused"),
    (6, Sound, HarmsTheEpisode, "a_refused_action_leaves_the_episode_unharmed"),
    (7, Sound, DropsSeeds, "a_seed_is_honoured_or_refused"),
    (7, DropsTheSeed, Spoilt, "the_same_seed_gives_the_same_episode"),
    (7, RemembersTheLastEpisode, Spoilt, "the_same_seed_gives_the_same_episode"),
    (7, GlobalRandomness, Spoilt, "sessions_share_no_randomness"),
    (7, GlobalNumpyRandomness, Spoilt, "sessions_share_no_randomness"),
    (7, Sound, RepeatsOneSeed, "later_episodes_have_seeds_of_their_own"),
    (7, Sound, CrashesOnOptions, "options_are_taken_or_refused"),
    (9, Sound, WorksAfterClose, "close_may_be_called_twice"),
    (9, Sound, ClosesOnce, "close_may_be_called_twice"),
    (9, LeavesAThread, Spoilt, "close_leaves_no_thread_behind"),
    (10, turns, FlattensAgents, "results_are_keyed_by_agent"),
    (11, Sound, SpoilsParts, "reward_parts_sum_to_the_reward"),
    (0, ShowsWhatItsHintsDeny, Spoilt, "observations_fit_their_spec"),
    (0, MiscountsItsState, Spoilt, "state_names_the_episode"),
]

BROKEN_BACKENDS = [
    (2, SwallowsLogs, "logs_travel_with_the_step"),
    (2, CountsAnswersAsSteps, "a_tool_call_waits_for_its_answer"),
    (4, MergesTheFlags, "both_flags_may_be_true"),
    (5, PaysFailuresNothing, "a_failing_step_ends_the_episode_with_an_owner"),
    (5, RetriesReset, "a_failing_reset_runs_once_and_tells_why"),
    (5, ResetsOneStepLate, "a_failure_under_autoreset_begins_a_new_episode"),
    (6, TakesAnyAction, "a_wrong_type_is_refused_by_its_path"),
    (7, TakesSeedsNobodyHonours, "a_seed_nobody_takes_is_refused"),
    (5, HidesFailedResets, "a_failed_autoreset_is_told_and_asks_for_a_reset"),
    (5, BlamesNobody, "the_agents_own_fault_is_a_valid_outcome"),
    (5, BlamesNobody, "no_environment_return_value_crashes_the_caller"),
    (5, BlamesNobody, "a_failure_among_agents_is_nobodys_reward"),
    (6, TakesAnswersNobodyAskedFor, "an_answer_nobody_asked_for_is_refused"),
    (7, DropsWhatResetIsGiven, "a_task_reaches_the_environment"),
    (7, DropsWhatResetIsGiven, "options_and_names_reach_the_environment"),
    (10, SwallowsLogs, "agents_may_come_and_go"),
    (11, BlamesNobody, "wrong_reward_parts_are_the_environments_fault"),
    (11, ScoresWhatIsNotScored, "a_reward_of_none_means_not_scored_yet"),
]


@pytest.fixture(autouse=True)
def _stop_threads() -> Any:
    yield
    while STOPS:
        STOPS.pop().set()


def _id(case: tuple[Any, ...]) -> str:
    promise, *things, check = case
    names = [thing.__name__ for thing in things if thing is not Spoilt]
    return f"promise{promise}-{'-'.join(names)}-{check}"


@pytest.mark.parametrize("case", BROKEN, ids=_id)
def test_what_breaks_a_promise_is_caught_by_its_check(case: tuple[Any, ...]) -> None:
    _, environment, spoil, name = case

    outcome = CHECKS[name].outcome(environment_subject(environment, spoil))

    assert outcome.status == "failed", outcome
    assert outcome.detail


@pytest.mark.parametrize("case", BROKEN_BACKENDS, ids=_id)
def test_a_backend_that_breaks_a_promise_is_caught_by_its_check(case: tuple[Any, ...]) -> None:
    _, spoil, name = case

    outcome = BACKEND[name].outcome(backend_subject(spoil))

    assert outcome.status == "failed", outcome
    assert outcome.detail


@pytest.mark.parametrize("environment", [Sound, CounterEnv, truncating, turns])
@pytest.mark.parametrize("name", CHECKS)
def test_what_is_sound_passes_every_check(environment: Any, name: str) -> None:
    outcome = CHECKS[name].outcome(environment_subject(environment))

    assert outcome.ok, outcome


def test_every_promise_has_something_that_breaks_it() -> None:
    in_process = {1, 2, 3, 4, 5, 6, 7, 9, 10, 11}  # 8 is about connections

    covered = {case[0] for case in (*BROKEN, *BROKEN_BACKENDS)}

    assert covered >= in_process


def test_every_check_is_shown_able_to_fail() -> None:
    shown = {case[-1] for case in (*BROKEN, *BROKEN_BACKENDS)}

    unproven = {*CHECKS, *BACKEND} - shown

    assert unproven == set()

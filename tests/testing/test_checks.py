"""For each promise, an environment or backend that breaks it, and the check that catches it."""

from __future__ import annotations

from typing import Any

import pytest
from environments.nonconforming import (
    STOPS,
    BlamesNobody,
    Breaking,
    ClosesOnce,
    CountsAnswersAsSteps,
    CountsRefusals,
    CrashesOnOptions,
    DropsSeeds,
    DropsTheSeed,
    DropsWhatResetIsGiven,
    FailsOnOneKind,
    FailsOnRefusals,
    FlattensAgents,
    ForgetsWhatForksAreOwed,
    ForgetsWhoActs,
    GlobalNumpyRandomness,
    GlobalRandomness,
    HandsOutWholeTasks,
    HarmsTheEpisode,
    HidesFailedResets,
    KeepsWhatFailed,
    LeavesAThread,
    LetsAnybodyAct,
    LosesWhatWasEarnedWaiting,
    MergesTheFlags,
    MiscountsItsState,
    PaysFailuresNothing,
    Raises,
    RefusesOneKind,
    RemembersTheLastEpisode,
    RepeatsOneSeed,
    ResetsBehindYourBack,
    ResetsOneStepLate,
    RestartsForks,
    RestoresOnce,
    RetriesReset,
    SaysTheEndTwice,
    ScoresWhatIsNotScored,
    ShowsTheNextEpisodesFirst,
    ShowsWhatItsHintsDeny,
    Sound,
    SpoilsParts,
    SwallowsLogs,
    TakesAnswersNobodyAskedFor,
    TakesAnyAction,
    TakesSeedsNobodyHonours,
    TellsLeaversTwice,
    WorksAfterClose,
    WritesIntoOldObservations,
)

import envweave as ew
from envweave.api import Env
from envweave.examples import CounterEnv
from envweave.testing import ENVIRONMENT_CHECKS, ScriptedAgents, Subject
from envweave.testing.backend_checks import BACKEND_CHECKS, BackendSubject
from envweave.vector.forking import Siblings

CHECKS = {check.name: check for check in ENVIRONMENT_CHECKS}
BACKEND = {check.name: check for check in BACKEND_CHECKS}


def broken(made: Env, breaking: type[Breaking]) -> Env:
    """Return an environment and forks of it that break one promise."""
    siblings = Siblings(lambda: broken(made._siblings.open(), breaking), is_logged=True)
    return Env(breaking(made._transport), made.id, siblings)


def environment_subject(environment: Any, breaking: type[Breaking] = Breaking) -> Subject:
    def open_env(*, autoreset: bool = False) -> Env:
        return broken(ew.make(environment, autoreset=autoreset), breaking)

    return Subject(open_env, max_steps=50)


def backend_subject(breaking: type[Breaking]) -> BackendSubject:
    def make_env(env_id: str, **options: Any) -> Env:
        return broken(ew.make(env_id, **options), breaking)

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
    (2, turns, LetsAnybodyAct, "only_agents_that_must_act_may_act"),
    (2, turns, LosesWhatWasEarnedWaiting, "rewards_in_requests_sum_to_the_total"),
    (2, turns, TellsLeaversTwice, "an_agent_leaves_once"),
    (3, Sound, ShowsTheNextEpisodesFirst, "the_final_observation_survives_an_autoreset"),
    (3, Sound, ResetsOneStepLate, "an_autoreset_travels_in_the_last_result"),
    (3, Sound, WritesIntoOldObservations, "observations_do_not_change_later"),
    (4, truncating, MergesTheFlags, "flags_and_reason_agree"),
    (5, Raises, Breaking, "an_episode_can_be_played"),
    (6, CounterEnv, TakesAnyAction, "an_unknown_field_is_refused"),
    (6, Sound, HarmsTheEpisode, "a_refused_action_leaves_the_episode_unharmed"),
    (7, Sound, DropsSeeds, "a_seed_is_honored_or_refused"),
    (7, DropsTheSeed, Breaking, "the_same_seed_gives_the_same_episode"),
    (7, RemembersTheLastEpisode, Breaking, "the_same_seed_gives_the_same_episode"),
    (7, GlobalRandomness, Breaking, "sessions_share_no_randomness"),
    (7, GlobalNumpyRandomness, Breaking, "sessions_share_no_randomness"),
    (7, Sound, RepeatsOneSeed, "later_episodes_have_their_own_seeds"),
    (7, Sound, CrashesOnOptions, "options_are_taken_or_refused"),
    (9, Sound, WorksAfterClose, "close_may_be_called_twice"),
    (9, Sound, ClosesOnce, "close_may_be_called_twice"),
    (9, LeavesAThread, Breaking, "close_leaves_no_thread_behind"),
    (10, turns, FlattensAgents, "results_are_keyed_by_agent"),
    (11, Sound, SpoilsParts, "reward_parts_sum_to_the_reward"),
    (12, Sound, RestartsForks, "a_fork_continues_from_the_very_state"),
    (0, ShowsWhatItsHintsDeny, Breaking, "observations_fit_their_spec"),
    (0, FailsOnOneKind, Breaking, "each_kind_of_action_can_be_taken"),
    (0, RefusesOneKind, Breaking, "each_kind_of_action_can_be_taken"),
    (0, MiscountsItsState, Breaking, "state_names_the_episode"),
]

BROKEN_BACKENDS = [
    (2, SwallowsLogs, "logs_travel_with_the_step"),
    (2, CountsAnswersAsSteps, "a_tool_call_waits_for_its_answer"),
    (4, MergesTheFlags, "both_flags_may_be_true"),
    (5, PaysFailuresNothing, "a_failing_step_ends_the_episode_with_a_blame"),
    (5, RetriesReset, "a_failing_reset_runs_once_and_reports_why"),
    (5, KeepsWhatFailed, "a_failed_environment_is_replaced_and_its_seeds_continue"),
    (5, ResetsOneStepLate, "a_failure_under_autoreset_begins_a_new_episode"),
    (6, TakesAnyAction, "a_wrong_type_is_refused_by_its_path"),
    (7, TakesSeedsNobodyHonours, "an_unsupported_seed_is_refused"),
    (5, HidesFailedResets, "a_failed_autoreset_is_reported_and_needs_a_reset"),
    (5, BlamesNobody, "the_agents_own_fault_is_a_valid_outcome"),
    (5, BlamesNobody, "no_environment_return_value_crashes_the_caller"),
    (5, BlamesNobody, "a_failure_rewards_no_agent"),
    (6, TakesAnswersNobodyAskedFor, "an_answer_without_a_tool_call_is_refused"),
    (7, DropsWhatResetIsGiven, "a_task_reaches_the_environment"),
    (7, DropsWhatResetIsGiven, "options_and_names_reach_the_environment"),
    (10, SwallowsLogs, "agents_may_join_and_leave"),
    (11, BlamesNobody, "wrong_reward_parts_are_the_environments_fault"),
    (11, ScoresWhatIsNotScored, "a_reward_of_none_means_not_scored_yet"),
    (12, RestartsForks, "a_fork_continues_from_the_very_state"),
    (12, RestoresOnce, "a_snapshot_is_restored_many_times"),
    (12, ForgetsWhatForksAreOwed, "agents_are_forked_with_what_they_are_owed"),
    (13, HandsOutWholeTasks, "what_is_private_stays_with_the_environment"),
    (14, FailsOnRefusals, "a_step_may_refuse_its_action"),
    (14, CountsRefusals, "a_step_may_refuse_its_action"),
    (14, FailsOnRefusals, "agents_may_have_their_actions_refused"),
]


@pytest.fixture(autouse=True)
def _stop_threads() -> Any:
    yield
    while STOPS:
        STOPS.pop().set()


def _id(case: tuple[Any, ...]) -> str:
    promise, *things, check = case
    names = [thing.__name__ for thing in things if thing is not Breaking]
    return f"promise{promise}-{'-'.join(names)}-{check}"


@pytest.mark.parametrize("case", BROKEN, ids=_id)
def test_a_broken_promise_is_caught_by_its_check(case: tuple[Any, ...]) -> None:
    _, environment, breaking, name = case

    outcome = CHECKS[name].outcome(environment_subject(environment, breaking))

    assert outcome.status == "failed", outcome
    assert outcome.detail


@pytest.mark.parametrize("case", BROKEN_BACKENDS, ids=_id)
def test_a_backend_that_breaks_a_promise_is_caught_by_its_check(case: tuple[Any, ...]) -> None:
    _, breaking, name = case

    outcome = BACKEND[name].outcome(backend_subject(breaking))

    assert outcome.status == "failed", outcome
    assert outcome.detail


@pytest.mark.parametrize("environment", [Sound, CounterEnv, truncating, turns])
@pytest.mark.parametrize("name", CHECKS)
def test_a_sound_environment_passes_every_check(environment: Any, name: str) -> None:
    outcome = CHECKS[name].outcome(environment_subject(environment))

    assert outcome.ok, outcome


def test_every_promise_has_something_that_breaks_it() -> None:
    in_process = {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14}  # 8 is about connections

    covered = {case[0] for case in (*BROKEN, *BROKEN_BACKENDS)}

    assert covered >= in_process


def test_every_check_is_shown_able_to_fail() -> None:
    shown = {case[-1] for case in (*BROKEN, *BROKEN_BACKENDS)}

    unproven = {*CHECKS, *BACKEND} - shown

    assert unproven == set()

"""`StepResult` and `ResetResult`: how they are made, read, shown and copied."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import envweave as ew
from envweave.errors import SpecError
from envweave.types import (
    AgentEnd,
    AutoResetReady,
    EpisodeEnd,
    LogEvent,
    NeedAction,
    ResetResult,
    StepResult,
    ToolCallRequest,
)

FIELDS = (
    "observation",
    "reward",
    "terminated",
    "truncated",
    "info",
    "end",
    "ready",
    "episode_id",
    "step_index",
    "task_id",
    "requests",
)


@dataclass
class Shown(ew.Observation):
    value: int = 0


def full() -> StepResult[Shown]:
    return StepResult(
        Shown(1),
        0.5,
        terminated=True,
        truncated=True,
        info={"a": [1], "metrics": {"m": 1}},
        requests=[LogEvent("x"), EpisodeEnd("terminated"), AutoResetReady(Shown(2))],
        episode_id="e",
        step_index=3,
        task_id="t",
    )


def parts(result: StepResult[Any]) -> dict[str, Any]:
    return {name: getattr(result, name) for name in FIELDS}


def test_positional_arguments_come_in_gymnasiums_order():
    result = StepResult("seen", 1.5, False, True, {"k": 1})

    assert list(result) == ["seen", 1.5, False, True, {"k": 1}]


def test_a_step_result_unpacks_to_five_and_a_reset_result_to_two():
    observation, reward, terminated, truncated, info = StepResult("seen", 1.5)
    first, first_info = ResetResult("first", {"seed": 1})

    assert (observation, reward, terminated, truncated, info) == ("seen", 1.5, False, False, {})
    assert (first, first_info) == ("first", {"seed": 1})
    assert (len(StepResult(1)), len(ResetResult(1))) == (5, 2)


def test_obs_is_another_name_of_the_observation():
    assert StepResult("seen").obs == StepResult(obs="seen").observation == "seen"
    assert ResetResult("seen").obs == ResetResult(obs="seen").observation == "seen"


@pytest.mark.parametrize("given", [{}, {"observation": 1, "obs": 2}])
@pytest.mark.parametrize("kind", [StepResult, ResetResult])
def test_a_result_has_exactly_one_observation(kind, given):
    with pytest.raises(SpecError, match="Pass `observation`, or `obs`"):
        kind(**given)


@pytest.mark.parametrize("done", [True, np.True_])
def test_done_alone_means_terminated(done):
    result = StepResult(observation="last", reward=1.0, done=done)

    assert (result.terminated, result.truncated, result.done) == (True, False, True)
    assert result.end == EpisodeEnd("terminated")


def test_done_beside_truncated_does_not_make_it_terminated():
    result = StepResult("last", 1.0, truncated=True, done=True)

    assert (result.terminated, result.truncated) == (False, True)
    assert result.end == EpisodeEnd("truncated")


def test_not_done_is_not_done():
    result = StepResult("seen", done=False)

    assert (result.done, result.end, result.terminated) == (False, None, False)


@pytest.mark.parametrize(
    ("terminated", "truncated", "reason"),
    [(True, False, "terminated"), (False, True, "truncated"), (True, True, "terminated")],
)
@pytest.mark.parametrize("kind", [bool, np.bool_])
def test_either_flag_ends_the_episode_numpys_bools_too(terminated, truncated, reason, kind):
    result = StepResult("last", 0.0, kind(terminated), kind(truncated))

    assert (result.terminated, result.truncated) == (terminated, truncated)
    assert result.done is True
    assert result.end == EpisodeEnd(reason)
    assert result.needs == []


@pytest.mark.parametrize(
    ("flags", "reason"), [({"a": True, "b": False}, "terminated"), ({"a": False}, "truncated")]
)
def test_done_beside_the_flags_of_several_agents_ends_the_episode(flags, reason):
    result = StepResult({"a": 1}, {"a": 0.0}, flags, {"a": True}, done=True)

    assert (result.done, result.terminated) == (True, flags)
    assert result.end == EpisodeEnd(reason)


def test_an_agent_that_left_does_not_end_the_episode():
    result = StepResult({"a": 1}, {"a": 0.0}, {"a": True, "b": False}, {"a": False})

    assert (result.done, result.end) == (False, None)


def test_a_reset_result_is_a_step_result_that_is_not_scored():
    result = ResetResult("first", {"seed": 1}, episode_id="e", task_id="t")

    assert isinstance(result, StepResult)
    assert (result.reward, result.done, result.valid, result.step_index) == (None, False, True, 0)
    assert result.requests == [NeedAction("first")]


def test_an_unnamed_agent_gets_its_mask_and_reward():
    result = StepResult("seen", 0.5, info={"action_mask": [1, 0]})

    assert result.needs == [NeedAction("seen", [1, 0], 0.5, "agent")]


def test_requests_come_in_the_order_in_which_they_hold():
    given = [
        NeedAction("b", agent_id="b"),
        EpisodeEnd("truncated"),
        LogEvent("one"),
        AgentEnd("a", "last"),
        AutoResetReady("new"),
        ToolCallRequest("c", "search"),
    ]

    result = StepResult("seen", requests=given)

    assert [request.type for request in result.requests] == [
        "log_event",
        "agent_end",
        "episode_end",
        "auto_reset_ready",
        "tool_call_request",
        "need_action",
    ]
    assert sorted(map(repr, result.requests)) == sorted(map(repr, given))
    assert result.events == [given[2], given[3], given[5]]
    assert result.tool_calls == given[5:]
    assert (result.end, result.ready, result.needs) == (given[1], given[4], [given[0]])


def test_current_is_the_new_episodes_first_observation_after_an_autoreset():
    ended = StepResult(
        "last", requests=[EpisodeEnd("terminated"), AutoResetReady("first", {"action_mask": [1]})]
    )

    assert (ended.observation, ended.current) == ("last", "first")
    assert (StepResult("seen").current, ResetResult("first").current) == ("seen", "first")


def test_without_a_named_agent_an_autoreset_asks_for_the_new_episode():
    result = StepResult("last", 1.0, terminated=True)
    result.ready = AutoResetReady("first", {"action_mask": [1]})

    assert result.needs == [NeedAction("first", [1])]
    assert [request.type for request in result.requests] == [
        "episode_end",
        "auto_reset_ready",
        "need_action",
    ]


@pytest.mark.parametrize(
    ("blame", "valid"),
    [(None, True), ("agent", True), ("environment", False), ("infrastructure", False)],
)
def test_a_step_is_valid_unless_others_than_the_agent_failed(blame, valid):
    end = EpisodeEnd("error", blame=blame)

    assert (end.valid, StepResult("seen", end=end).valid) == (valid, valid)


def test_reward_parts_and_metrics_are_in_the_info():
    info: dict[str, Any] = {"metrics": {"m": 1}}
    result = StepResult("seen", 1.5, info=info, reward_parts={"a": 1.0, "b": 0.5})

    assert (result.reward_parts, result.metrics) == ({"a": 1.0, "b": 0.5}, {"m": 1})
    assert result.info == {"metrics": {"m": 1}, "reward_parts": {"a": 1.0, "b": 0.5}}
    assert info == {"metrics": {"m": 1}}
    assert (StepResult("seen").reward_parts, StepResult("seen").metrics) == ({}, {})


def test_lists_that_a_result_hands_out_are_the_callers_own():
    result = StepResult("seen", requests=[LogEvent("x"), NeedAction("seen")])

    result.needs.clear()
    result.events.clear()
    result.requests.clear()

    assert len(result.requests) == 2


def test_a_result_shows_what_it_holds():
    assert repr(StepResult("seen", 0.5)) == (
        "StepResult(observation='seen', reward=0.5, terminated=False, truncated=False)"
    )
    assert repr(ResetResult("first", {"seed": 1})) == (
        "ResetResult(observation='first', info={'seed': 1})"
    )
    assert repr(StepResult("last", 1.0, True)).endswith(f"end={EpisodeEnd('terminated')!r})")


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda result: pickle.loads(pickle.dumps(result))],
    ids=["copy", "deepcopy", "pickle"],
)
@pytest.mark.parametrize(
    "make", [full, lambda: ResetResult(Shown(1), {"seed": 1}), lambda: StepResult(Shown(1), 0.5)]
)
def test_a_result_can_be_copied_and_pickled(duplicate, make):
    result = make()

    twin = duplicate(result)

    assert type(twin) is type(result)
    assert parts(twin) == parts(result)


def test_a_deep_copy_shares_nothing():
    result = full()

    twin = copy.deepcopy(result)
    twin.info["a"].append(2)
    twin.observation.value = 9

    assert (result.info["a"], result.observation.value) == ([1], 1)


# `done` by agent


def test_done_by_agent_means_terminated_by_agent() -> None:
    result = StepResult({"a": 1, "b": 2}, {"a": 0.0, "b": 0.0}, done={"a": True, "b": False})

    assert result.terminated == {"a": True, "b": False}
    assert result.truncated == {"a": False, "b": False}
    assert result.done is False


@pytest.mark.parametrize("over", [True, False])
def test_done_for_all_is_the_end_of_the_episode(over: bool) -> None:
    result = StepResult({"a": 1}, done={"a": False, "__all__": over})

    assert result.done is over


def test_a_numpy_bool_is_a_bool_as_done() -> None:
    assert StepResult(0, done=np.True_).terminated is True
    assert StepResult(0, done={"a": np.False_}).terminated == {"a": False}


@pytest.mark.parametrize("done", ["yes", 3, [True], {"a": "no"}, {"a": None}, 0.0])
def test_a_done_that_is_not_a_bool_is_refused(done: object) -> None:
    with pytest.raises(SpecError, match="done must be a bool, or a dict of bools by agent id, got"):
        StepResult(0, done=done)  # type: ignore[arg-type]


def test_done_by_agent_besides_other_flags_is_refused() -> None:
    with pytest.raises(SpecError, match="contradicts"):
        StepResult({"a": 0}, terminated={"a": True}, done={"a": True})

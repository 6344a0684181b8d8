"""OpenEnv's unmodified client against our server."""

from __future__ import annotations

from typing import Any

import pytest
from environments.served import FailsOrWaits, Pixels, Talk
from servers import served

from envweave.examples import CounterEnv

pytestmark = pytest.mark.slow  # starts servers and clients of OpenEnv

PLAYS = ["play_async", "play_sync"]


@pytest.mark.parametrize("play", PLAYS)
def test_an_episode_from_its_reset_to_its_end(peer: Any, play: str) -> None:
    calls = [
        ["reset", {"seed": 7, "episode_id": "e1"}],
        ["step", {"delta": 1}],
        ["state", None],
        ["step", {"delta": 5, "metadata": {}}],
    ]

    with served(CounterEnv) as url:
        results = peer(play, url, calls=calls)

    ended = {"episode_end": {"reason": "terminated", "blame": None, "cause": None}}
    assert results == [
        {"observation": {"value": 0}, "reward": None, "done": False, "metadata": {"seed": 7}},
        {"observation": {"value": 1}, "reward": 1.0, "done": False, "metadata": {}},
        {"episode_id": "e1", "step_count": 1},
        {"observation": {"value": 6}, "reward": 5.0, "done": True, "metadata": ended},
    ]


@pytest.mark.parametrize("play", PLAYS)
def test_a_refusal_is_an_error_and_the_episode_continues(peer: Any, play: str) -> None:
    calls = [
        ["step", {"delta": 1}],
        ["reset", {}],
        ["step", {"dleta": 1}],
        ["step", {"delta": 4}],
        ["step", {"delta": 1}],
    ]

    with served(CounterEnv) as url:
        early, _, wrong, last, late = peer(play, url, calls=calls)

    assert "before its first episode" in early["error"]
    assert "(code: EXECUTION_ERROR)" in early["error"]
    assert "Did you mean 'delta'? (code: VALIDATION_ERROR)" in wrong["error"]
    assert last["done"] is True
    assert "after the end of its episode" in late["error"]


@pytest.mark.slow  # starts server processes
def test_worker_processes_show_the_same(peer: Any) -> None:
    calls = [["reset", {"seed": 7}], ["step", {"delta": 1}], ["state", None]]

    with served("counter-v0", workers=1) as url:
        first, second, state = peer("play_async", url, calls=calls)

    assert first["observation"] == {"value": 0}
    assert (second["observation"], second["reward"]) == ({"value": 1}, 1.0)
    assert state["step_count"] == 1


def test_an_environment_of_dataclasses_shows_flat_fields(peer: Any) -> None:
    with served("lineworld-v0") as url:
        (first,) = peer("play_async", url, calls=[["reset", {"seed": 1}]])

    assert first["observation"].keys() == {"position", "goal"}


def test_arrays_texts_and_numbers_are_the_field_value(peer: Any) -> None:
    with served(Pixels) as url:
        seen = peer("play_async", url, calls=[["reset", {}], ["step", {"value": 2}]])
    with served(Talk) as url:
        replies = peer("play_async", url, calls=[["reset", {}], ["step", {"value": "hi"}]])

    assert [one["observation"] for one in seen] == [
        {"value": [[0.0, 0.0], [0.0, 0.0]]},
        {"value": [[2.0, 2.0], [2.0, 2.0]]},
    ]
    assert [one["observation"]["value"] for one in replies] == ["Say something.", "HI"]


def test_a_keyword_of_reset_is_an_option_where_options_are_taken_and_else_ignored(
    peer: Any,
) -> None:
    with served(Pixels) as url:
        (taken,) = peer("play_async", url, calls=[["reset", {"start": 2}]])
    with served(Talk) as url:
        (ignored,) = peer("play_async", url, calls=[["reset", {"start": 2}]])

    assert taken["observation"]["value"][0][0] == 2.0
    assert ignored["observation"] == {"value": "Say something."}


def test_an_unsupported_seed_is_refused(peer: Any) -> None:
    with served(Talk) as url:
        (refused,) = peer("play_async", url, calls=[["reset", {"seed": 3}]])

    assert "takes no seed" in refused["error"]
    assert "(code: VALIDATION_ERROR)" in refused["error"]


def test_a_truncated_episode_is_done_and_marked_as_truncated(peer: Any) -> None:
    with served(Pixels) as url:
        _, last = peer("play_async", url, calls=[["reset", {}], ["step", {"value": 3}]])

    assert last["done"] is True
    assert last["metadata"]["episode_end"]["reason"] == "truncated"


def test_a_failed_step_has_no_reward_and_names_who_is_to_blame(peer: Any) -> None:
    calls = [["reset", {}], ["step", {"do": "go"}], ["step", {"do": "fail"}], ["reset", {}]]

    with served(FailsOrWaits) as url:
        _, _, failed, again = peer("play_async", url, calls=calls)

    assert (failed["observation"], failed["reward"], failed["done"]) == ({"steps": 1}, None, True)
    end = failed["metadata"]["episode_end"]
    assert (end["reason"], end["blame"]) == ("error", "environment")
    assert "as requested" in end["cause"]
    assert again["done"] is False


def test_sixteen_clients_at_once_have_a_session_each(peer: Any) -> None:
    with served(CounterEnv) as url:
        seen = peer("crowd", url, count=16, actions=[{"delta": 1}, {"delta": 1}])

    assert seen == [[i, {"value": 1}, {"value": 2}][: 2 + i % 2] for i in range(16)]


def test_a_full_server_refuses_and_takes_the_same_client_when_it_has_room(peer: Any) -> None:
    with served(CounterEnv, max_sessions=2, queue_size=0) as url:
        refused, taken = peer("one_too_many", url, room=2)

    assert refused["error"].startswith(
        "RuntimeError: Server error: The server is full: 2 of 2 sessions"
    )
    assert refused["error"].endswith("(code: CAPACITY_REACHED)")
    assert taken["observation"] == {"value": 0}


def test_a_client_that_vanishes_in_mid_step_frees_its_session_after_the_step(
    peer: Any,
) -> None:
    FailsOrWaits.waiting.clear()
    FailsOrWaits.go_on.clear()

    with served(FailsOrWaits, max_sessions=1) as url:
        peer("connect_and_vanish", url, action={"do": "wait"})
        assert FailsOrWaits.waiting.wait(20)
        FailsOrWaits.go_on.set()
        (first,) = peer("play_async", url, calls=[["reset", {}]])

    assert first["observation"] == {"steps": 0}


def test_no_environment_is_left_when_openenv_clients_are_gone(peer: Any) -> None:
    before = FailsOrWaits.open

    with served(FailsOrWaits) as url:
        peer("play_sync", url, calls=[["reset", {}], ["step", {"do": "go"}]])

    assert FailsOrWaits.open == before


def test_their_tool_client_finds_a_session_and_no_tools(peer: Any) -> None:
    with served(CounterEnv) as url:
        reply = peer("use_tools", url)

    assert reply["first"]["value"] == 0
    assert reply["tools"] == reply["after"]["result"]["tools"] == []
    assert "There is no tool 'hammer'" in reply["called"]["error"]
    assert "There is no session" in reply["gone"]["error"]["message"]


def test_a_stock_mcp_client_of_the_first_generation_plays_an_episode(peer: Any) -> None:
    with served(CounterEnv) as url:
        reply = peer("speak_mcp", url)

    assert (reply["name"], reply["version"]) == ("CounterEnv", "2025-11-25")
    assert reply["tools"] == ["reset", "step", "state"]
    (no_tool, hammer), (_, begun), (is_refused, refused), (_, first), (_, last) = reply["results"]
    assert (no_tool, is_refused) == (True, True)
    assert "There is no tool 'hammer'" in hammer["error"]["message"]
    assert refused["error"]["message"].startswith("action.delta")
    assert [one["observation"]["value"] for one in (begun, first, last)] == [0, 1, 10]
    assert (first["step_index"], last["done"]) == (1, True)


def test_their_client_shows_a_token_and_is_refused_without(peer: Any) -> None:
    calls = [["reset", {}]]

    with served(CounterEnv, token="open sesame") as url:
        (refused,) = peer("play_async", url, calls=calls)
        headers = {"Authorization": "Bearer open sesame"}
        (taken,) = peer("play_async", url, calls=calls, headers=headers)

    assert "token" in refused["error"]
    assert taken["observation"] == {"value": 0}


def test_openenv_validate_passes(peer: Any) -> None:
    with served(CounterEnv) as url:
        reply = peer("run_command", arguments=["validate", "--url", url])

    assert reply["code"] == 0, reply["printed"]
    assert "Verdict: PASS" in reply["printed"]
    assert "FAIL" not in reply["printed"]

"""OpenEnv's dialect on `/ws`, frame by frame."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from environments.served import FailsOrWaits
from servers import WebSocket, open_websocket, served
from websockets.sync.client import connect

from envweave.errors import ConnectionLostError
from envweave.examples import CounterEnv, TicTacToeAction, TicTacToeEnv


@contextmanager
def connected(url: str, path: str = "/ws") -> Iterator[WebSocket]:
    socket = open_websocket(url, path)
    try:
        yield socket
    finally:
        socket.close()


def ask(socket: WebSocket, request: Any) -> Any:
    socket.send(request if isinstance(request, str | bytes) else json.dumps(request))
    return receive_message(socket)


def receive_message(socket: WebSocket) -> Any:
    return json.loads(str(socket.receive(20)))


def code(reply: Any) -> str:
    assert reply["type"] == "error"
    return reply["data"]["code"]


RESET = {"type": "reset"}
STEP = {"type": "step", "data": {"delta": 1}}


def test_additional_fields_are_beside_the_observation_never_inside() -> None:
    with served(CounterEnv) as url, connected(url) as socket:
        first = ask(socket, {**RESET, "data": {"seed": 5, "episode_id": "e"}})
        second = ask(socket, {"type": "step", "data": {"delta": 3}})

    assert first == {
        "type": "observation",
        "data": {
            "observation": {"value": 0},
            "reward": None,
            "done": False,
            "metadata": {"seed": 5},
            "terminated": False,
            "truncated": False,
            "episode_id": "e",
            "step_index": 0,
        },
    }
    assert second["data"]["observation"] == {"value": 3}
    assert [one["type"] for one in second["data"]["requests"]] == ["episode_end"]


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("{", "INVALID_JSON"),
        (b'{"type": "reset"}', "INVALID_JSON"),
        ("[]", "VALIDATION_ERROR"),
        ({}, "UNKNOWN_TYPE"),
        ({"type": "jump"}, "UNKNOWN_TYPE"),
        ({"type": ["reset"]}, "UNKNOWN_TYPE"),
        ({"type": "step"}, "VALIDATION_ERROR"),
        ({"type": "step", "data": 1}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": []}, "VALIDATION_ERROR"),
        ({"type": "reset", "seed": 1}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"seed": -1}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"task": "a"}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"options": {"a": 1}}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"delta": "one"}}, "VALIDATION_ERROR"),
    ],
)
def test_an_invalid_frame_is_an_error_and_the_episode_continues(frame: Any, expected: str) -> None:
    with served(CounterEnv) as url, connected(url) as socket:
        ask(socket, RESET)

        refused = ask(socket, frame)
        after = ask(socket, STEP)

    assert code(refused) == expected
    assert after["data"]["observation"] == {"value": 1}


def test_requests_sent_ahead_are_answered_one_by_one_in_their_order() -> None:
    with served(CounterEnv) as url, connected(url) as socket:
        for request in (RESET, STEP, {"type": "state"}, {"type": "jump"}, STEP):
            socket.send(json.dumps(request))
        replies = [receive_message(socket) for _ in range(5)]

    assert [one["type"] for one in replies] == [
        *("observation", "observation", "state", "error", "observation")
    ]
    assert replies[-1]["data"]["observation"] == {"value": 2}


def test_close_is_not_answered_and_ends_the_connection() -> None:
    with served(CounterEnv) as url, connected(url) as socket:
        ask(socket, RESET)
        socket.send('{"type": "close"}')

        with pytest.raises(ConnectionLostError, match="code 1000"):
            socket.receive(20)


def test_a_full_server_sends_one_error_and_closes() -> None:
    with (
        served(CounterEnv, max_sessions=1, queue_size=0) as url,
        connected(url) as first,
        connected(url) as second,
    ):
        ask(first, RESET)

        refused = ask(second, RESET)
        with pytest.raises(ConnectionLostError, match="code 1000"):
            second.receive(20)

    assert code(refused) == "CAPACITY_REACHED"


def test_a_session_is_closed_with_its_connection() -> None:
    before = FailsOrWaits.open

    with served(FailsOrWaits, max_sessions=1) as url:
        for _ in range(3):
            with connected(url) as socket:
                assert ask(socket, RESET)["type"] == "observation"

    assert FailsOrWaits.open == before


def test_pings_are_answered_while_a_step_runs() -> None:
    """OpenEnv's clients give up on a server that leaves one unanswered for 20 seconds."""
    FailsOrWaits.waiting.clear()
    FailsOrWaits.go_on.clear()

    with served(FailsOrWaits) as url, connect(url.replace("http", "ws") + "/ws") as socket:
        socket.send(json.dumps(RESET))
        socket.recv(20)
        socket.send('{"type": "step", "data": {"do": "wait"}}')
        assert FailsOrWaits.waiting.wait(20)
        answered = socket.ping().wait(20)
        FailsOrWaits.go_on.set()
        message = json.loads(socket.recv(20))

    assert answered
    assert message["data"]["observation"] == {"steps": 1}


def test_with_several_agents_rewards_are_separate_and_requests_name_the_agent() -> None:
    with served(TicTacToeEnv, TicTacToeAction) as url, connected(url) as socket:
        ask(socket, RESET)
        message = ask(socket, {"type": "step", "data": {"x": {"cell": 0}}})["data"]

    assert message["reward"] is None
    assert message["rewards"].keys() == {"x", "o"}
    assert message["observation"]["o"].keys() == {"board", "mark"}
    assert [one["agent_id"] for one in message["requests"]] == ["o"]


def test_older_clients_use_tools_through_special_steps() -> None:
    with served(CounterEnv) as url, connected(url) as socket:
        ask(socket, RESET)
        listed = ask(socket, {"type": "step", "data": {"type": "list_tools"}})
        called = ask(socket, {"type": "step", "data": {"type": "call_tool", "tool_name": "saw"}})
        state = ask(socket, {"type": "state"})

    assert listed["data"]["observation"] == {"tools": []}
    assert called["data"]["observation"]["error"]["error_type"] == "tool_not_found"
    assert state["data"]["step_count"] == 0


def test_an_unknown_session_cannot_be_driven() -> None:
    with served(CounterEnv) as url, connected(url, "/ws?session_id=nobody") as socket:
        refused = receive_message(socket)

    assert code(refused) == "SESSION_ERROR"

"""Requests: their type strings, and their way over a wire."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

import envweave as ew
from envweave.types import (
    AgentEnd,
    AutoResetReady,
    EpisodeEnd,
    LogEvent,
    NeedAction,
    Request,
    ToolCallRequest,
    ToolResult,
)


@dataclass
class Shown(ew.Observation):
    value: int = 0


EVERY = [
    (NeedAction(Shown(1), [1, 0], 0.5, "a"), "need_action"),
    (AgentEnd("a", Shown(1), 0.5, terminated=False, truncated=True), "agent_end"),
    (EpisodeEnd("lost", "infrastructure", "gone", {"a": None, "b": 1.0}), "episode_end"),
    (AutoResetReady(Shown(1), {"seed": 1}, "e", "t"), "auto_reset_ready"),
    (ToolCallRequest("c", "search", {"q": "x"}), "tool_call_request"),
    (LogEvent("hello", "warning", {"k": 1}), "log_event"),
]
Typed = (
    NeedAction[Shown]
    | AgentEnd[Shown]
    | EpisodeEnd
    | AutoResetReady[Shown]
    | ToolCallRequest
    | LogEvent
)


@pytest.mark.parametrize(("request_", "type_"), EVERY)
def test_a_request_has_a_type_string_on_itself_and_on_the_wire(request_, type_):
    wire = msgspec.json.decode(msgspec.json.encode(request_))

    assert request_.type == type(request_).type == type_
    assert wire["type"] == type_
    assert next(iter(wire)) == "type"


@pytest.mark.parametrize("codec", [msgspec.json, msgspec.msgpack], ids=["json", "msgpack"])
@pytest.mark.parametrize("request_", [request for request, _ in EVERY])
def test_a_request_comes_back_with_the_authors_observation(codec, request_):
    back = codec.decode(codec.encode(request_), type=Typed)

    assert back == request_
    assert type(back) is type(request_)


@pytest.mark.parametrize("codec", [msgspec.json, msgspec.msgpack], ids=["json", "msgpack"])
def test_a_list_of_requests_comes_back_by_tag_where_the_observation_is_unknown(codec):
    requests = [request for request, _ in EVERY]

    back = codec.decode(codec.encode(requests), type=list[Request])

    assert [type(request) for request in back] == [type(request) for request in requests]
    assert back[0].observation["value"] == 1


def test_a_request_of_an_unknown_type_is_refused():
    with pytest.raises(msgspec.ValidationError, match="nonsense"):
        msgspec.json.decode(b'{"type": "nonsense"}', type=Request)


def test_an_answer_to_a_tool_call_comes_back():
    answer = ToolResult("c", value={"hits": [1, 2]})

    assert msgspec.json.decode(msgspec.json.encode(answer), type=ToolResult) == answer


@pytest.mark.parametrize("request_", [request for request, _ in EVERY])
def test_a_request_can_be_copied_and_pickled(request_):
    assert copy.deepcopy(request_) == pickle.loads(pickle.dumps(request_)) == request_


def test_defaults_are_not_shared():
    one, other = LogEvent("a"), LogEvent("b")

    one.data["k"] = 1
    EpisodeEnd("lost").rewards["a"] = 1.0
    AutoResetReady(1).initial_info["a"] = 1

    assert (other.data, EpisodeEnd("lost").rewards, AutoResetReady(1).initial_info) == ({}, {}, {})


def test_requests_can_be_distinguished_by_match():
    def name(request: Any) -> str:
        match request:
            case NeedAction(agent_id=agent):
                return f"act {agent}"
            case EpisodeEnd(reason=reason):
                return reason
            case _:
                return request.type

    assert [name(request) for request, _ in EVERY[:3]] == ["act a", "agent_end", "lost"]

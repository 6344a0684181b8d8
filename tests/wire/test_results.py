"""Results arrive as the session made them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from comparison import same
from fuzzing import positions, results
from hypothesis import HealthCheck, given, settings

import envweave as ew
from envweave.codec import AgentsSpec, spec_from_hint
from envweave.errors import WireError
from envweave.session import Position
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
from envweave.wire.decoding import ObservationRebuilder
from envweave.wire.encoding import JSON, MSGPACK, PLAIN_JSON, Encoding
from envweave.wire.messages import Reply, read_replies
from envweave.wire.results import (
    IDENTITY,
    Rebuild,
    as_http_payload,
    decode_result,
    encode_result,
    result_of,
)

both = pytest.mark.parametrize("encoding", [MSGPACK, JSON], ids=lambda one: one.name)


@dataclass
class Seen(ew.Observation):
    at: int
    grid: np.ndarray


SEEN = Seen(at=1, grid=np.array([1.5, np.nan]), metadata={"a": 1})
ONE = ObservationRebuilder(spec_from_hint(Seen))
SEVERAL = ObservationRebuilder(AgentsSpec({"x": spec_from_hint(Seen), "o": spec_from_hint(Seen)}))


def sent_and_read(
    encoding: Encoding, result: StepResult[Any], rebuild: Rebuild, *more: Any
) -> StepResult[Any]:
    frame = encoding.encode(
        Reply(id=1, session="s", result=encode_result(result, *(more or (None, None))))
    )
    (reply,) = read_replies(encoding.decode(frame))
    return result_of(decode_result(reply.result), rebuild)


@pytest.mark.slow  # many generated messages
@both
@given(result=results(), position=positions)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_result_arrives_as_it_was(
    encoding: Encoding, result: StepResult[Any], position: Position | None
):
    frame = encoding.encode(encode_result(result, ["x", "o"], position))

    sent = decode_result(encoding.decode(frame))

    assert result_of(sent, IDENTITY) == result
    assert (sent.agents, sent.position) == (["x", "o"], position)


@both
@pytest.mark.parametrize(
    "result",
    [
        ResetResult(SEEN, {"seed": 7}, episode_id="e-0", task_id="t"),
        StepResult(SEEN, 1.0, episode_id="e-0", step_index=1),
        StepResult(SEEN, None, terminated=True),
        StepResult(SEEN, float("nan"), end=EpisodeEnd("error", "environment", "boom")),
        StepResult(SEEN, requests=[LogEvent("hello", "warning", {"a": b"b"})]),
        StepResult(SEEN, requests=[ToolCallRequest("c", "search", {"q": 2**70})]),
        StepResult(
            SEEN,
            truncated=True,
            requests=[
                EpisodeEnd("truncated"),
                AutoResetReady(SEEN, {"seed": 8}, "e-1", "t"),
                LogEvent("a new one"),
                NeedAction(SEEN, np.array([True, False])),
            ],
        ),
    ],
    ids=lambda result: repr(result)[:20],
)
def test_observations_come_back_as_the_authors_own(encoding: Encoding, result: StepResult[Any]):
    arrived = sent_and_read(encoding, result, ONE)

    assert arrived == result
    assert same(arrived.requests, result.requests)
    assert type(arrived.current) is Seen


@both
def test_observations_of_several_agents_come_back_as_the_authors_own(encoding: Encoding):
    result = StepResult(
        {"x": SEEN, "o": SEEN},
        {"x": 1.0, "o": None},
        {"x": True, "__all__": False},
        {"x": False, "__all__": False},
        requests=[AgentEnd("x", SEEN, 1.0), NeedAction(SEEN, None, 0.5, "o")],
    )

    arrived = sent_and_read(encoding, result, SEVERAL, ["o"], Position(3, 0, 0, "p"))

    assert arrived == result
    assert type(arrived.observation["x"]) is Seen
    assert [type(one.observation) for one in arrived.requests] == [Seen, Seen]


@both
def test_an_authors_values_in_an_event_are_not_checked(encoding: Encoding):
    result = StepResult(
        {"a": 1},
        requests=[
            LogEvent("hello", "notice", {1: 2}),  # type: ignore[arg-type, dict-item]
            ToolCallRequest("c", "search", {(1, 2): 3}),  # type: ignore[dict-item]
        ],
        info={5: "five"},  # type: ignore[dict-item]
    )

    arrived = sent_and_read(encoding, result, IDENTITY)

    assert arrived == result


def test_a_result_leaves_out_defaults():
    sent = MSGPACK.decode(
        MSGPACK.encode(encode_result(StepResult(1, 0.5, step_index=2), None, None))
    )

    assert sent == {"observation": 1, "reward": 0.5, "step_index": 2}


def test_plain_http_has_every_field_by_name():
    result = StepResult(SEEN, 1.0, episode_id="e", step_index=3, task_id="t", info={"a": 1})

    spelled = json.loads(PLAIN_JSON.encode(as_http_payload(encode_result(result, None, None))))

    seen = {"reward": None, "done": False, "truncated": False, "metadata": {"a": 1}, "at": 1}
    seen["grid"] = [1.5, None]
    assert spelled == {
        "observation": seen,
        "reward": 1.0,
        "done": False,
        "terminated": False,
        "truncated": False,
        "info": {"a": 1},
        "requests": [
            {
                "type": "need_action",
                "observation": seen,
                "action_mask": None,
                "reward": 1.0,
                "agent_id": "agent",
            }
        ],
        "episode_id": "e",
        "step_index": 3,
        "task_id": "t",
    }


@pytest.mark.parametrize(
    "plain",
    [
        None,
        [],
        {},
        np.zeros(2),
        {"observation": 1, "info": np.zeros(2)},
        {"observation": 1, "info": 5},
        {"observation": 1, "end": {"type": "episode_end", "reason": "won"}},
        {"observation": 1, "events": [{"type": "need_action"}]},
        {"observation": 1, "events": [{"type": ["log_event"]}]},
        {"observation": 1, "events": [{"type": "log_event"}]},
        {"observation": 1, "events": [5]},
        {"observation": 1, "later": [{"type": "agent_end", "agent_id": [], "observation": 1}]},
        {"observation": 1, "asked": [{"observation": 1, "agent_id": 5}]},
        {"observation": 1, "asked": [5]},
        {"observation": 1, "ready": 5},
        {"observation": 1, "ready": {"initial_obs": 1, "initial_info": 5}},
        {"observation": 1, "position": [1]},
        {"observation": 1, "agents": [1]},
        {"observation": 1, "step_index": "2"},
    ],
    ids=repr,
)
def test_an_invalid_result_is_refused(plain: Any):
    with pytest.raises(WireError, match=r"^The reply has|in the reply"):
        decode_result(plain)

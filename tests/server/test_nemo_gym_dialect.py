"""NeMo-Gym's `/reset` and `/step`, with rows and responses as its agent sends them.

The package needs Python 3.13.14, so its exchanges are recorded; `nemo_gym_exchange.json` names the
source.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from environments.served import FailsOrWaits
from servers import client_of, post_step
from starlette.testclient import TestClient

import envweave as ew
from envweave.examples import TicTacToeEnv

RECORDED = json.loads(Path(__file__).with_name("nemo_gym_exchange.json").read_text())


def row(**fields: Any) -> dict[str, Any]:
    """A row of a data set, as the agent sends all of it with every request."""
    return {**copy.deepcopy(RECORDED["row"]), **fields}


def says(text: str) -> dict[str, Any]:
    """The recorded response of a model, with another text."""
    response = copy.deepcopy(RECORDED["response"])
    response["output"][0]["content"][0]["text"] = text
    return response


def calls(*made: tuple[str, str]) -> dict[str, Any]:
    """The recorded response, with function calls in place of a text."""
    response = copy.deepcopy(RECORDED["response"])
    response["output"] = [
        {"type": "function_call", "call_id": f"call_{i}", "name": name, "arguments": arguments,
         "id": f"fc_{i}", "status": "completed"}
        for i, (name, arguments) in enumerate(made)
    ]  # fmt: skip
    return response


class Rollout:
    """An episode as `gymnasium_agent` drives it: it passes the cookies on itself."""

    def __init__(self, client: TestClient, prefix: str = "", **fields: Any) -> None:
        self.client = client
        self.prefix = prefix
        self.row = row(**fields)
        self.cookies: dict[str, str] = {}
        reply = self.post("/reset", self.row)
        assert reply.status_code == 200, reply.text
        self.first = reply.json()
        self.tool = self.first["info"]["tools"][0]["name"]

    def post(self, path: str, body: Any) -> Any:
        self.client.cookies.clear()
        header = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        headers = {"Cookie": header} if header else {}
        reply = self.client.post(self.prefix + path, json=body, headers=headers)
        self.cookies |= dict(reply.cookies)
        return reply

    def step(self, response: Any, **more: Any) -> Any:
        reply = self.post("/step", {**self.row, "response": response, **more})
        return reply.json() if reply.status_code == 200 else reply


@pytest.fixture(scope="module")
def counter() -> Iterator[TestClient]:
    with client_of("counter-v0", done_at=3) as client:
        yield client


@pytest.mark.parametrize("prefix", ["", "/ng-rollout/4-0"])
def test_an_episode_of_texts_from_its_row_to_its_end(counter: TestClient, prefix: str) -> None:
    rollout = Rollout(counter, prefix, seed=7)

    first = rollout.step(says('{"delta": 1}'))
    last = rollout.step(says('I add two: {"delta": 2}'))
    late = rollout.step(says('{"delta": 1}'))

    assert '{"value":0}' in rollout.first["observation"]
    assert "JSON that fits this schema" in rollout.first["observation"]
    assert rollout.first["info"]["info"] == {"seed": 7}
    assert (first["observation"], first["reward"]) == ('{"value":1}', 1.0)
    assert (first["terminated"], first["truncated"]) == (False, False)
    assert (last["reward"], last["terminated"]) == (2.0, True)
    assert late.status_code == 409


def test_function_calls_are_answered_one_by_one(counter: TestClient) -> None:
    offered = {**RECORDED["row"]["responses_create_params"], "tools": [{"type": "function"}]}
    rollout = Rollout(counter, responses_create_params=offered)
    tool = rollout.tool

    both = rollout.step(calls((tool, '{"delta": 1}'), (tool, '{"delta": "x"}')))
    last = rollout.step(calls((tool, '{"delta": 2}'), (tool, '{"delta": 1}')))

    assert rollout.first["observation"] == '{"value":0}'  # tools need no instructions
    assert both["observation"] is None
    assert [one["call_id"] for one in both["info"]["tool_outputs"]] == ["call_0", "call_1"]
    assert both["info"]["tool_outputs"][0]["output"] == '{"value":1}'
    assert "not a valid action" in both["info"]["tool_outputs"][1]["output"]
    assert (both["reward"], last["reward"], last["terminated"]) == (1.0, 2.0, True)
    assert last["info"]["tool_outputs"][1]["output"] == "The episode is over."


def test_invalid_replies_cost_a_step_and_truncate_at_last(counter: TestClient) -> None:
    rollout = Rollout(counter)

    refused = [rollout.step(says("I would rather not.")) for _ in range(5)]

    assert all("not a valid action" in one["observation"] for one in refused)
    assert [one["reward"] for one in refused] == [0.0] * 5
    assert [one["truncated"] for one in refused] == [False] * 4 + [True]


def test_a_step_that_is_repeated_with_its_id_is_taken_once(counter: TestClient) -> None:
    rollout = Rollout(counter)

    first = rollout.step(says('{"delta": 1}'), _ng_step_request_id="turn-1")
    again = rollout.step(says('{"delta": 1}'), _ng_step_request_id="turn-1")
    second = rollout.step(says('{"delta": 1}'), _ng_step_request_id="turn-2")

    assert rollout.first["info"]["supports_step_idempotency"] is True
    assert again == first
    assert second["observation"] == '{"value":2}'


def test_closing_frees_the_session_and_may_be_repeated() -> None:
    with client_of("counter-v0", max_sessions=1, queue_timeout_s=0.1) as client:
        for _ in range(3):
            rollout = Rollout(client)
            assert rollout.first["info"]["supports_explicit_close"] is True
            assert [rollout.post("/close", {}).status_code for _ in range(2)] == [200, 200]


def test_the_end_of_an_episode_frees_its_session_too() -> None:
    with client_of("counter-v0", done_at=1, max_sessions=1, queue_timeout_s=0.1) as client:
        for _ in range(3):
            assert Rollout(client).step(says('{"delta": 1}'))["terminated"] is True


def test_a_failed_episode_is_an_error_and_never_a_reward() -> None:
    with client_of(FailsOrWaits) as client:
        rollout = Rollout(client)

        failed = rollout.step(says("fail"))

    assert failed.status_code == 503
    assert "The episode has failed (error, caused by the environment)" in failed.json()["detail"]


def test_an_episode_without_a_score_is_an_error_too() -> None:
    class Unscored(ew.Environment):
        def reset(self) -> str:
            return "begin"

        def step(self, action: str) -> tuple[str, None, bool, bool, dict[str, Any]]:
            return "end", None, True, False, {}

    with client_of(Unscored) as client:
        refused = Rollout(client).step(says("x"))

    assert refused.status_code == 409
    assert "not scored" in refused.json()["detail"]


def test_an_episode_of_one_step_is_verified() -> None:
    with client_of("gsm8k-v0") as client:
        seeded = client.post("/seed_session", json=row(task_id="train-0"))
        body = row(task_id="train-0", response=says("It is #### 72"))
        verified = client.post("/verify", json=body)
        client.cookies.clear()
        unseeded = client.post("/verify", json=body)

    assert (seeded.status_code, seeded.json()) == (200, {})
    assert verified.json()["reward"] == unseeded.json()["reward"] == 1.0
    assert verified.json()["response"] == body["response"]


def test_a_longer_episode_is_not_verified(counter: TestClient) -> None:
    refused = counter.post("/verify", json=row(response=says('{"delta": 1}')))

    assert refused.status_code == 409
    assert "gymnasium_agent" in refused.json()["detail"]


def test_plain_http_has_the_same_paths(counter: TestClient) -> None:
    counter.cookies.clear()
    plain = counter.post("/reset", json={"seed": 7}).json()
    rollout = Rollout(counter)
    rollout.step(says('{"delta": 1}'))

    assert plain["observation"]["value"] == 0
    assert post_step(counter, 2).json()["observation"]["value"] == 2


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/step", row(response=says("x")), 409),
        ("/step", row(), 409),
        ("/reset", row(task_id="nope"), 422),
        ("/reset", row(seed="x"), 422),
        ("/verify", row(), 422),
    ],
)
def test_what_does_not_fit_is_refused(
    counter: TestClient, path: str, body: Any, status: int
) -> None:
    counter.cookies.clear()

    refused = counter.post(path, json=body)

    assert refused.status_code == status
    assert refused.json()["detail"]


def test_several_agents_are_refused() -> None:
    with client_of(TicTacToeEnv) as client:
        refused = client.post("/reset", json=row())

    assert refused.status_code == 422
    assert "has 2 agents" in refused.json()["detail"]

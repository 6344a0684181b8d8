"""Plain HTTP: the default session, sessions by id, retries."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import msgspec
import pytest
from environments.served import Broken, Gated, Untyped
from servers import client_of, error_in, post_step, served, wait_for
from starlette.testclient import TestClient

import envweave as ew
from envweave import create_fastapi_app


def value_in(response: Any) -> int:
    assert response.status_code == 200, response.text
    return int(response.json()["observation"]["value"])


def test_the_default_session_persists_between_calls() -> None:
    with client_of("counter-v0", done_at=3) as client:
        first = client.post("/reset", json={"seed": 7, "episode_id": "mine"})
        second, last = post_step(client, 1), post_step(client, 2)
        state = client.get("/state")

    assert (value_in(first), first.json()["reward"], first.json()["done"]) == (0, None, False)
    assert (value_in(second), second.json()["reward"]) == (1, 1.0)
    assert (value_in(last), last.json()["done"], last.json()["truncated"]) == (3, True, False)
    assert [one["type"] for one in last.json()["requests"]] == ["episode_end"]
    assert state.json() == {"episode_id": "mine", "step_count": 2}


@pytest.mark.parametrize("path", ["/step", "/state"])
def test_the_default_session_begins_with_a_reset(path: str) -> None:
    with client_of("counter-v0") as client:
        refused = post_step(client) if path == "/step" else client.get(path)

    assert error_in(refused) == "409 reset_needed"
    assert "POST /reset" in refused.json()["error"]["message"]


def test_a_step_after_the_end_is_refused_until_the_next_reset() -> None:
    with client_of("counter-v0", done_at=1) as client:
        client.post("/reset")
        post_step(client)

        refused = post_step(client)

        assert error_in(refused) == "409 reset_needed"
        assert value_in(client.post("/reset")) == 0
        assert value_in(post_step(client)) == 1


def test_sessions_by_id_are_separate_and_can_be_closed() -> None:
    with client_of("counter-v0", done_at=100) as client:
        ids = [client.post("/sessions", json={}).json()["session_id"] for _ in range(2)]
        headers = [{"X-Session-Id": one} for one in ids]
        for one in headers:
            client.post("/reset", headers=one)
        post_step(client, 5, headers=headers[0])

        values = [value_in(post_step(client, 1, headers=one)) for one in headers]
        closed = client.delete(f"/sessions/{ids[0]}")
        again = client.delete(f"/sessions/{ids[0]}")

        assert values == [6, 1]
        assert closed.status_code == 204
        assert error_in(again) == "404 session_gone"
        assert error_in(post_step(client, headers=headers[0])) == "404 session_gone"
        assert value_in(post_step(client, headers=headers[1])) == 2


def test_a_session_may_be_opened_with_autoreset() -> None:
    with client_of("counter-v0", done_at=1) as client:
        opened = client.post("/sessions", json={"autoreset": True})
        headers = {"X-Session-Id": opened.json()["session_id"]}
        client.post("/reset", headers=headers)

        ends = [post_step(client, headers=headers).json() for _ in range(2)]

    assert opened.status_code == 201
    kinds = [[one["type"] for one in end["requests"]] for end in ends]
    assert kinds == [["episode_end", "auto_reset_ready", "need_action"]] * 2


@pytest.mark.parametrize("by_header", [False, True])
def test_a_call_that_is_repeated_gets_the_first_reply(by_header: bool) -> None:
    named: dict[str, Any] = (
        {"headers": {"Idempotency-Key": "one"}} if by_header else {"request_id": "one"}
    )
    with client_of("counter-v0", done_at=100) as client:
        client.post("/reset")
        first = post_step(client, 1, **dict(named))
        post_step(client, 1)

        again = post_step(client, 1, **dict(named))

        assert again.json() == first.json()
        assert value_in(post_step(client, 1)) == 3


def test_a_repeated_reset_begins_no_second_episode() -> None:
    with client_of("counter-v0") as client:
        first = client.post("/reset", json={"request_id": 1})

        again = client.post("/reset", json={"request_id": 1})

    assert again.json() == first.json()


def test_one_request_id_names_one_call() -> None:
    with client_of("counter-v0", done_at=100) as client:
        client.post("/reset")
        post_step(client, 1, request_id="a")

        refused = post_step(client, 2, request_id="a")

        assert error_in(refused) == "409 option_refused"
        assert value_in(post_step(client, 1)) == 2


def test_a_repeated_call_without_a_kept_reply_is_not_run_again() -> None:
    with client_of("counter-v0", done_at=100, replies_kept=2) as client:
        client.post("/reset")
        post_step(client, 1, request_id="old")
        for _ in range(3):
            post_step(client, 1)

        refused = post_step(client, 1, request_id="old")

        assert error_in(refused) == "404 session_gone"
        assert value_in(post_step(client, 1)) == 5


def test_a_call_repeated_while_it_runs_waits_for_the_first_reply() -> None:
    Gated.entered.clear()
    Gated.may_go_on.clear()
    body = {"action": True, "request_id": "one"}
    with served(Gated) as url, httpx2.Client(base_url=url) as client, ThreadPoolExecutor(2) as pool:
        client.post("/reset")
        first = pool.submit(client.post, "/step", json=body)
        assert Gated.entered.wait(20)
        again = pool.submit(client.post, "/step", json=body)

        Gated.may_go_on.set()

        assert first.result(20).json() == again.result(20).json()
        assert first.result().json()["observation"] == 1


@pytest.mark.parametrize(
    ("path", "body", "refusal", "part"),
    [
        ("/step", b"{", "400 unreadable", "JSON"),
        ("/step", b"[1]", "400 unreadable", "must be an object"),
        ("/step", b"[" * 100_000, "400 unreadable", "JSON"),
        ("/step", b"", "422 action_refused", '"action"'),
        ("/step", b'{"action": {"dleta": 1}}', "422 action_refused", "action.dleta"),
        ("/step", b'{"action": {"delta": "x"}}', "422 action_refused", "action.delta"),
        ("/step", b'{"actoin": {"delta": 1}}', "422 option_refused", "'action'"),
        ("/step", b'{"action": {"delta": 1}, "answer": {}}', "422 action_refused", "both"),
        ("/step", b'{"action": {"delta": 1}, "timeout_s": -1}', "422 option_refused", "timeout_s"),
        (
            "/step",
            b'{"action": {"delta": 1}, "request_id": []}',
            "422 option_refused",
            "request_id",
        ),
        ("/reset", b'{"seed": "x"}', "422 seed_refused", "seed"),
        ("/reset", b'{"options": {}}', "422 option_refused", "options"),
        ("/reset", b'{"task": "x"}', "422 task_refused", "task"),
        ("/reset", b'{"episode_id": 3}', "422 option_refused", "episode_id"),
        ("/sessions", b'{"autoreset": 1}', "422 option_refused", "autoreset"),
    ],
)
def test_invalid_requests_are_refused_by_name(
    path: str, body: bytes, refusal: str, part: str
) -> None:
    with client_of("counter-v0", done_at=100) as client:
        client.post("/reset")

        refused = client.post(path, content=body)

        assert error_in(refused) == refusal
        assert part in refused.json()["error"]["message"]
        assert value_in(post_step(client)) == 1


def test_unknown_paths_and_methods_are_refused_with_a_fault() -> None:
    with client_of("counter-v0") as client:
        nowhere, wrong = client.get("/setp"), client.get("/step")

    assert error_in(nowhere) == "404 not_found"
    assert error_in(wrong) == "405 unreadable"
    assert wrong.headers["Allow"] == "POST"


def test_a_failing_environment_is_reported_without_a_traceback() -> None:
    with client_of(Broken) as client:
        failed = client.post("/reset")

    assert error_in(failed) == "502 reset_failed"


def test_messagepack_is_used_if_the_client_accepts_it() -> None:
    with client_of("counter-v0") as client:
        client.post("/reset")

        reply = client.post(
            "/step",
            content=msgspec.msgpack.encode({"action": {"delta": 2}}),
            headers={"Content-Type": "application/msgpack", "Accept": "application/msgpack"},
        )

    assert reply.headers["Content-Type"] == "application/msgpack"
    assert msgspec.msgpack.decode(reply.content)["observation"]["value"] == 2


def test_a_number_that_json_has_no_word_for_is_null() -> None:
    with client_of(Untyped()) as client:
        client.post("/reset")
        failed = client.post("/step", json={"action": {"by": 1}})

    # The server does not know `Move`, so the environment gets a dict, and fails.
    assert (failed.status_code, failed.json()["reward"]) == (200, None)
    assert failed.json()["requests"][0]["reason"] == "error"


def test_an_expired_default_session_is_reported_and_reset_begins_another() -> None:
    with client_of("counter-v0", done_at=100, session_ttl_s=0.05) as client:
        client.post("/reset")
        wait_for(lambda: "envweave_sessions 0.0" in client.get("/metrics").text)

        gone = post_step(client)

        assert error_in(gone) == "404 session_gone"
        assert value_in(client.post("/reset")) == 0


def test_a_single_object_has_one_session() -> None:
    with client_of(ew.examples.CounterEnv(), queue_timeout_s=0.05) as client:
        client.post("/reset")

        refused = client.post("/sessions")

        assert error_in(refused) == "503 no_capacity"
        assert value_in(post_step(client)) == 1


def test_without_a_lifespan_it_starts_at_the_first_call_and_keeps_its_state() -> None:
    client = TestClient(create_fastapi_app("counter-v0", done_at=100))

    values = [value_in(client.post("/reset")), *(value_in(post_step(client)) for _ in range(3))]

    assert values == [0, 1, 2, 3]


def test_it_can_be_mounted_in_another_application() -> None:
    from fastapi import FastAPI

    outer = FastAPI()
    outer.mount("/counter", create_fastapi_app("counter-v0", done_at=100))
    with TestClient(outer) as client:
        client.post("/counter/reset")
        reply = client.post("/counter/step", json={"action": {"delta": 4}})
        document = client.get("/counter/openapi.json").json()

    assert value_in(reply) == 4
    assert document["servers"] == [{"url": "/counter"}]


def test_a_restarted_server_has_no_old_sessions() -> None:
    app = create_fastapi_app("counter-v0", done_at=100)

    values = []
    for _ in range(2):
        with TestClient(app) as client:
            assert post_step(client).status_code in (404, 409)
            client.post("/reset")
            values.append(value_in(post_step(client)))

    assert values == [1, 1]


def test_it_may_be_called_from_several_loops_at_once() -> None:
    app = create_fastapi_app("counter-v0", done_at=100)

    with TestClient(app) as client, TestClient(app) as other:
        client.post("/reset")
        values = [value_in(post_step(one)) for one in (client, other, TestClient(app), client)]

    assert values == [1, 2, 3, 4]

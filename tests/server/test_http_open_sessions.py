"""Opening a session over plain HTTP: a retry gets the same session, another client does not."""

from __future__ import annotations

from typing import Any

import pytest
from servers import client_of, error_in, post_step

KEY = "0a1b2c3d-4e5f-6071"


def opened(client: Any, **body: Any) -> Any:
    return client.post("/sessions", json=body)


def test_an_opening_that_is_repeated_is_the_same_session() -> None:
    with client_of("counter-v0", max_sessions=1, queue_timeout_s=0.05) as client:
        first, again = (opened(client, request_id=KEY, autoreset=True) for _ in range(2))

    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()


@pytest.mark.parametrize("request_id", [1, "1", "first", 10**30])
def test_a_request_id_that_is_easy_to_guess_opens_no_session(request_id: Any) -> None:
    with client_of("counter-v0") as client:
        refused = opened(client, request_id=request_id)
        by_header = client.post("/sessions", headers={"Idempotency-Key": str(request_id)[:5]})

    assert error_in(refused) == error_in(by_header) == "422 option_refused"
    assert "at least 16 characters" in refused.json()["error"]["message"]


def test_one_request_id_opens_no_session_of_another_kind() -> None:
    with client_of("counter-v0") as client:
        opened(client, request_id=KEY)
        refused = opened(client, request_id=KEY, autoreset=True)

    assert error_in(refused) == "409 option_refused"
    assert "an earlier call" in refused.json()["error"]["message"]


def test_an_opening_that_was_refused_may_be_tried_again() -> None:
    with client_of("counter-v0", max_sessions=1, queue_timeout_s=0.05) as client:
        there = opened(client).json()["session_id"]
        refused = opened(client, request_id=KEY)
        client.delete(f"/sessions/{there}")

        again = opened(client, request_id=KEY)

    assert refused.status_code == 503
    assert again.status_code == 201


def test_an_opening_that_is_repeated_after_its_session_was_closed_names_no_dead_session() -> None:
    with client_of("counter-v0") as client:
        there = opened(client, request_id=KEY).json()["session_id"]
        client.delete(f"/sessions/{there}")

        by_body = opened(client, request_id=KEY)
        other = opened(client, request_id=f"{KEY}-2")

    assert error_in(by_body) == "409 session_gone"
    assert "another request_id" in by_body.json()["error"]["message"]
    assert other.status_code == 201


def test_an_expired_default_session_is_reported_with_how_to_begin_another() -> None:
    with client_of("counter-v0") as client:
        client.post("/reset")
        table = client.app.state.envweave.service.table
        (session,) = table._sessions
        del table._sessions[session]

        for refused in (post_step(client), client.get("/state")):
            assert error_in(refused) == "404 session_gone"
            assert "POST /reset" in refused.json()["error"]["message"]

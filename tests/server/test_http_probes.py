"""Information about a server: health, readiness, schema, metadata, metrics, documentation."""

from __future__ import annotations

import asyncio
from typing import Any

import jsonschema
import pytest
from environments.served import Move, Rough, Seen, Untyped
from prometheus_client.parser import text_string_to_metric_families
from servers import client_of, error_in, post_step
from starlette.testclient import TestClient

import envweave as ew
from envweave import create_fastapi_app


def test_health_and_readiness_are_answered() -> None:
    with client_of("counter-v0") as client:
        health, ready = client.get("/health"), client.get("/ready")

    assert (health.status_code, health.json()) == (200, {"status": "healthy"})
    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})


def test_a_server_that_stops_is_healthy_and_not_ready() -> None:
    app = create_fastapi_app("counter-v0")
    with TestClient(app) as client:
        client.post("/reset")
        draining = client.portal.start_task_soon(app.state.envweave.service.stop, 20.0)

        while (ready := client.get("/ready")).status_code == 200:
            client.portal.call(asyncio.sleep, 0)
        health, refused, allowed = (
            client.get("/health"),
            client.post("/sessions"),
            post_step(client),
        )
        last = post_step(client, 100)
        draining.result(20)

    assert ready.json() == {"status": "unready", "reason": "it is stopping"}
    assert health.status_code == 200
    assert error_in(refused) == "503 connection_lost"
    assert (allowed.status_code, last.json()["done"]) == (200, True)


def test_the_schema_describes_actions_and_observations() -> None:
    with client_of("counter-v0") as client:
        schema = client.get("/schema").json()
        observation = client.post("/reset").json()["observation"]
        state = client.get("/state").json()

    assert schema.keys() == {"action", "observation", "state"}
    jsonschema.validate({"delta": 1}, schema["action"])
    jsonschema.validate(observation, schema["observation"])
    jsonschema.validate(state, schema["state"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"dleta": 1}, schema["action"])


def test_the_metadata_identify_an_envweave_server() -> None:
    with client_of("counter-v0", max_sessions=5) as client:
        metadata = client.get("/metadata").json()

    assert (metadata["name"], metadata["env_id"], metadata["envweave"]) == (
        "CounterEnv",
        "counter-v0",
        ew.__version__,
    )
    assert metadata["description"].startswith("Count up to")
    assert "envweave.v1.msgpack" in metadata["dialects"]
    assert metadata["limits"]["max_sessions"] == 5


def test_metrics_count_sessions_calls_and_bytes_by_kind() -> None:
    with client_of("counter-v0", done_at=100) as client:
        client.post("/reset")
        for _ in range(3):
            post_step(client)
        client.post("/step", json={"action": {"dleta": 1}})
        opened = client.post("/sessions").json()["session_id"]
        client.delete(f"/sessions/{opened}")

        text = client.get("/metrics").text

    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["envweave_sessions",] == 1
    assert found["envweave_sessions_opened_total",] == 2
    assert found["envweave_sessions_closed_total", "closed"] == 1
    assert found["envweave_calls_total", "ok", "step"] == 3
    assert found["envweave_calls_total", "action_refused", "step"] == 1
    assert found["envweave_call_duration_seconds_count", "step"] == 4
    assert found["envweave_call_duration_seconds_bucket", "+Inf", "step"] == 4
    assert found["envweave_ready",] == 1
    assert found["envweave_received_bytes_total",] > 0
    assert opened not in text


def test_labels_are_never_a_callers_own_words() -> None:
    with (
        client_of("counter-v0") as client,
        client.websocket_connect("/ws", ["envweave.v1.json"]) as line,
    ):
        line.send_json({"id": 1, "method": "a-secret", "session": "another-secret"})
        line.receive_json()

        text = client.get("/metrics").text

    assert "secret" not in text
    assert "envweave_connections 1.0" in text


def test_the_document_names_every_path_and_the_environments_own_types() -> None:
    with client_of("counter-v0") as client:
        document = client.get("/openapi.json").json()
        docs, root = client.get("/docs"), client.get("/", follow_redirects=False)

    assert document["info"]["version"].startswith("1.")
    assert document["paths"].keys() >= {
        *("/reset", "/step", "/state", "/sessions", "/sessions/{session_id}", "/mcp"),
        *("/health", "/ready", "/schema", "/metadata", "/metrics"),
    }
    assert document["components"]["schemas"]["Action"]["properties"]["delta"] == {"type": "integer"}
    assert 'href="openapi.json"' in docs.text
    assert (root.status_code, root.headers["Location"]) == (307, "/docs")


def test_the_docs_page_loads_nothing_from_another_host() -> None:
    with client_of("counter-v0") as client:
        docs, icon = client.get("/docs"), client.get("/favicon.svg")

    assert "://" not in docs.text
    assert docs.headers["content-type"] == "text/html; charset=utf-8"
    assert icon.headers["content-type"] == "image/svg+xml"


def test_the_document_has_tags_and_an_example_action() -> None:
    with client_of("counter-v0") as client:
        document = client.get("/openapi.json").json()

    assert [tag["name"] for tag in document["tags"]] == ["Play", "Sessions", "Operate"]
    operation = document["paths"]["/step"]["post"]
    assert operation["tags"] == ["Play"]
    assert operation["requestBody"]["content"]["application/json"]["example"] == {
        "action": {"delta": 1}
    }


def test_an_unknown_path_is_not_found() -> None:
    with client_of("counter-v0") as client:
        reply = client.get("/redoc")

    assert error_in(reply) == "404 not_found"


def test_routes_that_a_user_adds_are_in_the_document_too() -> None:
    app = create_fastapi_app("counter-v0")

    @app.get("/extra")
    def extra() -> int:
        return 3

    @app.get("/typed/{number}")
    def typed(number: int) -> int:
        return number

    with TestClient(app) as client:
        paths = client.get("/openapi.json").json()["paths"]
        reply, refused = client.get("/extra"), client.get("/typed/x")

    assert {"/extra", "/reset"} <= paths.keys()
    assert reply.json() == 3
    assert error_in(refused) == "422 unreadable"
    assert "number" in refused.json()["error"]["message"]


@pytest.mark.parametrize("env", [Untyped, Rough, lambda start=0: Untyped(start), Untyped()])
def test_types_that_the_hints_leave_out_are_those_the_server_is_given(env: Any) -> None:
    with client_of(env, Move, Seen) as client:
        schema = client.get("/schema").json()
        client.post("/reset")
        reply = client.post("/step", json={"action": {"by": 2}})
        refused = client.post("/step", json={"action": {"yb": 2}})

    assert schema["action"]["properties"]["by"] == {"type": "integer"}
    assert schema["observation"]["properties"]["at"] == {"type": "integer"}
    assert (reply.status_code, reply.json()["observation"]["at"]) == (200, 2)
    assert error_in(refused) == "422 action_refused"
    assert "action.yb" in refused.json()["error"]["message"]


def test_types_given_to_the_server_leave_the_constructors_keywords_as_they_are() -> None:
    with client_of(Untyped, Move, Seen, start=5) as client:
        first = client.post("/reset")

    assert first.json()["observation"]["at"] == 5


@pytest.mark.parametrize("env", ["counter-v0", ew.examples.CounterEnv, ew.examples.CounterEnv()])
def test_types_that_contradict_the_hints_are_refused(env: Any) -> None:
    with (
        pytest.raises(ew.errors.DefinitionError, match=r"CounterAction.*Move"),
        client_of(env, Move),
    ):
        pass


@pytest.mark.slow  # starts server processes
def test_types_given_to_the_server_travel_to_its_workers() -> None:
    with client_of(Untyped, Move, Seen, workers=1, start=3) as client:
        client.post("/reset")
        reply = client.post("/step", json={"action": {"by": 2}})
        refused = client.post("/step", json={"action": {"yb": 2}})
        ready = client.get("/ready").json()
        text = client.get("/metrics").text

    assert (reply.status_code, reply.json()["observation"]["at"]) == (200, 5)
    assert error_in(refused) == "422 action_refused"
    assert ready == {"status": "ready"}
    assert "envweave_workers 1.0" in text


def test_one_object_cannot_run_in_workers() -> None:
    with pytest.raises(ew.errors.OptionError, match="workers=2"):
        create_fastapi_app(Untyped(), workers=2)

"""`/openapi.json` is true: whatever it allows is answered as it says, and nothing crashes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import hypothesis
import jsonschema
import pytest
import schemathesis
from http_worlds import error_in
from starlette.testclient import TestClient

from envweave.api.serving import create_fastapi_app
from envweave.wire.faults import KINDS

CODES = {kind.code for kind in KINDS}
FEW, MANY = 6, 120


@pytest.fixture(scope="module")
def app() -> Iterator[Any]:
    """An application that lasts, whose sessions do not wait for anybody."""
    made = create_fastapi_app(
        "counter-v0", done_at=10, max_sessions=64, queue_timeout_s=0.01, session_ttl_s=5.0
    )
    with TestClient(made):
        yield made


def check_calls(app: Any, examples: int) -> set[int]:
    """Call every path as the document allows, and against it; return the statuses seen."""
    client = TestClient(app, raise_server_exceptions=False)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    seen: set[int] = set()
    for found in schema.get_all_operations():
        operation = found.ok()
        takes = (
            "requestBody" in operation.definition.raw or "parameters" in operation.definition.raw
        )
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            # What takes nothing, or anything, cannot be called wrongly.
            if mode.is_positive or (takes and operation.path != "/mcp"):
                seen |= _check(client, operation, mode, examples if takes else 1)
    return seen


def _check(client: TestClient, operation: Any, mode: Any, examples: int) -> set[int]:
    seen: set[int] = set()
    documented = operation.definition.raw["responses"]

    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def calls(case: Any) -> None:
        response = case.call(session=client)
        seen.add(response.status_code)
        about = case.as_curl_command(), response.text
        assert str(response.status_code) in documented, about
        assert response.status_code not in (500, 502), about
        if response.status_code >= 400 and operation.path != "/ready":
            assert response.json()["error"]["code"] in CODES, about

    calls()
    return seen


def test_the_document_is_valid_openapi(app: Any) -> None:
    document = TestClient(app).get("/openapi.json").json()

    for name, schema in document["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema), name
    assert document["openapi"] == "3.1.0"


@pytest.mark.slow  # starts server processes
def test_every_call_is_answered_as_the_document_says(app: Any) -> None:
    seen = check_calls(app, FEW)

    assert {200, 201, 404, 422} <= seen


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_very_many_calls_are_answered_as_the_document_says(app: Any) -> None:
    check_calls(app, MANY)


def test_after_all_of_this_it_still_serves(app: Any) -> None:
    client = TestClient(app)
    warnings.simplefilter("error")

    assert client.post("/reset").status_code == 200
    assert error_in(client.post("/step", json={})) == "422 action_refused"

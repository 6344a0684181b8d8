"""`/openapi.json` is accurate: every call that it allows is answered as documented."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from servers import client_of, error_in, process_serving

from envweave.server.http.openapi import example_of

PROGRAMS = Path(__file__).parents[1] / "support/programs"
KEY = "0a1b2c3d-4e5f-6071"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("env", ["counter-v0", "pkg://environments.served:Lamp"])
def test_schemathesis_finds_no_undocumented_response(env: str, tmp_path: Path) -> None:
    # 504 answers a deadline that cannot be met, such as 5e-324 s.
    config = '[checks]\nnot_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "504"]\n'
    (tmp_path / "schemathesis.toml").write_text(config)
    settings = {
        **os.environ,
        "SCHEMATHESIS_HOOKS": "openapi_hooks",
        "PYTHONPATH": str(PROGRAMS),
    }
    with process_serving(env, session_ttl_s=5) as server:
        found = subprocess.run(
            [
                *(Path(sys.executable).with_name("st"), "run", f"{server.url}/openapi.json"),
                *("--checks=all", "--phases=coverage,fuzzing,stateful"),
                "--exclude-path=/mcp",  # JSON-RPC, which has a schema and tests of its own
                *("--max-examples=12", "--continue-on-failure", "--seed=1"),
            ],
            env=settings,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    assert found.returncode == 0, found.stdout


def test_the_document_is_valid_openapi() -> None:
    with client_of("counter-v0") as client:
        document = client.get("/openapi.json").json()

    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    assert document["openapi"] == "3.1.0"


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_the_document_marks_paths_that_need_no_token(path: str) -> None:
    with client_of("counter-v0", token="a-secret") as client:
        shown = {"Authorization": "Bearer a-secret"}
        document = client.get("/openapi.json", headers=shown).json()

    assert document["security"] == [{"token": []}]
    assert document["paths"][path]["get"]["security"] == []


@pytest.mark.parametrize(
    ("path", "body", "is_allowed"),
    [
        ("/reset", {"seed": 3.0}, True),
        ("/reset", {"seed": -1}, False),
        ("/reset", {"request_id": 7.0}, True),
        ("/step", {"action": {"delta": 1}}, True),
        ("/step", {"action": {"delta": 1}, "answer": {"call_id": "a"}}, False),
        ("/step", {"answer": {}}, False),
        ("/step", {"answer": {"call_id": "a", "more": 1}}, False),
        ("/sessions", {"timeout_s": 1e8, "wait_s": 1e8}, True),
        ("/sessions", {"timeout_s": 1.1e8}, False),
        ("/sessions", {"wait_s": 1.1e8}, False),
        ("/sessions", {"wait_s": -1}, False),
        ("/sessions", {"wait_s": 0}, True),
    ],
)
def test_a_body_is_accepted_if_and_only_if_the_document_allows_it(
    path: str, body: dict[str, Any], is_allowed: bool
) -> None:
    with client_of("counter-v0") as client:
        document = client.get("/openapi.json").json()
        client.post("/reset")
        reply = client.post(path, json=body)

    content = document["paths"][path]["post"]["requestBody"]["content"]
    schema = {**document, **content["application/json"]["schema"]}
    assert jsonschema.Draft202012Validator(schema).is_valid(body) is is_allowed
    assert (reply.status_code < 300) is is_allowed, reply.text


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/reset", "with blanks"),
        ("/reset", "ä"),
        ("/reset", "x" * 201),
        ("/step", ""),
        ("/sessions", "too-short"),
    ],
)
def test_a_key_that_the_document_does_not_allow_is_refused_also_beside_a_request_id(
    path: str, key: str
) -> None:
    body = {"request_id": KEY, **({"action": {"delta": 1}} if path == "/step" else {})}
    with client_of("counter-v0") as client:
        client.post("/reset")
        refused = client.post(path, json=body, headers={"Idempotency-Key": key.encode()})

    assert error_in(refused) == "422 option_refused"


def test_the_document_has_every_method_of_mcp() -> None:
    with client_of("counter-v0") as client:
        mcp = client.get("/openapi.json").json()["paths"]["/mcp"]
        messages = [
            client.delete("/mcp", headers=headers).status_code
            for headers in ({}, {"Mcp-Session-Id": "none"})
        ]

    assert mcp.keys() == {"post", "delete"}
    assert {str(status) for status in messages} <= mcp["delete"]["responses"].keys()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 3, "maximum": 8},
        {"type": "number", "maximum": -0.5},
        {"enum": ["left", "right"]},
        {"type": "string", "minLength": 3},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2},
        {"anyOf": [{"type": "string", "pattern": "^a$"}, {"type": "null"}, {"type": "boolean"}]},
        {"type": "array", "prefixItems": [{"type": "integer"}, {"const": "x"}]},
        {
            "$ref": "#/$defs/A",
            "$defs": {"A": {"type": "object", "properties": {"b": {"default": 2}}}},
        },
        {
            "type": "object",
            "properties": {"a": {"type": ["integer", "null"]}, "metadata": {"default": {}}},
            "required": ["a"],
        },
    ],
)
def test_an_example_is_allowed_by_its_schema(schema: dict[str, Any]) -> None:
    example = example_of(schema, schema)

    assert example is not None
    jsonschema.Draft202012Validator(schema).validate(example)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "string", "pattern": "^a$"},
        {"type": "object", "properties": {"a": {"pattern": "^a$"}}, "required": ["a"]},
        {"$ref": "#"},
    ],
)
def test_a_schema_that_is_too_hard_has_no_example(schema: dict[str, Any]) -> None:
    assert example_of(schema, schema) is None

"""Environment variables of a container."""

from __future__ import annotations

import json
from typing import Any

import pytest

from envweave.cli.container_main import main, read
from envweave.errors import OptionError

EVERYWHERE = {"host": "0.0.0.0", "port": 8000}


@pytest.mark.parametrize(
    ("variables", "config"),
    [
        ({"ENVWEAVE_ENV": "echo-v0"}, {"id": "echo-v0", **EVERYWHERE}),
        (
            {"ENVWEAVE_ENV": "echo-v0", "ENVWEAVE_CONFIG": '{"id": "counter-v0", "port": 9}'},
            {"id": "counter-v0", "host": "0.0.0.0", "port": 9},
        ),
        (
            {"ENVWEAVE_ENV": "echo-v0", "ENVWEAVE_UDS": "/run/x.sock", "ENVWEAVE_CONFIG": ""},
            {"id": "echo-v0", **EVERYWHERE, "uds": "/run/x.sock", "uds_mode": 0o666},
        ),
    ],
)
def test_the_image_names_the_environment_and_variables_add_settings(
    variables: dict[str, str], config: dict[str, Any]
) -> None:
    assert read(variables) == config


def test_the_token_is_taken_out_of_the_variables() -> None:
    variables = {
        "ENVWEAVE_ENV": "echo-v0",
        "ENVWEAVE_TOKEN": "secret",
        "ENVWEAVE_CONFIG": '{"options": {"workers": 2}}',
    }

    config = read(variables)

    assert config["options"] == {"token": "secret", "workers": 2}
    assert "ENVWEAVE_TOKEN" not in variables


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "ENVWEAVE_ENV is not set"),
        ({"ENVWEAVE_CONFIG": "{"}, "ENVWEAVE_CONFIG is not valid JSON"),
        ({"ENVWEAVE_CONFIG": "[1]"}, "must be a JSON object"),
    ],
)
def test_invalid_variables_are_refused(variables: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read(variables)


def test_an_error_is_written_for_people_and_for_the_parent_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ENVWEAVE_ENV", "counter-v0")
    monkeypatch.setenv("ENVWEAVE_CONFIG", '{"kwargs": {"done_att": 2}}')
    monkeypatch.setenv("ENVWEAVE_TOKEN", "secret")
    messages: list[str] = []

    code = main(messages.append)

    people, fault = "".join(messages).splitlines()
    assert code == 2
    assert people.startswith("Error: 'done_att' is neither an option")
    message = json.loads(fault.removeprefix("envweave-fault: "))
    assert message["code"] == "option_refused"
    assert message["message"].startswith("'done_att' is neither")

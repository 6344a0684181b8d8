"""Which dialects a server has."""

from __future__ import annotations

import json
from typing import Any

import pytest
from servers import client_of, open_websocket, served

import envweave as ew
from envweave.errors import OptionError
from envweave.examples import TicTacToeEnv

ROW = {"responses_create_params": {"input": []}}
TOOLS = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


def spoken(**options: Any) -> dict[str, bool]:
    """Which dialects a server answers, whatever it says of them."""
    with client_of("counter-v0", **options) as client:
        said = client.get("/metadata").json()["dialects"]
        answers = {
            "openenv": "result" in client.post("/mcp", json=TOOLS).json(),
            "ors": client.get("/list_environments").status_code == 200,
            "nemo-gym": client.post("/reset", json=ROW).status_code == 200,
        }
        assert client.post("/reset", json={}).status_code == 200
        assert {one for one, is_there in answers.items() if is_there} == set(said) & set(answers)
    return answers


def test_every_dialect_is_served_by_default() -> None:
    assert all(spoken().values())


@pytest.mark.parametrize("name", ["openenv", "ors", "nemo-gym"])
def test_only_the_chosen_dialects_are_served(name: str) -> None:
    assert [one for one, is_there in spoken(dialects=[name]).items() if is_there] == [name]


def test_without_openenv_its_clients_get_an_error_that_says_so() -> None:
    with served("counter-v0", dialects=["ors"]) as url, ew.make(url) as env:
        socket = open_websocket(url, "/ws")
        socket.send('{"type": "reset"}')
        refused = json.loads(str(socket.receive(20)))
        socket.close()

        assert env.reset(seed=1).observation.value == 0  # our own is always there

    assert refused["type"] == "error"
    assert "--dialects" in refused["data"]["message"]


@pytest.mark.parametrize(
    ("dialects", "why"),
    [(["orz"], "Did you mean 'ors'"), ("ors", "must be a list of names"), ([1], "must be a list")],
)
def test_an_unknown_dialect_is_refused(dialects: Any, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        ew.create_fastapi_app("counter-v0", dialects=dialects)


def test_a_dialect_of_one_agent_is_refused_for_several_if_it_was_asked_for() -> None:
    with (
        pytest.raises(OptionError, match="'ors' is for one agent"),
        client_of(TicTacToeEnv, dialects=["openenv", "ors"]),
    ):
        pass
    with client_of(TicTacToeEnv) as client:
        assert client.get("/ready").status_code == 200

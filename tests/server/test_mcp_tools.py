"""Every environment is an MCP server: played by the official client, in both generations.

`legacy` shakes hands (`initialize`) and has a session by header; `auto` finds that the server
speaks 2026-07-28, which has neither.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import mcp
import pytest
from mcp_servers import PROGRAMS, need_real_servers
from servers import app_served, http_connection, served

import envweave as ew
from envweave import create_fastapi_app

pytestmark = pytest.mark.slow  # starts MCP servers

GENERATIONS = ("legacy", "auto")


class Player:
    """Plays by tool calls. Where there is no session by header, it names its own."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.named: dict[str, str] = {}

    async def __call__(self, name: str, /, **arguments: Any) -> Any:
        result = await self.client.call_tool(name, {**self.named, **arguments})
        result_content = result.structured_content
        assert json.loads(result.content[0].text) == result_content
        if "session_id" in result_content:
            self.named = {"session_id": result_content["session_id"]}
        return (result.is_error, result_content["error"]) if result.is_error else result_content


@asynccontextmanager
async def player(url: str, mode: str) -> Any:
    async with mcp.Client(f"{url}/mcp", mode=mode, cache=None) as client:
        yield Player(client)


@dataclass
class Walk(ew.Action):
    by: Literal[-1, 1]


@dataclass
class SayAction(ew.Action):
    text: str


class Actor(ew.Environment):
    """Walk, and say where you are."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> int:
        self.place = (options or {}).get("place", 0)
        return self.place

    def step(self, action: Walk | SayAction) -> tuple[int, float, bool, bool, dict[str, Any]]:
        if isinstance(action, Walk):
            self.place += action.by
            return self.place, 0.0, False, False, {}
        right = action.text == str(self.place)
        return self.place, float(right), True, False, {"right": right}


class Guess(ew.Environment):
    """Guess a number."""

    def reset(self) -> str:
        return "guess"

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "right" if action == 3 else "wrong", float(action == 3), action == 3, False, {}


@pytest.fixture(scope="module")
def line() -> Iterator[str]:
    with served("lineworld-v0", max_sessions=2, queue_size=0) as url:
        yield url


@pytest.mark.parametrize("mode", GENERATIONS)
def test_an_environments_action_is_a_tool_with_its_schema(line: str, mode: str) -> None:
    async def look() -> Any:
        async with player(line, mode) as play:
            listed = await play.client.list_tools()
            return play.client.protocol_version, {one.name: one for one in listed.tools}

    version, tools = asyncio.run(look())

    session = {"session_id"} if mode == "auto" else set()
    assert version == {"legacy": "2025-11-25", "auto": "2026-07-28"}[mode]
    assert set(tools) == {"reset", "step", "state"} | ({"close"} if session else set())
    step = tools["step"].input_schema
    assert step["properties"].keys() == {"move"} | session
    assert step["properties"]["move"] == {"enum": [-1, 1]}
    assert set(step["required"]) == {"move"} | session
    assert tools["reset"].input_schema["properties"].keys() == {"seed"} | session
    assert "Walk along a line" in tools["step"].description


@pytest.mark.parametrize("mode", GENERATIONS)
def test_a_whole_episode_is_played_by_tool_calls(line: str, mode: str) -> None:
    async def episode() -> list[Any]:
        async with player(line, mode) as play:
            result_content = [await play("reset", seed=3)]
            goal = result_content[0]["observation"]["goal"]
            while not result_content[-1]["done"]:
                result_content.append(await play("step", move=goal))
            result_content += [await play("state"), await play("step", move=goal)]
            if mode == "auto":
                assert await play("close") == {"closed": True}
            return result_content

    *episode_results, state, late = asyncio.run(episode())

    with ew.make("lineworld-v0") as env:
        expected = [env.reset(seed=3)]
        while not expected[-1].done:
            expected.append(env.step({"move": expected[0].observation.goal}))
    assert [one["reward"] for one in episode_results] == [one.reward for one in expected]
    last = episode_results[-1]
    assert (last["terminated"], last["truncated"], last["done"]) == (True, False, True)
    assert last["info"] == {"metrics": {"success": 1.0}}
    assert last["observation"]["position"] == expected[-1].observation.position
    assert last["requests"][0]["type"] == "episode_end"
    assert state["step_count"] == len(expected) - 1
    assert late[0] is True
    assert late[1]["code"] == "reset_needed"


@pytest.mark.parametrize("mode", GENERATIONS)
def test_bad_arguments_are_results_by_field_and_leave_the_episode_as_it_was(
    line: str, mode: str
) -> None:
    async def err() -> Any:
        async with player(line, mode) as play:
            early = await play("state", **({"session_id": "x"} if mode == "auto" else {}))
            await play("reset", seed=1)
            wrong = [
                await play("step", move=3),
                await play("step"),
                await play("step", move=1, speed=2),
                await play("reset", seed=-1),
                await play("reset", task="first"),
                await play("stepp", move=1),
            ]
            went_on = await play("step", move=1)
            if mode == "auto":
                await play("close")
            return early, wrong, went_on

    early, wrong, went_on = asyncio.run(err())

    assert early[0]
    assert all(is_error for is_error, _ in wrong)
    assert [one["message"].partition(":")[0] for _, one in wrong[:3]] == [
        "action.move",
        "action.move",
        "action.speed",
    ]
    assert "got -1" in wrong[3][1]["message"]
    assert "takes no 'task'" in wrong[4][1]["message"]
    assert "Did you mean 'step'" in wrong[5][1]["message"]
    assert went_on["step_index"] == 1


@pytest.mark.parametrize("mode", GENERATIONS)
def test_each_member_of_a_union_is_a_separate_tool(mode: str) -> None:
    async def act(url: str) -> Any:
        async with player(url, mode) as play:
            names = [one.name for one in (await play.client.list_tools()).tools]
            await play("reset", options={"place": 4})
            mixed = await play("walk", text="4")
            return names, mixed, await play("walk", by=1), await play("say", text="5")

    with served(Actor) as url:
        names, mixed, walked, outcome = asyncio.run(act(url))

    assert names[:4] == ["reset", "walk", "say", "state"]
    assert mixed[0]
    assert "walk" in mixed[1]["message"]
    assert "text" in mixed[1]["message"]
    assert (walked["observation"], walked["reward"], walked["done"]) == (5, 0.0, False)
    assert (outcome["reward"], outcome["done"], outcome["info"]) == (1.0, True, {"right": True})


def test_an_action_that_is_not_an_object_is_the_argument_action() -> None:
    async def act(url: str) -> Any:
        async with player(url, "legacy") as play:
            listed = {one.name: one.input_schema for one in (await play.client.list_tools()).tools}
            await play("reset")
            return listed["step"], await play("step", action="3"), await play("step", action=3)

    with served(Guess) as url:
        schema, wrong, right = asyncio.run(act(url))

    assert schema["properties"] == {"action": {"type": "integer"}}
    assert wrong[1]["message"].startswith("action: '3' is not an int")
    assert (right["observation"], right["reward"], right["done"]) == ("right", 1.0, True)


def test_several_agents_act_by_name_in_one_call() -> None:
    async def act(url: str) -> Any:
        async with player(url, "legacy") as play:
            listed = {one.name: one.input_schema for one in (await play.client.list_tools()).tools}
            await play("reset", seed=0)
            moves = [await play("step", **{"xo"[k % 2]: {"cell": c}}) for k, c in enumerate([0, 3])]
            wrong = await play("step", o={"cell": 5})
            for k, cell in enumerate([1, 4, 2]):
                moves.append(await play("step", **{"xo"[k % 2]: {"cell": cell}}))
            return listed["step"], wrong, moves

    with served("tictactoe-v0") as url:
        schema, wrong, moves = asyncio.run(act(url))

    assert schema["properties"].keys() == {"x", "o"}
    assert wrong[0]
    assert [one["done"] for one in moves] == [False] * 4 + [True]
    assert moves[-1]["reward"] == {"x": 1.0, "o": -1.0}


@pytest.mark.slow  # waits for a deadline
def test_a_full_server_is_an_error_and_a_client_that_leaves_frees_its_session(line: str) -> None:
    async def crowd() -> Any:
        async with player(line, "legacy") as first, player(line, "auto") as second:
            await first("reset")
            await second("reset")
            async with player(line, "legacy") as third:
                refused = await third("reset")
            await second("close")
            async with player(line, "legacy") as fourth:
                taken = await fourth("reset")
        # The handshake's clients end their sessions when they leave, and so free their slots.
        async with player(line, "legacy") as again, player(line, "legacy") as another:
            return refused, taken, await again("reset"), await another("reset")

    refused, taken, again, another = asyncio.run(crowd())

    assert refused[0]
    assert refused[1]["code"] == "no_capacity"
    assert "2 sessions" in refused[1]["message"]
    assert taken["step_index"] == again["step_index"] == another["step_index"] == 0


class Closings:
    """Waits until the server has closed a session by itself."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.is_closed = threading.Event()

    def called(self, method: str, code: str, seconds: float, count: int = 1) -> None: ...

    def opened(self) -> None: ...

    def closed(self, reason: str) -> None:
        self.reasons.append(reason)
        self.is_closed.set()


@pytest.mark.parametrize("mode", GENERATIONS)
def test_an_expired_session_is_reported_and_reset_begins_another(mode: str) -> None:
    app, closings = create_fastapi_app("counter-v0", session_ttl_s=0.2), Closings()
    app.state.envweave.service.watch(closings)

    async def idle(url: str) -> Any:
        async with player(url, mode) as play:
            await play("reset")
            assert await asyncio.to_thread(closings.is_closed.wait, 20)
            gone = await play("state")
            play.named = {}
            return gone, await play("reset")

    with app_served(app) as url:
        gone, again = asyncio.run(idle(url))

    assert closings.reasons[0] == "idle"
    assert gone[1]["code"] == "session_gone"
    assert again["observation"]["value"] == 0


def test_the_token_and_the_origin_are_asked_for() -> None:
    with served("counter-v0", token="sesame") as url:
        result_content = [
            raw(url, {}),
            raw(url, {"Authorization": "Bearer sesame", "Origin": "http://evil.example"}),
            raw(url, {"Authorization": "Bearer sesame"}),
        ]

    assert [status for status, _ in result_content] == [401, 403, 200]
    assert result_content[2][1]["result"]["serverInfo"]["name"] == "CounterEnv"


def test_without_the_extra_the_answer_is_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)

    with served("counter-v0") as url:
        status, result_content = raw(url, {})

    assert status == 200
    assert "pip install 'envweave[mcp]'" in result_content["error"]["message"]


def raw(url: str, headers: dict[str, str]) -> tuple[int, Any]:
    """Shake hands by hand."""
    connection = http_connection(url)
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "hand", "version": "1"},
        },
    }
    accepted = {"Accept": "application/json, text/event-stream"}
    try:
        body = json.dumps(hello)
        kind = {"Content-Type": "application/json"}
        connection.request("POST", "/mcp", body, {**kind, **accepted, **headers})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def old_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with version 1 of the SDK, in a process of its own."""
    python = need_real_servers() / "sdk1/bin/python"
    # envweave is not installed there, and a server tells its version.
    installed = tmp_path_factory.mktemp("installed")
    (installed / "envweave-0.dist-info").mkdir()
    (installed / "envweave-0.dist-info/METADATA").write_text("Name: envweave\nVersion: 0\n")
    process = subprocess.Popen(
        [python, "-W", "error", PROGRAMS / "mcp_environment_server.py"],
        env={**os.environ, "PYTHONPATH": str(installed)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield re.search(r"http://\S+:\d+", line)[0]
    finally:
        process.terminate()
        process.communicate(timeout=20)
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", GENERATIONS)
def test_with_version_1_of_the_sdk_a_server_is_played_the_same(old_server: str, mode: str) -> None:
    async def episode() -> Any:
        async with player(old_server, mode) as play:
            names = [one.name for one in (await play.client.list_tools()).tools]
            wrong = await play("step", delta=1)
            result_content = [
                await play("reset"),
                await play("step", delta=1),
                await play("step", delta=9),
            ]
            refused = await play("step", delta=1)
            return play.client.protocol_version, names, wrong, result_content, refused

    version, names, wrong, result_content, refused = asyncio.run(episode())

    # It knows no revision without a handshake, so that a newer client falls back on one.
    assert version == "2025-11-25"
    assert names == ["reset", "step", "state"]
    assert wrong[1]["code"] == refused[1]["code"] == "reset_needed"
    assert [one["observation"]["value"] for one in result_content] == [0, 1, 10]
    assert result_content[-1]["done"]

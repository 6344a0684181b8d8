"""The Open Reward Standard, request by request; its official client is in `tests/interop`."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from environments.crashing import GO, KILL, Crashing
from environments.served import FailsOrWaits
from servers import client_of, host_and_port, served, wait_for
from starlette.testclient import TestClient

import envweave as ew
from envweave.conversation import ChatAction, ChatObservation, ChatTool, TurnMessage
from envweave.examples import CounterEnv, TicTacToeEnv


def events_in(text: str) -> list[tuple[str, str]]:
    """The events of a stream, without its signs of life."""
    events = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if "event" in lines:
            events.append((lines["event"], lines.get("data", "")))
    return events


@contextmanager
def _tcp(url: str) -> Iterator[tuple[Any, str]]:
    """Begin a session over real connections; yield who makes requests, and its id."""
    host = host_and_port(url)

    def request(method: str, path: str, body: Any = None, sid: str = "") -> Any:
        connection = http.client.HTTPConnection(*host, timeout=20)
        connection.request(method, path, json.dumps(body or {}), {"X-Session-ID": sid})
        text = connection.getresponse().read().decode()
        connection.close()
        return json.loads(text) if path == "/tools" else text

    sid = str(uuid.uuid4())
    request("POST", "/create", {"split": "train", "index": 0}, sid)
    yield request, sid


@contextmanager
def _half_read(url: str, sid: str, call: Any) -> Iterator[str]:
    """Make a call, read the first event of its answer, and break the connection at the end."""
    body = json.dumps(call)
    head = f"POST /call HTTP/1.1\r\nHost: x.localhost\r\nX-Session-ID: {sid}\r\n"
    with socket.create_connection(host_and_port(url)) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        read = b""
        while b"event: task_id" not in read or read[-1:] != b"\n":
            read += connection.recv(4096)
        yield read.decode().partition("event: ")[2].join(["event: ", ""])


class Session:
    """A session of the standard, as its client drives it."""

    def __init__(self, client: TestClient, **task: Any) -> None:
        self.client = client
        stream = client.post("/create_session", json={}).text
        self.headers = {"X-Session-ID": events_in(stream)[0][1]}
        self.created = self.post("/create", **(task or {"split": "train", "index": 0}))

    def post(self, path: str, /, **body: Any) -> Any:
        return self.client.post(path, json=body, headers=self.headers)

    def get(self, path: str) -> Any:
        return self.client.get(path, headers=self.headers)

    def call(self, _name: str | None = None, /, **arguments: Any) -> Any:
        """The result of a tool call; the text of an error event."""
        name = _name or self.client.get("/tools").json()["tools"][0]["name"]
        events = events_in(self.post("/call", name=name, input=arguments).text)
        assert events[0][0] == "task_id"
        if events[-1][0] == "error":
            return events[-1][1]
        return json.loads("".join(data for _, data in events[1:]))


def sessions_of(client: TestClient) -> str:
    lines = client.get("/metrics").text.splitlines()
    return next(line for line in lines if line.startswith("envweave_sessions "))


@pytest.fixture(scope="module")
def counter() -> Iterator[TestClient]:
    with client_of("counter-v0", done_at=3, max_sessions=4) as client:
        yield client


def test_an_episode_from_its_task_to_its_end(counter: TestClient) -> None:
    session = Session(counter, split="train", index=7)

    prompt = session.get("/prompt").json()
    first, last, late = (session.call(delta=delta) for delta in (1, 2, 1))

    assert session.created.json() == {"sid": session.headers["X-Session-ID"]}
    assert [block["type"] for block in prompt] == ["text"]
    assert session.get("/messages").json() == [{"role": "user", "blocks": prompt, "detail": None}]
    assert (first["ok"], first["output"]["reward"], first["output"]["finished"]) == (
        True,
        1.0,
        False,
    )
    assert (last["output"]["reward"], last["output"]["finished"]) == (2.0, True)
    assert last["output"]["metadata"]["terminated"] is True
    assert late["reason"] == "episode_finished"


def test_without_tasks_a_seed_is_the_task(counter: TestClient) -> None:
    (name,) = counter.get("/list_environments").json()

    splits = counter.get(f"/{name}/splits").json()
    count = counter.post("/num_tasks", json={"split": "train"}).json()
    task = counter.post(f"/{name}/task", json={"split": "train", "index": 5000}).json()
    some = counter.post("/task_range", json={"split": "train", "start": 2, "stop": 4}).json()

    assert name == "counter-v0"
    assert splits == [{"name": "train", "type": "train"}]
    assert count == {"num_tasks": 1000}
    assert task == {"task": {"seed": 5000}, "env_name": name}
    assert some["tasks"] == [{"seed": 2}, {"seed": 3}]


def test_tasks_are_listed_without_their_private_part_and_begin_episodes() -> None:
    with client_of("gsm8k-v0") as client:
        test = client.post("/tasks", json={"split": "test"}).json()["tasks"]
        last = client.post("/task_range", json={"split": "test", "start": -1}).json()["tasks"]
        session = Session(client, task_spec=test[3])
        text = session.get("/prompt").json()[0]["text"]
        scored = session.call(text="#### 1")
        session.post("/delete")

    assert [test[-1]] == last
    assert len(test) == 32
    assert test[3].keys() == {"id", "split", "data"}
    assert test[3]["data"]["question"] in text
    assert scored["output"]["metadata"]["task_id"] == test[3]["id"]
    assert scored["output"]["finished"] is True


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/tasks", {"split": "nope"}, 400),
        ("/task", {"split": "test", "index": 32}, 400),
        ("/task", {"split": "test", "index": -1}, 400),
        ("/task", {"split": "test", "index": True}, 400),
        ("/task_range", {"split": "test", "start": "a"}, 400),
        ("/other/tasks", {"split": "test"}, 404),
        ("/score_group", {"candidates": []}, 404),
    ],
)
def test_what_there_is_not_is_refused(path: str, body: Any, status: int) -> None:
    with client_of("gsm8k-v0") as client:
        refused = client.post(path, json=body)

    assert refused.status_code == status
    assert refused.json()["detail"]


@pytest.mark.parametrize(
    ("task", "status"),
    [
        ({"split": "train"}, 400),
        ({"task_spec": {}, "split": "train", "index": 0}, 422),
        ({"task_spec": {"seed": "x"}}, 422),
        ({"task_spec": {"id": "a task"}}, 422),
        ({"task_spec": {}, "toolset_name": "codex"}, 400),
        ({"task_spec": {}, "env_name": "other"}, 404),
    ],
)
def test_an_episode_without_a_valid_task_does_not_begin(
    counter: TestClient, task: Any, status: int
) -> None:
    before = sessions_of(counter)

    session = Session(counter, **task)

    assert session.created.status_code == status
    assert session.get("/prompt").status_code == 404
    assert sessions_of(counter) == before


def test_a_call_that_is_not_valid_does_not_harm_the_episode(counter: TestClient) -> None:
    session = Session(counter)

    reasons = [
        session.call("fly", high=1)["reason"],
        session.call(delta="one")["reason"],
        session.call(dleta=1)["reason"],
        session.call()["reason"],
    ]

    assert reasons == ["not_found", *["input_validation"] * 3]
    assert session.call(delta=3)["output"]["metadata"]["step_index"] == 1
    session.post("/delete")


def test_a_failed_episode_has_no_reward_but_an_error() -> None:
    with client_of(FailsOrWaits) as client:
        session = Session(client)
        first = session.call(do="nothing")
        failed, late = session.call(do="fail"), session.call(do="nothing")

    assert first["output"]["reward"] == 1.0
    assert failed.startswith("The episode has failed (error, caused by the environment)")
    assert isinstance(late, str)  # an error event again


def test_a_session_is_deleted_once_and_is_gone_then(counter: TestClient) -> None:
    session = Session(counter)

    deleted = [session.post(path).status_code for path in ("/ping", "/delete", "/delete")]

    assert deleted == [200, 200, 200]
    assert session.post("/ping").status_code == 410
    assert session.get("/prompt").status_code == 410
    assert session.post("/call", name="act", input={}).status_code == 410


def test_a_repeated_request_has_the_session_of_the_first(counter: TestClient) -> None:
    session = Session(counter, split="train", index=1)

    again = session.post("/create", split="train", index=1)
    other = session.post("/create", split="train", index=2)

    assert again.json() == session.created.json()
    assert (other.status_code, other.json()["detail"]) == (400, "Session already exists")
    session.post("/delete")


def test_pings_keep_a_session_that_no_call_is_made_to() -> None:
    with client_of("counter-v0", session_ttl_s=0.4) as client:
        kept, left = Session(client), Session(client)

        wait_for(lambda: kept.post("/ping").json() and left.get("/prompt").status_code == 410)

        assert kept.get("/prompt").status_code == 200


def test_a_full_server_has_its_client_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envweave.server.dialects.ors.WAIT_S", 0.1)
    with client_of("counter-v0", max_sessions=1) as client:
        first = Session(client)
        second = Session(client)
        full = second.created
        first.post("/delete")
        later = second.post("/create", split="train", index=0)

    assert (full.status_code, full.headers["x-backend-state"]) == (503, "starting")
    assert full.headers["retry-after"] == "2"
    assert later.status_code == 200


def test_a_call_is_resumed_by_its_id_and_never_made_twice() -> None:
    with served(FailsOrWaits) as url, _tcp(url) as (client, sid):
        FailsOrWaits.waiting.clear()
        FailsOrWaits.go_on.clear()
        call = {"name": client("GET", "/tools")["tools"][0]["name"], "input": {"do": "wait"}}
        with _half_read(url, sid, call) as read:
            task_id = events_in(read)[0][1]
        assert FailsOrWaits.waiting.wait(20)
        FailsOrWaits.go_on.set()

        resumed = client("POST", "/call", {**call, "task_id": task_id}, sid)
        again = client("POST", "/call", {**call, "task_id": task_id}, sid)
        unknown = client("POST", "/call", {**call, "task_id": "nope"}, sid)

    assert resumed == again
    assert json.loads(events_in(resumed)[-1][1])["output"]["metadata"]["step_index"] == 1
    assert events_in(unknown) == [("error", "unknown task_id")]


def test_a_call_repeated_without_its_id_after_a_broken_stream_gets_the_first_answer() -> None:
    with served(FailsOrWaits) as url, _tcp(url) as (client, sid):
        FailsOrWaits.waiting.clear()
        FailsOrWaits.go_on.clear()
        call = {"name": client("GET", "/tools")["tools"][0]["name"], "input": {"do": "wait"}}
        with _half_read(url, sid, call):
            assert FailsOrWaits.waiting.wait(20)
        wait_for(lambda: "envweave_connections 0.0" in client("GET", "/metrics"))
        FailsOrWaits.go_on.set()

        first = client("POST", "/call", call, sid)
        second = client("POST", "/call", call, sid)

    steps = [
        json.loads(events_in(one)[-1][1])["output"]["metadata"]["step_index"]
        for one in (first, second)
    ]
    assert steps == [1, 2]


def test_a_long_answer_comes_in_pieces_that_begin_with_no_space() -> None:
    class Spaces(ew.Environment):
        def reset(self) -> str:
            return "begin"

        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            return " ".join(["word", " " * 50] * 2000), 1.0, True, False, {}

    with client_of(Spaces) as client:
        session = Session(client)
        name = client.get("/tools").json()["tools"][0]["name"]
        events = events_in(session.post("/call", name=name, input={"text": "x"}).text)
        whole = json.loads("".join(data for _, data in events[1:]))

    assert len(events) > 20
    assert not [data for _, data in events if data[:1].isspace()]
    assert whole["output"]["blocks"][0]["text"] == " ".join(["word", " " * 50] * 2000)


def test_its_clients_show_the_token_as_they_do() -> None:
    with client_of("counter-v0", token="secret") as client:
        statuses = [
            client.get("/tools", headers=headers).status_code
            for headers in (
                {},
                {"X-API-Key": "wrong"},
                {"X-API-Key": "secret"},
                {"Authorization": "Bearer secret"},
                {"Authorization": "Bearer wrong", "X-API-Key": "secret"},
            )
        ]

    assert statuses == [401, 401, 200, 200, 401]


def test_several_agents_are_refused() -> None:
    with client_of(TicTacToeEnv) as client:
        refused = client.get("/tools")

    assert refused.status_code == 422
    assert "has 2 agents" in refused.json()["detail"]


def test_a_session_id_that_could_be_guessed_is_refused() -> None:
    with client_of(CounterEnv) as client:
        body = {"split": "train", "index": 0}
        refused = client.post("/create", json=body, headers={"X-Session-ID": "1"})

    assert refused.status_code == 400


@pytest.mark.slow  # starts worker processes
def test_an_episode_whose_worker_is_killed_has_no_reward_and_the_next_one_has() -> None:
    with client_of(Crashing, workers=1) as client:
        killed, other = Session(client), Session(client)
        first = killed.call(action=GO)
        lost = killed.call(action=KILL)
        for session in (killed, other):
            session.post("/delete")
        again = Session(client)
        after = again.call(action=GO)

    assert first["output"]["reward"] is not None
    assert lost.startswith("The episode has failed (lost")
    assert after["output"]["reward"] == first["output"]["reward"]


def test_a_picture_is_an_image_block() -> None:
    class Camera(ew.Environment):
        def reset(self) -> Any:
            return np.zeros((16, 16, 3), np.uint8)

        def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return np.ones((16, 16, 3), np.uint8), 1.0, True, False, {}

    with client_of(Camera) as client:
        session = Session(client)
        (seen,) = session.get("/prompt").json()
        (last,) = session.call(text="smile")["output"]["blocks"]

    assert (seen["type"], seen["mimeType"]) == ("image", "image/png")
    assert base64.b64decode(seen["data"]).startswith(b"\x89PNG")
    assert last["data"] != seen["data"]


def test_an_environment_with_tools_of_its_own_offers_them_in_a_session() -> None:
    class Shop(ew.Environment):
        def reset(self) -> ChatObservation:
            look = ChatTool(name="look", description="Look it up.", parameters={"type": "object"})
            message = TurnMessage(role="user", content="Buy milk.")
            return ChatObservation(messages=[message], tools=[look], is_new=True)

        def step(self, action: ChatAction) -> ChatObservation:
            (call,) = action.tool_calls or [None]
            said = action.content if call is None else f"{call.name}: {call.arguments}"
            answer = TurnMessage(role="user", content=said)
            return ChatObservation(messages=[answer], reward=1.0, done=call is None)

    with client_of(Shop) as client:
        session = Session(client)
        tools = [tool["name"] for tool in session.get("/task_tools").json()["tools"]]
        looked = session.call("look", what="milk")["output"]
        said = session.call("reply", text="Done.")["output"]

    assert tools == ["look", "reply"]
    assert looked["blocks"][0]["text"] == "look: {'what': 'milk'}"
    assert (said["blocks"][0]["text"], said["finished"]) == ("Done.", True)

"""A full server refuses at once, or lets a client wait; a disconnected client holds no session."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar
from urllib.request import urlopen

import pytest
from environments.served import Tally, TallyAction, TallyObservation
from servers import client_of, error_in, served, wait_for
from websockets.sync.client import connect

import envweave as ew
from envweave.errors import CapacityError, OptionError, ResetNeededError
from envweave.examples import CounterEnv

pytestmark = pytest.mark.slow  # waits for delays of a server

WAITS = "envweave_sessions_waiting 1.0"
NOBODY_WAITS = "envweave_sessions_waiting 0.0"
EMPTY = "envweave_sessions 0.0"


class TallyClient(ew.HTTPEnvClient[TallyAction, TallyObservation]):
    pass


class SlowlyMade(Tally):
    """Its constructor waits until it may go on, except that of the first."""

    begun: ClassVar[threading.Event] = threading.Event()
    may_end: ClassVar[threading.Event] = threading.Event()

    def __init__(self) -> None:
        super().__init__()
        if self.made > 1:
            self.begun.set()
            assert self.may_end.wait(20)


def metrics(url: str) -> str:
    with urlopen(f"{url}/metrics") as reply:
        text: str = reply.read().decode()
    return text


@contextmanager
def asking_by_http(url: str, **body: Any) -> Iterator[None]:
    """Ask for a session, and hang up at the end of the block without reading the answer."""
    data = json.dumps(body).encode()
    head = f"POST /sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as connection:
        connection.sendall(head.encode() + data)
        yield


@contextmanager
def asking_by_websocket(url: str, **params: Any) -> Iterator[None]:
    with connect(f"ws{url[4:]}/ws", subprotocols=["envweave.v1.json"]) as connection:
        call = {"id": 1, "method": "open", "session": "mine", "params": params}
        connection.send(json.dumps(call))
        yield


ASKING = {"http": asking_by_http, "websocket": asking_by_websocket}


# A full server


def test_a_second_client_of_one_object_is_refused_with_advice() -> None:
    with served(CounterEnv()) as url, ew.make(url) as env:
        env.reset()

        with pytest.raises(CapacityError, match=r"single CounterEnv object.*wait_s=.*its class"):
            ew.make(url)

        assert env.step({"delta": 1}).observation.value == 1


def test_a_typed_client_is_refused_before_its_own_deadline() -> None:
    with (
        served(Tally()) as url,
        ew.make(url),
        TallyClient(url) as client,
        pytest.raises(CapacityError, match="wait_s"),
    ):
        client.reset()


def test_the_error_of_a_full_server_names_its_limit_and_the_remedy() -> None:
    with (
        served(Tally, max_sessions=2) as url,
        ew.make_vector(url, num_envs=2),
        pytest.raises(CapacityError, match=r"2 of 2 sessions.*wait_s=.*max_sessions"),
    ):
        ew.make(url)


def test_an_openenv_client_gets_an_error_from_a_full_server() -> None:
    with served(Tally()) as url, ew.make(url), connect(f"ws{url[4:]}/ws") as connection:
        connection.send(json.dumps({"type": "reset", "data": {}}))

        message = json.loads(connection.recv(5))

    assert message["data"]["code"] == "CAPACITY_REACHED"


def test_a_pool_that_is_larger_than_the_server_is_refused() -> None:
    with (
        served(Tally, max_sessions=2) as url,
        ew.pool(url, size=3) as pool,
        pytest.raises(CapacityError, match="2 of 2 sessions"),
    ):
        ew.rollout(pool, lambda _: {"do": "end"}, episodes=6).run()


def test_one_object_cannot_have_more_sessions() -> None:
    with pytest.raises(OptionError, match=r"max_sessions=4.*one CounterEnv object"):
        ew.create_fastapi_app(CounterEnv(), max_sessions=4)
    with pytest.raises(OptionError, match="max_sessions=4"):
        ew.serve(CounterEnv(), max_sessions=4)


# Waiting


def test_a_client_that_asked_to_wait_gets_the_session_that_is_freed() -> None:
    with served(Tally()) as url:
        first = ew.make(url)
        freeing = threading.Thread(
            target=lambda: (wait_for(lambda: WAITS in metrics(url)), first.close())
        )
        freeing.start()
        with ew.make(url, wait_s=20.0) as env:
            assert env.reset().observation.at == 0
        freeing.join()


@pytest.mark.slow  # starts server processes
def test_vectors_pools_and_typed_clients_can_wait_too() -> None:
    with served(Tally, max_sessions=1, queue_timeout_s=0.05) as url, ew.make(url):
        late = "no session was freed within 0.05 s"
        with pytest.raises(CapacityError, match=late):
            ew.make_vector(url, num_envs=1, wait_s=60.0)
        with ew.pool(url, size=1, wait_s=60.0) as pool, pytest.raises(CapacityError, match=late):
            ew.rollout(pool, lambda _: {"do": "end"}, episodes=1).run()
        with TallyClient(url, wait_s=60.0) as client, pytest.raises(CapacityError, match=late):
            client.reset()


@pytest.mark.parametrize("wait_s", [-1, "5", True, float("nan"), float("inf"), 1e9])
def test_an_invalid_wait_s_is_refused(wait_s: Any) -> None:
    with pytest.raises(OptionError, match="wait_s must be"):
        ew.make("http://127.0.0.1:1", wait_s=wait_s)
    with pytest.raises(OptionError, match="wait_s must be"):
        TallyClient("http://127.0.0.1:1", wait_s=wait_s)


def test_waiting_is_for_servers_only() -> None:
    with pytest.raises(OptionError, match="wait_s is for a server"):
        ew.make("counter-v0", wait_s=5)


def test_a_caller_that_arrives_while_a_session_closes_gets_its_slot() -> None:
    with served(Tally, max_sessions=4) as url:
        for _ in range(20):
            with ew.make_vector(url, num_envs=4) as venv:
                venv.reset(seed=0)


# Requests of disconnected callers


@pytest.mark.parametrize("dialect", ASKING)
def test_a_caller_that_hangs_up_while_it_waits_gets_no_session(dialect: str) -> None:
    with served(Tally()) as url:
        with ew.make(url):
            with ASKING[dialect](url, wait_s=60):
                wait_for(lambda: WAITS in metrics(url))
            wait_for(lambda: NOBODY_WAITS in metrics(url))

        with ew.make(url) as env:
            assert env.reset().observation.at == 0


@pytest.mark.parametrize("key", [None, "0a1b2c3d-4e5f-6071"])
def test_a_session_made_for_a_disconnected_caller_is_closed(key: str | None) -> None:
    SlowlyMade.made, SlowlyMade.open = 0, 0
    SlowlyMade.begun.clear()
    SlowlyMade.may_end.clear()
    with served(SlowlyMade, max_sessions=2, resume_ttl_s=0.2) as url, ew.make(url):
        with asking_by_http(url, request_id=key):
            assert SlowlyMade.begun.wait(20)
        SlowlyMade.may_end.set()

        wait_for(lambda: "envweave_sessions 1.0" in metrics(url))
        wait_for(lambda: SlowlyMade.open == 1)


def test_a_session_that_is_never_called_is_closed() -> None:
    with client_of(Tally, resume_ttl_s=0.1) as client:
        sessions = [client.post("/sessions").json()["session_id"] for _ in range(2)]
        named = {"X-Session-Id": sessions[0]}
        client.post("/reset", headers=named)

        wait_for(lambda: "envweave_sessions 1.0" in client.get("/metrics").text)

        assert client.get("/state", headers=named).status_code == 200


# One object, one client after the other


def test_a_session_does_not_show_the_episode_of_the_one_before() -> None:
    with served(Tally()) as url:
        with ew.make(url) as env:
            env.reset(seed=7)
            env.step({"do": "step"})
            assert env.state().at == 1  # type: ignore[attr-defined]

        with ew.make(url) as env:
            with pytest.raises(ResetNeededError, match=r"state\(\).*Call reset\(\) first"):
                env.state()
            with pytest.raises(ResetNeededError):
                env.step({"do": "step"})
            env.reset()
            assert env.state().at == 0  # type: ignore[attr-defined]


def test_plain_http_does_not_show_the_episode_of_the_session_before() -> None:
    with client_of(Tally()) as client:
        client.post("/reset", json={"seed": 7})
        client.post("/step", json={"action": {"do": "step"}})
        table = client.app.state.envweave.service.table  # type: ignore[attr-defined]
        (session,) = table._sessions
        client.portal.call(table._close, table.get(session), "idle")  # type: ignore[union-attr]
        named = {"X-Session-Id": client.post("/sessions").json()["session_id"]}

        refused = client.get("/state", headers=named)

    assert error_in(refused) == "409 reset_needed"


def test_an_environment_of_a_class_shows_its_state_before_its_first_episode() -> None:
    with served(Tally) as url, ew.make(url) as env:
        assert env.state().at == 0  # type: ignore[attr-defined]


def test_a_client_without_wait_s_is_not_advised_to_use_it() -> None:
    create = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"}
    calls = [("/reset", None), ("/sessions", None), ("/mcp", create)]
    with client_of("counter-v0", max_sessions=1) as client, ThreadPoolExecutor() as threads:
        client.post("/sessions")
        replies = list(threads.map(lambda call: client.post(call[0], json=call[1]), calls))
        by_reset, by_session, by_openenv = (one.json()["error"]["message"] for one in replies)

    assert "wait_s" in by_session
    assert "wait_s" not in by_reset + by_openenv
    assert by_reset.endswith("Try again later, or start the server with a larger max_sessions.")

"""Clients of servers that send nonsense raise an error; they do not hang or mix up replies."""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
import sys
import threading
from typing import Any

import pytest
from environments.served import Tally
from hostile_servers import Answer, Peer, scripted_server
from servers import served, wait_for

import envweave as ew
from envweave import errors
from envweave.client.address import parse_address
from envweave.client.async_connection import AsyncConnection
from envweave.client.server_info import Server
from envweave.examples import CounterEnv
from envweave.wire.encoding import MSGPACK
from envweave.wire.messages import Call

pytestmark = pytest.mark.slow  # waits for servers that are slow


@pytest.fixture(scope="module")
def description() -> Any:
    with served(CounterEnv) as url:
        return Server(parse_address(url), MSGPACK).call("describe", {})


def only(method: str, **reply: Any) -> Answer:
    """Answer calls of one method by this."""

    def answer(peer: Peer, call: dict[str, Any]) -> bool:
        return call["method"] == method and peer.say(call, **reply)

    return answer


def test_a_silent_server_is_not_waited_for_forever() -> None:
    with scripted_server(lambda peer: peer.serve(lambda *_: True)) as url:
        connection = Server(parse_address(url), MSGPACK).connect()

        with pytest.raises(errors.DeadlineError, match=r"did not answer describe\(\) within 0.2 s"):
            connection.call_server("describe", timeout_s=0.2)

        connection.end()


def test_a_server_that_reads_slowly_does_not_extend_the_time_limit() -> None:
    is_over = threading.Event()
    chunks: list[int] = []

    def read_slowly(peer: Peer) -> None:
        while not is_over.wait(0.02) and (chunk := peer.peer_socket.recv(1 << 18)):
            chunks.append(len(chunk))

    with scripted_server(read_slowly) as url:
        connection = Server(parse_address(url), MSGPACK).connect()
        call = Call(id=1, method="step", session="s", params={"action": bytes(1 << 28)})

        with pytest.raises(errors.DeadlineError):
            connection.call(call, timeout_s=0.5)

        is_over.set()
        assert sum(chunks) < 1 << 27  # not half of it
        connection.end()


@pytest.mark.parametrize(
    "send",
    [
        lambda peer: peer.peer_socket.sendall(b"\xff" * 100),
        lambda peer: peer.put(b"hello", 1),
        lambda peer: peer.put(b"\xc1\xc1"),
        lambda peer: peer.peer_socket.sendall(b"\x82\x7f" + struct.pack("!Q", 2**62)),
        lambda peer: peer.put(MSGPACK.encode([1, 2])),
        lambda peer: peer.put(MSGPACK.encode({"replies": [{"id": "x"}]})),
        lambda peer: peer.put(
            MSGPACK.encode({"sessions": ["a"], "numbers": [], "observations": []})
        ),
    ],
    ids=["noise", "text", "no MessagePack", "huge", "list", "no reply", "columns"],
)
def test_an_invalid_response_raises_an_envweave_error_at_once(send: Any) -> None:
    with (
        scripted_server(lambda peer: send(peer) or peer.serve(lambda *_: True)) as url,
        pytest.raises((errors.WireError, errors.ServerError)),
    ):
        ew.make(url)


@pytest.mark.parametrize(
    "result",
    [
        None,
        5,
        [],
        {},
        {"observation": {"value": 1}, "info": 5},
        {"observation": {"value": 1}, "end": {"reason": "x"}},
        {"observation": {"value": 1}, "episode_id": 2**70},
        {"observation": {"value": 1}, "asked": [{"type": "x"}]},
        {"observation": {"value": 1}, "ready": {"observation": 5}},
        {"observation": {"value": 1}, "position": "x"},
    ],
    ids=repr,
)
def test_a_step_whose_result_cannot_be_read_ends_as_lost(result: Any, description: Any) -> None:
    answer = only("step", result=result)
    with scripted_server(lambda peer: peer.serve(answer), description) as url, ew.make(url) as env:
        env.reset()

        step = env.step({"delta": 1})

        assert step.end is not None
        assert (step.end.reason, step.observation.value) == ("lost", 0)
        assert env.reset().observation.value == 0


def test_unexpected_replies_are_ignored(description: Any) -> None:
    def answer(peer: Peer, call: dict[str, Any]) -> bool:
        if call["method"] != "step":
            return False
        wrong = {"observation": {"value": 666}, "reward": 6.0, "episode_id": "e-0", "step_index": 1}
        right = {**wrong, "observation": {"value": call["id"]}}
        peer.say({**call, "session": "another's"}, result=wrong)
        peer.say({**call, "id": call["id"] - 1}, result=wrong)
        peer.put(MSGPACK.encode({"replies": []}))
        peer.say(call, result=right)
        return peer.say(call, result=wrong)

    with scripted_server(lambda peer: peer.serve(answer), description) as url, ew.make(url) as env:
        env.reset()
        values = [env.step({"delta": 1}).observation.value for _ in range(5)]

    assert values == [3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    "changed",
    [
        {"action": {"$ref": "#"}},
        {"observation": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}},
        {"observation": {"type": "object", "title": "__import__('os')", "properties": {"a b": {}}}},
        {"name": "x" * 100_000},
        {"splits": {"train": -1}},
    ],
    ids=["recursive", "only itself", "evil name", "long name", "splits"],
)
def test_an_unusual_description_is_tolerated(changed: dict[str, Any], description: Any) -> None:
    answers = only("describe", result={**description, **changed})
    with scripted_server(lambda peer: peer.serve(answers), description) as url:
        try:
            with ew.make(url) as env:
                env.reset()
                env.step({"delta": 1})
        except errors.EnvWeaveError:
            pass  # an error is as good


@pytest.mark.parametrize("others", [0, 1])
def test_reconnecting_stops_if_a_server_keeps_disconnecting(others: int, description: Any) -> None:
    connections: list[Peer] = []

    def answer(peer: Peer, call: dict[str, Any]) -> bool:
        if call["method"] == "step":
            peer.peer_socket.shutdown(socket.SHUT_RDWR)
        return call["method"] == "step"

    async def scenario() -> None:
        connection = AsyncConnection(parse_address(url), MSGPACK, reconnect_s=0.3)
        for name in ["s", *["other"] * others]:  # each connection names its sessions
            await connection.call(Call(id=1, method="open", session=name))
        try:
            with pytest.raises(errors.ConnectionLostError):
                await connection.call(Call(id=2, method="step", session="s"), 30.0)
        finally:
            connection.end()

    with scripted_server(
        lambda peer: connections.append(peer) or peer.serve(answer), description
    ) as url:
        asyncio.run(scenario())

    assert 2 <= len(connections) < 40


def test_a_second_thread_on_one_environment_is_refused_and_neither_hangs() -> None:
    Tally.hung.clear()
    Tally.hanging.clear()
    results: list[Any] = []
    with served(Tally) as url, ew.make(url) as env:
        env.reset()
        stepping = threading.Thread(target=lambda: results.append(env.step({"do": "hang"})))
        stepping.start()
        try:
            assert Tally.hanging.wait(20)

            for call in (env.reset, env.state, lambda: env.step({"do": "step"})):
                with pytest.raises(errors.BusyError, match="another thread"):
                    call()  # type: ignore[no-untyped-call]
        finally:
            Tally.hung.set()
            stepping.join(20)

        assert results[0].observation.at == 1
        assert env.step({"do": "step"}).observation.at == 2


@pytest.mark.slow  # starts the command line anew
def test_a_process_that_ends_with_open_environments_frees_their_sessions() -> None:
    code = (
        "import asyncio, sys, envweave as ew\n"
        "kept = [ew.make(sys.argv[1]), ew.make_vector(sys.argv[1], num_envs=2)]\n"
        "for one in kept: one.reset()\n"
        "other = ew.make_async(sys.argv[1]); asyncio.run(other.reset())\n"
    )
    with served(Tally, resume_ttl_s=600.0, max_sessions=4) as url:
        before = Tally.open
        done = subprocess.run([sys.executable, "-c", code, url], capture_output=True, check=True)

        assert done.stderr == b""
        wait_for(lambda: Tally.open <= before)
        with ew.make_vector(url, num_envs=4) as venv:
            venv.reset()

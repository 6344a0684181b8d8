"""Malformed frames harm neither a live server nor its other clients."""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from environments.served import Tally
from fuzzing import changed_bytes, changed_parts
from servers import WebSocket, open_websocket, served

import envweave as ew
from envweave.errors import ConnectionLostError
from envweave.wire.encoding import JSON, MSGPACK, PLAIN_JSON, Encoding
from envweave.wire.messages import read_replies

pytestmark = pytest.mark.slow  # sends thousands of frames

OPENENV: list[Any] = [
    {"type": "reset", "data": {"seed": 1, "episode_id": "e"}},
    {"type": "step", "data": {"do": "step"}},
    {"type": "state"},
    {"type": "close"},
    {"type": "mcp", "data": {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}},
    {"type": "mcp", "data": {"jsonrpc": "2.0", "id": 2, "method": "openenv/session/close"}},
]
KEPT = 4  # a few sessions, so that many frames meet one that is there
WAIT_S = 20.0
LAST = 10**9


def ours(rng: random.Random) -> Any:
    """Return a frame of our dialect that would do something."""

    def call() -> dict[str, Any]:
        method, params = rng.choice(
            [
                ("open", {"autoreset": rng.random() < 0.5}),
                ("open", {"timeout_s": 5.0, "position": [1, 2, 3, "p"]}),
                ("reset", {"seed": rng.randrange(9), "episode_id": "e", "options": {}}),
                ("check_reset", {"seed": 1}),
                ("step", {"action": {"do": rng.choice(["step", "end"])}}),
                ("step", {"answer": {"call_id": "c", "value": 1}}),
                ("state", {}),
                ("close", {}),
                ("describe", {}),
                ("tasks", {"split": "train", "start": 0, "count": 5}),
                ("task", {"id": "train-1"}),
            ]
        )
        session = f"s{rng.randrange(KEPT)}"
        return {"id": rng.randrange(1, 6), "session": session, "method": method, "params": params}

    if rng.random() < 0.7:
        return call()
    if rng.random() < 0.4:
        names = [f"s{i}" for i in range(rng.randrange(KEPT + 1))]
        numbers = [rng.randrange(1, 6) for _ in names]
        return {"sessions": names, "numbers": numbers, "actions": [{"do": "step"}] * len(names)}
    return {"calls": [call() for _ in range(rng.randrange(3))], "together": rng.random() < 0.7}


def frames(rng: random.Random, encoding: Encoding, count: int) -> Iterator[bytes]:
    """Go through noise, frames that are as they should be, and such with something changed."""
    for _ in range(count):
        plain = rng.choice(OPENENV) if encoding is PLAIN_JSON else ours(rng)
        match rng.randrange(6):
            case 0:
                yield rng.randbytes(rng.randrange(60))
            case 1:
                yield encoding.encode(plain)
            case 2 | 3:
                yield changed_bytes(rng, encoding.encode(plain))
            case _:
                yield encoding.encode(changed_parts(rng, plain))


def throw(url: str, encoding: Encoding, rng: random.Random, count: int) -> int:
    """Send frames, in bursts, over as many connections as it takes; return how many replies came.

    The server may hang up, as OpenEnv's dialect does when it is asked to. It may not be gone.
    """
    websocket: WebSocket | None = None
    received = 0
    for number, data in enumerate(frames(rng, encoding, count)):
        websocket = websocket or dial(url, encoding)
        try:
            put(websocket, encoding, data)
            if number % 16 == 0:
                received += receive_message(websocket, encoding)
        except ConnectionLostError:
            websocket.drop()
            websocket = None
        if websocket is not None and rng.random() < 0.002:
            websocket.drop()
            websocket = None
    if websocket is not None:
        websocket.close()
    return received


def put(websocket: WebSocket, encoding: Encoding, data: bytes) -> None:
    # A text that is no UTF-8 ends the connection, and nothing after it would be read.
    websocket.send(data.decode(errors="replace") if encoding.is_text else data)


def receive_message(websocket: WebSocket, encoding: Encoding) -> int:
    """Read until the server has answered all there is: a last question is answered last."""
    if encoding is PLAIN_JSON:
        encoding.decode(websocket.receive(WAIT_S))
        return 1
    put(websocket, encoding, encoding.encode({"id": LAST, "method": "describe"}))
    count = 0
    while True:
        replies = read_replies(encoding.decode(websocket.receive(WAIT_S)))
        count += len(replies)
        if any(reply.id == LAST for reply in replies):
            return count


def dial(url: str, encoding: Encoding) -> WebSocket:
    offered = [encoding.subprotocol] if encoding.subprotocol else []
    return open_websocket(url, subprotocols=offered)


def gauge(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return float(
        next(websocket for websocket in lines if websocket.startswith(f"{name} ")).split()[1]
    )


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.config.getoption("randomly_seed", default=0))


@pytest.mark.parametrize(
    "count", [2_000, pytest.param(100_000, marks=pytest.mark.slow)], ids=["few", "many"]
)
@pytest.mark.timeout(600)
def test_malformed_frames_do_no_harm(
    rng: random.Random, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"max_sessions": 64, "resume_ttl_s": 0.2, "timeout_s": 10.0}
    with served(Tally, **options) as url:
        dialects = [(MSGPACK, 4), (JSON, 4), (PLAIN_JSON, 2)]
        for encoding, share in dialects:
            throw(url, encoding, rng, 40 * share)
        gc.collect()
        threads, tasks = threading.active_count(), tasks_alive()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        received = [throw(url, one, rng, count * share // 10) for one, share in dialects]

        grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert all(received)
        with ew.make(url) as env:
            env.reset(seed=1)
            assert env.step({"do": "step"}).observation.at == 1
        wait_until(lambda: gauge(url, "envweave_sessions") == 0)
        gc.collect()
        assert threading.active_count() <= threads + 64
        assert tasks_alive() <= tasks + 8
        assert grown_kb < 64 * 1024
    failures = [one for one in caplog.records if one.exc_info and one.levelname == "ERROR"]
    assert not failures, failures[0].exc_text
    print(f"{count} frames: {grown_kb} kB more, {sum(received)} replies heard")


def wait_until(claim: Any) -> None:
    pause = threading.Event()
    for _ in range(400):
        if claim():
            return
        pause.wait(0.05)
    raise AssertionError("it did not come about")


def tasks_alive() -> int:
    return sum(isinstance(one, asyncio.Task) and not one.done() for one in gc.get_objects())

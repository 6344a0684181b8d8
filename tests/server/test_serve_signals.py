"""Stopping a server process: it drains, exits and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from servers import process_serving, wait_for


def open_episodes(client: httpx2.Client, count: int) -> list[dict[str, str]]:
    """Open sessions, each with an episode that has begun."""
    headers = [
        {"X-Session-Id": client.post("/sessions").json()["session_id"]} for _ in range(count)
    ]
    for one in headers:
        assert client.post("/reset", headers=one).status_code == 200
        assert step(client, one)["done"] is False
    return headers


def step(client: httpx2.Client, headers: dict[str, str]) -> Any:
    return client.post("/step", json={"action": {"delta": 1}}, headers=headers).json()


def is_draining(client: httpx2.Client) -> bool:
    return client.get("/ready").status_code == 503


def children_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(one) for one in found.read_text().split()]


@pytest.mark.slow  # starts server processes
def test_sigterm_finishes_64_running_episodes_and_refuses_new_sessions() -> None:
    with (
        process_serving("counter-v0", drain_s=100) as server,
        httpx2.Client(base_url=server.url, timeout=20) as client,
    ):
        episodes = open_episodes(client, 64)
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: is_draining(client))

        refused = client.post("/sessions")
        ends = [[step(client, one)["done"] for _ in range(2)] for one in episodes]
        code = server.process.wait(20)

    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "connection_lost")
    assert ends == [[False, True]] * 64
    assert code == 0


@pytest.mark.slow  # starts server processes
def test_workers_go_with_their_server() -> None:
    with (
        process_serving("counter-v0", drain_s=0.1, workers=2) as server,
        httpx2.Client(base_url=server.url, timeout=20) as client,
    ):
        open_episodes(client, 4)
        workers = children_of(server.process.pid)

        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(20)

    assert len(workers) == 2
    assert code == 0
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


@pytest.mark.slow  # starts server processes
def test_episodes_that_do_not_finish_are_closed_when_the_time_is_up() -> None:
    with (
        process_serving("counter-v0", drain_s=0.2) as server,
        httpx2.Client(base_url=server.url, timeout=20) as client,
    ):
        open_episodes(client, 3)

        server.process.send_signal(signal.SIGINT)

        assert server.process.wait(20) == 0


@pytest.mark.slow  # starts server processes
def test_a_second_signal_ends_at_once() -> None:
    with (
        process_serving("counter-v0", drain_s=1000) as server,
        httpx2.Client(base_url=server.url, timeout=20) as client,
    ):
        open_episodes(client, 1)
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: is_draining(client))

        server.process.send_signal(signal.SIGTERM)

        assert server.process.wait(20) == 128 + signal.SIGTERM


@pytest.mark.slow  # starts server processes
def test_a_step_that_hangs_does_not_keep_the_process() -> None:
    with (
        process_serving("pkg://environments.served:Gated", drain_s=0.2, timeout_s=0.2) as server,
        httpx2.Client(base_url=server.url, timeout=20) as client,
    ):
        client.post("/reset")
        hung = client.post("/step", json={"action": True}).json()

        server.process.send_signal(signal.SIGTERM)

        assert hung["requests"][0]["reason"] == "timeout"
        assert server.process.wait(15) == 0


@pytest.mark.slow  # starts server processes
def test_a_server_ends_with_the_process_that_holds_its_lifeline() -> None:
    reading, writing = os.pipe()
    ready, ready_fd = os.pipe()
    config = {
        "id": "counter-v0",
        "port": 0,
        "ready_fd": ready_fd,
        "lifeline_fd": reading,
        "log": "none",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "envweave.cli.server_main", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[reading, ready_fd],
        text=True,
    )
    os.close(ready_fd)
    os.close(reading)
    assert process.stdin is not None
    process.stdin.write(json.dumps(config))
    process.stdin.close()
    with os.fdopen(ready) as pipe:
        url = json.loads(pipe.read())["url"]
    httpx2.post(f"{url}/reset")

    os.close(writing)

    assert process.wait(20) != 0
    assert process.stdout is not None
    process.stdout.close()

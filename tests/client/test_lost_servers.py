"""Lost sessions and servers: the episode is lost, the error says so, and the caller continues."""

from __future__ import annotations

import asyncio
import math
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from environments.served import Tally
from servers import process_serving, served

import envweave as ew
from envweave.client.address import parse_address
from envweave.client.async_env import AsyncRemoteDriver, SharedConnection
from envweave.client.connection import BlockingConnection
from envweave.client.env import RemoteDriver
from envweave.client.server_info import Server, ServerInfo
from envweave.errors import (
    ActionError,
    ConnectionLostError,
    DeadlineError,
    EnvironmentLostError,
    ResetNeededError,
    StateFailedError,
)
from envweave.session import episode_seed
from envweave.wire.description import Types
from envweave.wire.encoding import MSGPACK
from envweave.wire.protocol import Backoff, Caller


@contextmanager
def two_servers(tmp_path, **options) -> Iterator[tuple[str, object]]:
    """A server, and a function that stops it and starts another in its place."""
    path = tmp_path / "one.sock"
    stack: list = []

    def start() -> None:
        stack.append(served(Tally, uds=path, drain_s=0, **options))
        stack[-1].__enter__()

    def replace() -> None:
        stack.pop().__exit__(None, None, None)
        path.unlink(missing_ok=True)
        start()

    start()
    try:
        yield f"unix://{path}", replace
    finally:
        stack.pop().__exit__(None, None, None)


def test_a_lost_session_ends_its_episode_and_its_seeds_continue(tmp_path):
    with two_servers(tmp_path) as (url, replace), ew.make(Tally, base_url=url) as env:
        start = env.reset(seed=3)
        good = env.step({"do": "step"})
        replace()

        result = env.step({"do": "step"})

        assert (result.end.reason, result.end.blame) == ("lost", "infrastructure")
        assert "no such session" in result.end.cause
        assert math.isnan(result.reward)
        assert not result.valid
        assert result.observation == good.observation
        with pytest.raises(ResetNeededError, match="no such session"):
            env.step({"do": "step"})
        again = env.reset()
        assert again.observation.seed == episode_seed(3, 1)
        assert again.episode_id.rpartition("-")[0] == start.episode_id.rpartition("-")[0]
        assert env.step({"do": "step"}).observation.at == 1


def test_with_autoreset_a_lost_episode_is_followed_by_the_next(tmp_path):
    with (
        two_servers(tmp_path) as (url, replace),
        ew.make(Tally, base_url=url, autoreset=True) as env,
    ):
        env.reset(seed=3)
        replace()

        result = env.step({"do": "step"})

        assert result.end.reason == "lost"
        assert result.ready.initial_obs.seed == episode_seed(3, 1)
        assert env.step({"do": "step"}).observation.at == 1


def test_a_lost_reset_and_a_lost_state_raise(tmp_path):
    with two_servers(tmp_path) as (url, replace), ew.make(Tally, base_url=url) as env:
        env.reset(seed=3)
        replace()
        with pytest.raises(StateFailedError, match="no such session"):
            env.state()
        env.reset()
        replace()

        with pytest.raises(EnvironmentLostError, match="no such session"):
            env.reset()

        assert env.reset().observation.at == 0


def test_an_async_caller_gets_the_same(tmp_path):
    async def main(url: str, replace) -> None:
        async with ew.make_async(Tally, base_url=url, autoreset=True) as env:
            await env.reset(seed=3)
            await asyncio.to_thread(replace)

            result = await env.step({"do": "step"})

            assert (result.end.reason, result.end.blame) == ("lost", "infrastructure")
            assert result.ready.initial_obs.seed == episode_seed(3, 1)
            assert (await env.step({"do": "step"})).observation.at == 1

    with two_servers(tmp_path) as (url, replace):
        asyncio.run(main(url, replace))


def test_an_async_action_too_large_is_refused_and_the_others_continue(tmp_path):
    async def play(env: ew.AsyncEnv) -> list[int]:
        await env.reset()
        return [(await env.step({"do": "step"})).observation.at for _ in range(20)]

    async def large(env: ew.AsyncEnv) -> int:
        await env.reset()
        with pytest.raises(ActionError, match="at most"):
            await env.step({"do": "x" * (70 * 2**20)})
        return (await env.step({"do": "step"})).observation.at

    async def main(url: str) -> None:
        server = Server(parse_address(url), MSGPACK)
        description = await asyncio.to_thread(server.call, "describe", {})
        shared = SharedConnection(server.connect_async(3))
        seen = ServerInfo(server, description, Types())
        drivers = [
            AsyncRemoteDriver(shared, seen, autoreset=False, timeout_s=None) for _ in range(3)
        ]

        played = await asyncio.gather(play(drivers[0]), large(drivers[1]), play(drivers[2]))

        for driver in drivers:
            await driver.close()
        assert played == [list(range(1, 21)), 1, list(range(1, 21))]

    with served(Tally, uds=tmp_path / "one.sock", drain_s=0) as url:
        asyncio.run(main(url))


def test_reconnecting_gives_up_after_a_while(tmp_path):
    with served(Tally, uds=tmp_path / "one.sock", drain_s=0) as url:
        address = parse_address(url)
        connection = BlockingConnection(address, MSGPACK, reconnect_s=0.1)
        connection.connect()
        seen = ServerInfo(Server(address, MSGPACK), connection.call_server("describe"), Types())
        driver = RemoteDriver(connection, seen, autoreset=False, timeout_s=None)
        driver.reset(seed=1)

    result = driver.step({"do": "step"})

    assert result.end.reason == "lost"
    assert "one.sock" in result.end.cause
    with pytest.raises(EnvironmentLostError):
        driver.reset()
    driver.close()


def test_calls_of_many_sessions_are_repeated_on_the_next_connection(tmp_path):
    """The server sees each call twice, and runs it once."""
    with served(Tally, uds=tmp_path / "one.sock", drain_s=0) as url:
        connection = BlockingConnection(parse_address(url), MSGPACK)
        callers = [Caller() for _ in range(5)]
        for method in ("open", "reset"):
            connection.post([caller.call(method, {}) for caller in callers])
            assert len(connection.collect()) == 5

        for _ in range(3):
            connection.post([caller.call("step", {"action": {}}) for caller in callers])
            if connection._socket is not None:  # else the post found the last cut already
                connection._socket._socket.shutdown(socket.SHUT_RDWR)
            seen = connection.collect()

        assert [reply.result["observation"]["at"] for reply in seen] == [3] * 5
        connection.end([caller.call("close", {}) for caller in callers])


def test_a_late_reply_is_not_taken_for_another(tmp_path):
    Tally.hung.clear()
    with served(Tally, uds=tmp_path / "one.sock", drain_s=0) as url:
        connection = BlockingConnection(parse_address(url), MSGPACK)
        caller = Caller()
        for method in ("open", "reset"):
            connection.call(caller.call(method, {}))

        with pytest.raises(DeadlineError):
            connection.call(caller.call("step", {"action": {"do": "hang"}}), 0.05)
        connection.abandon(caller.session)
        threading.Timer(0.05, Tally.hung.set).start()

        assert connection.call_server("describe")["name"] == "Tally"
        other = Caller()
        assert connection.call(other.call("open", {})).fault is None
        connection.end([other.call("close", {})])


def test_backoff_is_bounded_and_can_be_reset():
    backoff, now_s, pauses = Backoff(10.0), 100.0, []
    while (pause_s := backoff.pause_s(now_s)) is not None:
        pauses.append(pause_s)
        now_s += pause_s + 0.01
    backoff.reset()

    assert pauses[0] == 0.0
    assert 8 < sum(pauses) <= 10.0
    assert backoff.pause_s(now_s) == 0.0


def test_a_server_that_was_never_reached_is_tried_once(tmp_path):
    with pytest.raises(ConnectionLostError, match="envweave serve"):
        BlockingConnection(parse_address(f"unix://{tmp_path}/no.sock"), MSGPACK).connect()


@pytest.mark.slow  # starts the command line anew
def test_a_deadline_holds_while_sending_a_message_that_is_not_read():
    with process_serving("pkg://environments.served:Tally") as server:
        connection = BlockingConnection(parse_address(server.url), MSGPACK)
        caller = Caller()
        connection.call(caller.call("open", {}))
        server.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(DeadlineError, match="did not read the message in time"):
                connection.call(caller.call("step", {"action": bytes(12 * 2**20)}), 0.3)
        finally:
            server.process.send_signal(signal.SIGCONT)
            connection.end()

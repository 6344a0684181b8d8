"""`make("http://…")` and its variants behave as in this process, or say why they cannot."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from pathlib import Path

import pytest
from environments.served import Tally, TallyObservation
from servers import app_served, served, wait_for

import envweave as ew
from envweave.errors import (
    AccessError,
    BusyError,
    CallOrderError,
    CapacityError,
    ClosedError,
    ConnectionLostError,
    EnvIdError,
    OptionError,
    ResetNeededError,
    ServerError,
    TaskError,
)
from envweave.testing import ScriptedEnvironment


class Counted(Tally):
    """Counted apart from those that other tests leave hanging."""

    open = 0


@pytest.fixture(scope="module")
def url():
    with served(Counted, drain_s=0, max_sessions=8, queue_timeout_s=0.05) as url:
        yield url


@pytest.fixture(autouse=True)
def _no_token(monkeypatch):
    monkeypatch.delenv("ENVWEAVE_TOKEN", raising=False)


def test_a_server_is_made_from_its_url_alone(url):
    with ew.make(url) as env:
        start = env.reset(seed=5)
        result = env.step({"do": "end"})

        assert (start.observation.at, start.observation.seed) == (0, 5)
        assert (result.observation.at, result.reward, result.done) == (1, 1.0, True)
        assert env.state().step_count == 1
        assert env.action_spec.read({"do": "step"}).do == "step"


def test_the_authors_classes_come_back_where_they_are_known(url):
    with ew.make(Tally, base_url=url) as env:
        observation = env.reset(seed=5).observation

    assert type(observation) is TallyObservation


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_many_async_environments_share_one_connection(url, encoding):
    async def play(pool: ew.Pool) -> int:
        async with pool.line() as env:
            await env.reset(seed=1)
            results = [await env.step({"do": "step"}) for _ in range(5)]
            return results[-1].observation.at

    async def main() -> list[int]:
        async with ew.pool(url, size=4, encoding=encoding) as pool:
            return await asyncio.gather(*[play(pool) for _ in range(4)])

    assert asyncio.run(main()) == [5] * 4
    wait_for(lambda: Counted.open == 0)


def test_an_async_environment_continues_in_another_event_loop(url):
    env = ew.make_async(url)
    asyncio.run(env.reset(seed=1))

    steps = [asyncio.run(env.step({"do": "step"})).observation.at for _ in range(3)]

    asyncio.run(env.close())
    asyncio.run(env.close())
    assert steps == [1, 2, 3]


def test_two_calls_at_once_on_one_environment_are_refused(url):
    async def main() -> None:
        async with ew.make_async(url) as env:
            await env.reset()
            both = (env.step({"do": "step"}), env.step({"do": "step"}))
            first, second = await asyncio.gather(*both, return_exceptions=True)

            assert first.observation.at == 1
            assert isinstance(second, BusyError)

    asyncio.run(main())


def test_a_cancelled_step_loses_its_episode_and_frees_its_session(url):
    async def main() -> None:
        async with ew.make_async(url) as env:
            Tally.hung.clear()
            Tally.hanging.clear()
            await env.reset(seed=1)
            step = asyncio.ensure_future(env.step({"do": "hang"}))
            assert await asyncio.to_thread(Tally.hanging.wait, 20)
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step

            with pytest.raises(ResetNeededError, match="interrupted"):
                await env.step({"do": "step"})

            assert (await env.reset()).observation.at == 0
            assert (await env.step({"do": "step"})).observation.at == 1
            Tally.hung.set()
            await asyncio.to_thread(wait_for, lambda: Counted.open == 1)

    asyncio.run(main())


def test_an_interrupted_step_loses_its_episode_and_replies_are_not_mixed_up(url):
    Tally.hung.clear()
    Tally.hanging.clear()

    def interrupt() -> None:
        assert Tally.hanging.wait(20)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with ew.make(url) as env:
        env.reset(seed=1)
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            env.step({"do": "hang"})
        thread.join()

        with pytest.raises(ResetNeededError, match="interrupted"):
            env.step({"do": "step"})

        Tally.hung.set()
        assert env.reset(seed=2).observation.seed == 2
        assert env.step({"do": "step"}).observation.at == 1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_copy_may_not_use_its_parents_connection(url):
    with ew.make(url) as env:
        env.reset()
        pid = os.fork()
        if pid == 0:
            try:
                env.step({"do": "step"})
            except CallOrderError as error:
                os._exit(7 if "forked" in str(error) else 1)
            finally:
                os._exit(2)

        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert env.step({"do": "step"}).observation.at == 1


def test_an_environment_that_is_dropped_warns_and_is_closed_at_the_server(url):
    held = [ew.make(url)]

    with pytest.warns(ResourceWarning, match="dropped without close"):
        held.clear()
    gc.collect()

    wait_for(lambda: Counted.open == 0)


def test_a_closed_environment_refuses_calls_and_may_be_closed_again(url):
    env = ew.make(url)
    env.close()
    env.close()

    for call in (env.reset, env.state, lambda: env.step({"do": "step"})):
        with pytest.raises(ClosedError):
            call()
    wait_for(lambda: Counted.open == 0)


def test_a_full_server_is_reported(url):
    envs = [ew.make(url) for _ in range(8)]

    with pytest.raises(CapacityError, match="8 sessions"):
        ew.make(url)

    for env in envs:
        env.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_episode_steps": 3}, "max_episode_steps=3 comes too late.*Start it with"),
        ({"transform": str}, "transform=.* comes too late"),
        ({"size": 3}, "size=3 comes too late"),
        ({"backend": "process"}, "backend='process' cannot be combined with"),
        ({"base_url": "http://a"}, "two servers"),
        ({"encoding": "xml"}, "encoding must be one of 'msgpack', 'json', got 'xml'"),
        ({"provider": ew.SubprocessProvider()}, "is already running"),
    ],
)
def test_options_of_the_server_are_refused_with_the_remedy(url, options, message):
    with pytest.raises(OptionError, match=message):
        ew.make(url, **options)


def test_an_unused_token_is_refused():
    with pytest.raises(OptionError, match="token is for a server"):
        ew.make("counter-v0", token="x")


def test_the_token_is_shown_and_a_wrong_one_refused(monkeypatch):
    with served(Tally, token="right", drain_s=0) as url:
        with pytest.raises(AccessError, match="token=…, or set"):
            ew.make(url)
        with pytest.raises(AccessError):
            ew.make(url, token="wrong")
        ew.make(url, token="right").close()
        monkeypatch.setenv("ENVWEAVE_TOKEN", "right")
        ew.make(url).close()


def test_a_missing_server_is_reported_at_once_with_advice():
    for make in (ew.make, ew.make_async):
        with pytest.raises(ConnectionLostError, match=r"No server answers.*envweave serve ID"):
            make("http://127.0.0.1:1")
    with pytest.raises(EnvIdError, match="port"):
        ew.make("http://127.0.0.1:port")


def test_a_server_of_another_kind_is_recognized():
    async def app(scope, receive, send):
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await receive()

    with app_served(app) as url, pytest.raises(ServerError, match="is not an envweave server"):
        ew.make(url)


def test_the_tasks_of_a_server_are_fetched_on_access():
    with served(ScriptedEnvironment, drain_s=0) as url, ew.make(url) as env:
        local = ScriptedEnvironment().tasks.public()
        tasks = env.tasks

        assert tasks.splits == local.splits
        assert [tasks.length(name) for name in tasks.splits] == [
            local.length(name) for name in local.splits
        ]
        assert {name: list(tasks(name)) for name in tasks.splits} == {
            name: list(local(name)) for name in local.splits
        }
        assert tasks.draw(3) == local.draw(3)
        assert tasks.get("third") == local.get("third")
        with pytest.raises(TaskError, match="third"):
            tasks.get("thrid")


def test_a_message_too_large_for_the_server_refuses_the_action_and_nothing_else(url):
    with ew.make(url) as env:
        env.reset()

        with pytest.raises(ew.EnvWeaveError, match="action"):
            env.step({"do": "x" * (80 * 2**20)})

        assert env.step({"do": "step"}).observation.at == 1


@pytest.mark.slow  # starts the command line anew
def test_a_server_process_is_started_and_stopped_by_default():
    env = ew.make("counter-v0", backend="http")
    path = env._transport._connection.address.socket_path
    env.reset(seed=1)

    assert env.step({"delta": 2}).observation.value == 2
    assert Path(path).is_socket()

    env.close()
    assert not Path(path).exists()

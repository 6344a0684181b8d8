"""Whatever happens to the connection, every step runs exactly once, or the loss is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from environments.served import Tally
from hostile_servers import CuttingProxy
from servers import served

import envweave as ew
from envweave import errors

pytestmark = pytest.mark.slow  # cuts many connections

MANY = [pytest.param(10_000, marks=pytest.mark.slow), 1_000]


@contextmanager
def cut(seed: int, mean_bytes: int, **options: Any) -> Iterator[CuttingProxy]:
    """Serve `Tally` behind a proxy that cuts its connections."""
    with served(Tally, **options) as url:
        address = ("127.0.0.1", urlsplit(url).port or 0)
        with CuttingProxy(address, seed=seed, mean_bytes=mean_bytes) as proxy:
            yield proxy


def wrong_steps(env: ew.Env, count: int) -> list[str]:
    """Take steps; return what was not as it should be."""
    try:
        start = env.reset(seed=1)
    except errors.EnvironmentLostError as error:
        return [f"the reset was lost: {error}"]
    wrong = []
    for i in range(1, count + 1):
        result = env.step({"do": "step"})
        if (result.observation.at, result.step_index, result.done) != (i, i, False):
            wrong.append(f"step {i} came back as {result!r}")
            break
        if result.episode_id != start.episode_id:
            wrong.append(f"step {i} is of another episode")
    return wrong


@pytest.mark.slow  # starts server processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", MANY)
@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_cut_at_random_points_every_step_is_taken_exactly_once(count: int, encoding: str) -> None:
    made = Tally.made
    with (
        cut(7, 4000) as proxy,
        ew.make(f"http://127.0.0.1:{proxy.port}", encoding=encoding) as env,
    ):
        wrong = wrong_steps(env, count)
        at = env.state().at  # type: ignore[attr-defined]

    assert wrong == []
    assert at == count
    assert proxy.cuts > count / 100
    assert Tally.made <= made + 2  # one to look at, and one that is played


def test_without_kept_replies_the_same_run_loses_its_episode() -> None:
    with (
        cut(7, 20_000, replies_kept=0) as proxy,  # not while the session is opened
        ew.make(f"http://127.0.0.1:{proxy.port}") as env,
    ):
        wrong = wrong_steps(env, 1_000)

    assert len(wrong) == 1
    assert "lost" in wrong[0]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", MANY)
def test_an_async_caller_steps_exactly_once_too(count: int) -> None:
    async def play(port: int) -> list[int]:
        async with ew.make_async(f"http://127.0.0.1:{port}") as env:
            await env.reset(seed=1)
            return [(await env.step({"do": "step"})).observation.at for _ in range(count)]

    with cut(8, 4000) as proxy:
        seen = asyncio.run(play(proxy.port))

    assert seen == list(range(1, count + 1))
    assert proxy.cuts > count / 100


@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [pytest.param(1_250, marks=pytest.mark.slow), 150])
def test_a_vector_steps_exactly_once_too(count: int) -> None:
    with (
        cut(9, 30_000) as proxy,
        ew.make_vector(f"http://127.0.0.1:{proxy.port}", num_envs=8) as venv,
    ):
        venv.reset(seed=1)
        seen = [venv.step([{"do": "step"}] * 8) for _ in range(count)]

    for i, batch in enumerate(seen, 1):
        assert batch.valid.all()
        assert batch.current["at"].tolist() == [i] * 8
    assert proxy.cuts > 5


@pytest.mark.slow  # many cut connections
def test_episodes_that_end_are_followed_by_the_streams_next_though_connections_are_cut() -> None:
    def seeds(env: ew.Env) -> list[Any]:
        env.reset(seed=5)
        return [env.step({"do": "end"}).ready.initial_info["seed"] for _ in range(200)]  # type: ignore[union-attr]

    with (
        cut(10, 2000) as proxy,
        ew.make(f"http://127.0.0.1:{proxy.port}", autoreset=True) as env,
    ):
        seen = seeds(env)
    with ew.make(Tally, autoreset=True) as env:
        expected = seeds(env)

    assert seen == expected
    assert proxy.cuts > 20


@pytest.mark.timeout(300)
@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_many_async_callers_over_one_connection_step_exactly_once_too(encoding: str) -> None:
    count, size = 100, 16

    async def play(line: Any) -> list[int]:
        await line.reset(seed=1)
        return [(await line.step({"do": "step"})).observation.at for _ in range(count)]

    async def main(port: int) -> list[list[int]]:
        async with (
            ew.pool(f"http://127.0.0.1:{port}", size=size, encoding=encoding) as pool,
            AsyncExitStack() as stack,
        ):
            lines = [await stack.enter_async_context(pool.line()) for _ in range(size)]
            return await asyncio.gather(*map(play, lines))

    with cut(11, 12_000) as proxy:
        seen = asyncio.run(main(proxy.port))

    assert seen == [list(range(1, count + 1))] * size
    assert proxy.cuts > 5

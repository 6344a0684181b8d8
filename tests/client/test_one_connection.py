"""Many sessions over one connection neither wait for each other nor mix up replies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from environments.served import Tally
from servers import served

import envweave as ew
from envweave.errors import ActionError

SIZE = 8


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(Tally, drain_s=0, max_sessions=2 * SIZE, max_message_bytes=2048) as url:
        yield url


@pytest.fixture
def hung() -> Iterator[None]:
    Tally.hung.clear()
    Tally.hanging.clear()
    yield
    Tally.hung.set()


async def take(env: Any, count: int) -> list[int]:
    return [(await env.step({"do": "step"})).observation.at for _ in range(count)]


async def open_envs(pool: Any, stack: AsyncExitStack) -> list[Any]:
    envs = [await stack.enter_async_context(pool.line()) for _ in range(SIZE)]
    await asyncio.gather(*[env.reset(seed=1) for env in envs])
    return envs


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
@pytest.mark.usefixtures("hung")
def test_a_hung_session_does_not_block_others(url: str, encoding: str) -> None:
    async def main() -> None:
        async with (
            ew.pool(url, size=SIZE, encoding=encoding) as pool,
            AsyncExitStack() as stack,
        ):
            envs = await open_envs(pool, stack)
            straggler = asyncio.ensure_future(envs[3].step({"do": "hang"}))
            async with asyncio.timeout(20):
                others = await asyncio.gather(
                    *[take(env, 20) for env in envs if env is not envs[3]]
                )

            assert others == [list(range(1, 21))] * (SIZE - 1)
            assert not straggler.done()
            Tally.hung.set()
            assert (await straggler).observation.at == 1

    asyncio.run(main())


def test_a_refused_call_does_not_affect_others_in_its_frame(url: str) -> None:
    async def main() -> None:
        async with ew.pool(url, size=SIZE) as pool, AsyncExitStack() as stack:
            envs = await open_envs(pool, stack)
            wrong = [envs[0].step({"do": 5}), envs[1].step({"do": "x" * 3000})]
            refused = asyncio.gather(*wrong, return_exceptions=True)

            others = await asyncio.gather(*[take(env, 3) for env in envs[2:]])

            assert [type(one) for one in await refused] == [ActionError, ActionError]
            assert others == [[1, 2, 3]] * (SIZE - 2)
            assert await asyncio.gather(*[take(env, 1) for env in envs[:2]]) == [[1], [1]]

    asyncio.run(main())


def test_calls_that_fill_a_message_each_are_all_carried_out(url: str) -> None:
    async def main() -> list[int]:
        async with ew.pool(url, size=SIZE) as pool, AsyncExitStack() as stack:
            envs = await open_envs(pool, stack)
            results = await asyncio.gather(*[env.step({"do": "x" * 1800}) for env in envs])
            return [result.observation.at for result in results]

    assert asyncio.run(main()) == [1] * SIZE


def test_a_call_cancelled_before_it_was_sent_leaves_its_neighbours_alone(url: str) -> None:
    async def main() -> None:
        async with ew.pool(url, size=SIZE) as pool, AsyncExitStack() as stack:
            envs = await open_envs(pool, stack)
            steps = [asyncio.ensure_future(take(env, 1)) for env in envs]
            await asyncio.sleep(0)
            steps[0].cancel()

            came = await asyncio.gather(*steps, return_exceptions=True)

            assert isinstance(came[0], asyncio.CancelledError)
            assert came[1:] == [[1]] * (SIZE - 1)
            await envs[0].reset()
            assert await take(envs[0], 2) == [1, 2]

    asyncio.run(main())

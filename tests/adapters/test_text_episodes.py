"""The environments of `to_verifiers`: made, used again and closed."""

from __future__ import annotations

import asyncio
import threading

import pytest

import envweave as ew
from envweave.adapters.verifiers.text_episodes import TextEnvironments
from envweave.errors import ClosedError, DefinitionError
from envweave.examples import CounterEnv, TicTacToeEnv


def test_an_environment_is_closed_if_its_caller_was_cancelled_while_it_was_made():
    made, is_making, may_go_on = [], threading.Event(), threading.Event()

    def make() -> ew.Env:
        if made:
            is_making.set()
            may_go_on.wait(10)
        made.append(ew.make(CounterEnv))
        return made[-1]

    async def play() -> None:
        environments = TextEnvironments(make, is_one=False)
        first = await environments.acquire()
        second = asyncio.create_task(environments.acquire())
        await asyncio.to_thread(is_making.wait, 10)
        second.cancel()
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await second
        await environments.release(first)
        environments.close()

    asyncio.run(play())

    assert len(made) == 2
    for env in made:
        with pytest.raises(ClosedError):
            env.reset()


def test_an_environment_with_several_agents_is_closed_when_it_is_refused():
    env = ew.make(TicTacToeEnv)

    with pytest.raises(DefinitionError, match="has several agents"):
        TextEnvironments(lambda: env, is_one=False)

    with pytest.raises(ClosedError):
        env.reset()

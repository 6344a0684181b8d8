"""Default limits of rollouts, rollouts that lost most episodes, and pools without a block."""

from __future__ import annotations

import asyncio
import logging

import pytest

import envweave as ew
from envweave.errors import CallOrderError, ClosedError, OptionError, RolloutFailedError


class Endless(ew.Environment):
    def reset(self, *, seed: int | None = None):
        return 0, {}

    def step(self, action: int):
        return 0, 1.0, False, False, {}


class Failing(ew.Environment):
    """Every episode after the first few fails, also those of another one that replaces it."""

    def __init__(self, left: list[bool]) -> None:
        self.left = left

    def reset(self):
        return 0, {}

    def step(self, action: int):
        if not self.left:
            raise OSError("disk full")
        self.left.pop()
        return 1, 1.0, True, False, {}


def fails_after(good: int):
    left = [True] * good
    return lambda: Failing(left)


def act(result):
    return 0


def test_an_agent_that_never_ends_is_truncated_by_default_with_a_warning(caplog):
    with ew.pool(Endless, size=1) as pool:
        (episode,) = ew.rollout(pool, act, episodes=1).run()

    assert (episode.length, episode.end.reason) == (1_000, "truncated")
    assert "1 of 1 episodes of 'Endless' were truncated after 1000 steps" in caplog.text
    assert "max_steps=None for none" in caplog.text


def test_a_limit_of_the_caller_replaces_the_default(caplog):
    with ew.pool(Endless, size=1) as pool:
        (episode,) = ew.rollout(pool, act, episodes=1, max_steps=1_000).run()

    assert episode.length == 1_000
    assert caplog.text == ""


@pytest.mark.parametrize("max_steps", ["auto", None])
def test_a_limit_of_the_pool_replaces_the_default(max_steps, caplog):
    with ew.pool(Endless, size=1, max_episode_steps=1_200) as pool:
        (episode,) = ew.rollout(pool, act, episodes=1, max_steps=max_steps).run()

    assert episode.length == 1_200
    assert caplog.text == ""


def test_a_rollout_that_lost_most_episodes_warns_that_the_rest_is_biased(caplog):
    with ew.pool(fails_after(1), size=1) as pool:
        episodes = ew.rollout(pool, act, episodes=4, on_fault="keep").run()

    assert [episode.usable for episode in episodes] == [True, False, False, False]
    assert "Only 1 of 4 episodes" in caplog.text
    assert "can be used (3 error)." in caplog.text
    assert "biased" in caplog.text


def test_min_usable_fails_a_rollout_that_lost_more():
    with ew.pool(fails_after(3), size=1) as pool:
        rollout = ew.rollout(pool, act, episodes=4, on_fault="keep", min_usable=0.9)

        with pytest.raises(RolloutFailedError, match=r"Only 3 of 4 .* min_usable=0.9 asks for"):
            rollout.run()


def test_min_usable_0_accepts_any_loss(caplog):
    with ew.pool(fails_after(1), size=1) as pool:
        ew.rollout(pool, act, episodes=4, on_fault="keep", min_usable=0).run()

    assert "can be used" not in caplog.text


@pytest.mark.parametrize("share", [-0.1, 2, True, "most"])
def test_min_usable_must_be_a_share(share):
    with ew.pool("counter-v0", size=1) as pool, pytest.raises(OptionError, match="from 0 to 1"):
        ew.rollout(pool, act, episodes=1, min_usable=share)


def test_equal_losses_are_one_record_of_the_log(caplog):
    with caplog.at_level(logging.WARNING), ew.pool(fails_after(0), size=1) as pool:
        ew.rollout(pool, act, episodes=30, on_fault="keep", min_usable=0).run()

    ended = [record for record in caplog.records if "an episode of" in record.message]
    assert len(ended) == 1
    assert "disk full" in ended[0].message


def test_different_losses_are_logged_each(caplog):
    class Broken(ew.Environment):
        def reset(self):
            return 0, {}

        def step(self, action: str):
            raise OSError(action)

    with ew.make(Broken) as env:
        for word in ("one", "two"):
            env.reset()
            env.step(word)

    assert len([record for record in caplog.records if "an episode of" in record.message]) == 2


def test_an_open_pool_needs_no_block():
    pool = ew.pool("counter-v0", size=2).open()
    try:
        assert pool.open() is pool
        episodes = ew.rollout(pool, lambda result: {"delta": 1}, episodes=3).run()
    finally:
        pool.close()

    assert [episode.length for episode in episodes] == [3, 3, 3]
    pool.close()
    with pytest.raises(ClosedError):
        pool.open()


def test_a_pool_closed_in_its_block_is_closed_once():
    with ew.pool("counter-v0", size=1) as pool:
        pool.close()

    with pytest.raises(ClosedError):
        ew.rollout(pool, act, episodes=1)


def test_close_is_awaited_where_there_is_a_loop():
    async def play():
        pool = ew.pool("counter-v0", size=1)
        with pytest.raises(CallOrderError):
            pool.open()
        episodes = await ew.rollout(pool, lambda result: {"delta": 1}, episodes=1)
        await pool.close()
        await pool.close()
        return episodes

    assert len(asyncio.run(play())) == 1


def test_a_pool_that_is_not_open_says_how():
    pool = ew.pool("counter-v0", size=1)

    with pytest.raises(CallOrderError, match=r"or call its open\(\) before"):
        ew.rollout(pool, act, episodes=1).run()

    asyncio.run(pool.close())

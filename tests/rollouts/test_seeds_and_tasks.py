"""The seed and the task of an episode, whichever worker plays it and whenever."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest
from environments.edge_cases import Seedless
from environments.tasks import TASKS, Walk, forward
from hypothesis import given, settings
from hypothesis import strategies as st

import envweave as ew
from envweave.errors import OptionError, SeedError, TaskError


def content(episodes: list[ew.Episode]) -> list[tuple]:
    """Everything of the episodes but their names and how long they took."""
    return [
        (e.task, e.seed, e.group, e.member, e.observations, e.reward, e.length, e.end)
        for e in episodes
    ]


@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 9), at_once=st.integers(1, 9), order=st.integers(0, 2**31))
def test_the_same_seed_gives_the_same_episodes_however_they_overlap(size, at_once, order):
    chance = random.Random(order)

    async def dawdles(result: ew.StepResult) -> dict:
        for _ in range(chance.randrange(5)):
            await asyncio.sleep(0)
        return {"by": 1}

    def episodes(agent, size: int, at_once: int) -> list[ew.Episode]:
        with ew.pool(Walk, size=size) as pool:
            options = {"group_size": 3, "max_concurrency": at_once}
            return ew.rollout(pool, agent, tasks=list("abcd"), seed=7, **options).run()

    assert content(episodes(dawdles, size, at_once)) == content(episodes(forward, 1, 1))


def test_another_seed_gives_other_episodes():
    with ew.pool(Walk, size=2) as pool:
        first = ew.rollout(pool, forward, tasks=["a"] * 5, seed=1).run()
        second = ew.rollout(pool, forward, tasks=["a"] * 5, seed=2).run()

    assert not {episode.seed for episode in first} & {episode.seed for episode in second}


def test_each_of_a_group_has_its_own_seed_and_the_same_task():
    with ew.pool(Walk, size=2) as pool:
        episodes = ew.rollout(pool, forward, tasks=["a", "b"], group_size=4, seed=1).run()

    assert len({episode.seed for episode in episodes}) == 8
    assert [episode.task_id for episode in episodes] == ["a"] * 4 + ["b"] * 4


def test_a_group_may_share_its_seed():
    with ew.pool(Walk, size=3) as pool:
        episodes = ew.rollout(
            pool, forward, tasks=["a", "a"], group_size=3, seed=1, share_seed=True
        ).run()

    first, second = episodes[:3], episodes[3:]
    assert len({episode.seed for episode in first}) == 1
    assert len({episode.seed for episode in second}) == 1
    assert first[0].seed != second[0].seed
    assert first[0].observations == first[1].observations == first[2].observations


def test_a_seed_that_was_drawn_is_shown_and_gives_the_same_episodes_again():
    with ew.pool(Walk, size=2) as pool:
        rollout = ew.rollout(pool, forward, episodes=6)
        drawn = rollout.run()
        again = ew.rollout(pool, forward, episodes=6, seed=rollout.seed).run()

    assert content(drawn) == content(again)


def test_two_rollouts_without_a_seed_differ():
    with ew.pool(Walk, size=2) as pool:
        seeds = [ew.rollout(pool, forward, episodes=1).run()[0].seed for _ in range(3)]

    assert len(set(seeds)) == 3


@pytest.mark.parametrize("options", [{"seed": 1}, {"share_seed": True}])
def test_a_seed_that_cannot_be_honored_is_refused(options):
    with (
        ew.pool(Seedless, size=1) as pool,
        pytest.raises(SeedError, match="takes no seed"),
    ):
        ew.rollout(pool, lambda result: {}, episodes=1, **options)


def test_an_environment_without_a_seed_gets_none():
    with ew.pool(Seedless, size=2) as pool:
        rollout = ew.rollout(pool, lambda result: {}, episodes=4, group_size=2)
        episodes = rollout.run()

    assert rollout.seed is None
    assert [episode.seed for episode in episodes] == [None] * 4


@pytest.mark.parametrize("seed", [-1, 1.5, "7", True])
def test_an_invalid_seed_is_refused(seed):
    with ew.pool(Walk, size=1) as pool, pytest.raises(SeedError, match="integer >= 0"):
        ew.rollout(pool, forward, episodes=1, seed=seed)


def test_tasks_may_be_tasks_or_ids_or_a_split():
    own = ew.Task("mine", data={"x": 1})
    with ew.pool(Walk, size=2) as pool:
        mixed = ew.rollout(pool, forward, tasks=[own, "b"]).run()
        split = ew.rollout(pool, forward, tasks=pool.tasks("train")).run()

    assert [episode.task for episode in mixed] == [own, TASKS.get("b")]
    assert [episode.task_id for episode in split] == list("abcdef")


def test_a_split_is_played_once():
    with ew.pool(Walk, size=2) as pool:
        rollout = ew.rollout(pool, forward, tasks=pool.tasks("train"), group_size=2)
        total, episodes = rollout.total, rollout.run()

    assert total == len(episodes) == 12


def test_no_more_than_the_requested_episodes_are_played():
    with ew.pool(Walk, size=4) as pool:
        few = ew.rollout(pool, forward, tasks=list("abcdef"), group_size=2, episodes=6).run()
        all_there_are = ew.rollout(pool, forward, tasks=list("ab"), episodes=100).run()

    assert [episode.task_id for episode in few] == list("aabbcc")
    assert len(all_there_are) == 2


class Sums(Walk):
    tasks = ew.Tasks.endless(lambda split, index: ew.Task(f"{split}-{index}", split))


def test_endless_tasks_need_a_bound():
    with ew.pool(Sums, size=2) as pool:
        with pytest.raises(OptionError, match=r"endless.*episodes=…"):
            ew.rollout(pool, forward, tasks=pool.tasks("train"))

        episodes = ew.rollout(pool, forward, tasks=pool.tasks("train"), episodes=4).run()

    assert [episode.task_id for episode in episodes] == [f"train-{i}" for i in range(4)]


def test_other_endless_tasks_are_cut_at_the_bound_too():
    with ew.pool(Walk, size=2) as pool:
        episodes = ew.rollout(pool, forward, tasks=itertools.cycle("ab"), episodes=5).run()

    assert [episode.task_id for episode in episodes] == list("ababa")


def test_without_tasks_one_is_drawn_for_each_group():
    with ew.pool(Walk, size=3) as pool:
        episodes = ew.rollout(pool, forward, episodes=40, group_size=4, seed=0).run()
        again = ew.rollout(pool, forward, episodes=40, group_size=4, seed=0).run()

    groups = [{e.task_id for e in episodes if e.group == group} for group in range(10)]
    assert all(len(group) == 1 for group in groups)
    assert len(set.union(*groups)) > 1
    assert content(episodes) == content(again)


def test_a_task_for_an_environment_that_takes_none_is_refused():
    with ew.pool("counter-v0", size=1) as pool, pytest.raises(TaskError, match="takes no task"):
        ew.rollout(pool, forward, tasks=["a"])


@pytest.mark.parametrize(
    ("task", "message"), [("aa", "There is no task 'aa'"), (7, "7 is neither a Task nor")]
)
def test_a_task_that_is_unknown_ends_the_rollout(task, message):
    with ew.pool(Walk, size=2) as pool, pytest.raises(TaskError, match=message):
        ew.rollout(pool, forward, tasks=["a", task, "b"]).run()


def test_tasks_that_cannot_be_read_end_the_rollout():
    def tasks():
        yield "a"
        raise OSError("the file is gone")

    with ew.pool(Walk, size=2) as pool, pytest.raises(OSError, match="the file is gone"):
        ew.rollout(pool, forward, tasks=tasks()).run()

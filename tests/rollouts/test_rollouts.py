"""How a rollout is awaited, gone through, ordered and held back."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from environments.tasks import TASKS, Move, Seen, Walk, counted, forward

import envweave as ew
from envweave.errors import CallOrderError, OptionError, TaskError


def tasks_and_members(episodes: list[ew.Episode]) -> list[tuple[str | None, int, int]]:
    return [(episode.task_id, episode.group, episode.member) for episode in episodes]


def test_awaiting_returns_the_episodes_in_the_order_of_their_tasks_groups_together():
    async def scenario() -> list[ew.Episode]:
        async with ew.pool(Walk, size=4) as pool:
            return await ew.rollout(pool, forward, tasks=["b", "a"], group_size=3)

    episodes = asyncio.run(scenario())

    assert tasks_and_members(episodes) == [("b", 0, i) for i in range(3)] + [
        ("a", 1, i) for i in range(3)
    ]


def test_going_through_yields_each_episode_as_it_finishes():
    async def scenario() -> list[str | None]:
        gates = {name: asyncio.Event() for name in "abc"}

        async def agent(result: ew.StepResult) -> dict:
            await gates[result.task_id].wait()
            return {"by": 1}

        async with ew.pool(Walk, size=3) as pool:
            gates["c"].set()
            finished = []
            async for episode in ew.rollout(pool, agent, tasks=["a", "b", "c"]):
                finished.append(episode.task_id)
                gates["a" if episode.task_id == "c" else "b"].set()
            return finished

    assert asyncio.run(scenario()) == ["c", "a", "b"]


def test_one_straggler_does_not_delay_the_others():
    async def scenario() -> list[str | None]:
        others_finished = asyncio.Event()

        async def agent(result: ew.StepResult) -> dict:
            if result.task_id == "a":
                await others_finished.wait()
            return {"by": 1}

        finished = []
        async with ew.pool(Walk, size=2) as pool:
            async for episode in ew.rollout(pool, agent, tasks=list("abcdef")):
                finished.append(episode.task_id)
                if len(finished) == 5:
                    others_finished.set()
        return finished

    assert asyncio.run(scenario()) == ["b", "c", "d", "e", "f", "a"]


@pytest.mark.parametrize(("size", "asked", "most"), [(3, None, 3), (8, 2, 2), (2, 50, 2)])
def test_no_more_episodes_run_at_once_than_the_pool_and_the_caller_allow(size, asked, most):
    class Watched(Walk):
        running = 0
        peak = 0

        def reset(self, *, task: ew.Task, seed: int | None = None) -> Seen:
            Watched.running += 1
            Watched.peak = max(Watched.peak, Watched.running)
            return super().reset(task=task, seed=seed)

        def step(self, action: Move) -> Seen:
            seen = super().step(action)
            Watched.running -= seen.done
            return seen

    with ew.pool(Watched, size=size) as pool:
        ew.rollout(pool, forward, episodes=40, max_concurrency=asked).run()

    assert (Watched.peak, Watched.running) == (most, 0)


def test_tasks_are_fetched_only_when_an_environment_is_free():
    taken = []

    def tasks():
        for i in itertools.count():
            taken.append(i)
            yield TASKS.get("a")

    async def scenario() -> None:
        async with ew.pool(Walk, size=2) as pool:
            asked = asyncio.Event()

            async def waits(result: ew.StepResult) -> dict:
                asked.set()
                await asyncio.Event().wait()

            rollout = ew.rollout(pool, waits, tasks=tasks())
            waiting = asyncio.ensure_future(anext(aiter(rollout)))
            await asked.wait()
            for _ in range(20):
                await asyncio.sleep(0)
            await rollout.cancel()
            await asyncio.wait([waiting])
            with pytest.raises(StopAsyncIteration):
                waiting.result()

    asyncio.run(scenario())

    assert taken == [0, 1]


def test_a_slow_consumer_holds_back_new_episodes():
    begun = set()

    def agent(result: ew.StepResult) -> dict:
        begun.add(result.episode_id)
        return {"by": 1}

    async def scenario() -> tuple[int, int]:
        async with ew.pool(Walk, size=3) as pool:
            stream = aiter(ew.rollout(pool, agent, episodes=1_000))
            await anext(stream)
            for _ in range(1_000):
                await asyncio.sleep(0)
            held = len(begun)
            await stream.aclose()
            return held, len(begun)

    held, at_last = asyncio.run(scenario())

    assert held == at_last == 1 + 2 * 3


def test_two_rollouts_share_a_pool_at_the_same_time():
    async def scenario() -> tuple[list[ew.Episode], list[ew.Episode]]:
        both = asyncio.Barrier(2)
        met = set()

        async def agent(result: ew.StepResult) -> dict:
            name = result.task_id
            if name not in met:
                met.add(name)
                await both.wait()  # only if both run can either go on
            return {"by": 1}

        async def collect(task: str) -> list[ew.Episode]:
            return await ew.rollout(pool, agent, tasks=[task] * 9, max_concurrency=1)

        async with ew.pool(Walk, size=2) as pool:
            first, second = await asyncio.gather(collect("a"), collect("b"))
        return first, second

    first, second = asyncio.run(scenario())

    assert {episode.task_id for episode in first} == {"a"}
    assert {episode.task_id for episode in second} == {"b"}
    assert len(first) == len(second) == 9


def test_a_program_without_a_loop_goes_through_episodes_as_they_finish():
    with ew.pool("counter-v0", size=2) as pool:
        lengths = [e.length for e in ew.rollout(pool, lambda result: {"delta": 1}, episodes=5)]

    assert lengths == [3] * 5


def test_a_program_without_a_loop_may_leave_early():
    kind = counted()

    with ew.pool(kind, size=2) as pool:
        for _ in ew.rollout(pool, forward, episodes=100):
            break
        again = ew.rollout(pool, forward, episodes=4).run()

    assert [episode.reward for episode in again] == [3.0] * 4
    assert kind.log == {"made": 2, "closed": 2}


def test_a_rollout_runs_once():
    with ew.pool("counter-v0", size=1) as pool:
        rollout = ew.rollout(pool, lambda result: {"delta": 3}, episodes=1)
        rollout.run()

        with pytest.raises(CallOrderError, match="already"):
            rollout.run()


def test_a_rollout_that_is_never_awaited_warns():
    with (
        ew.pool("counter-v0", size=1) as pool,
        pytest.warns(RuntimeWarning, match="never awaited"),
    ):
        ew.rollout(pool, forward, episodes=1)


def test_without_tasks_no_episodes_are_played():
    with ew.pool(Walk, size=2) as pool:
        assert ew.rollout(pool, forward, tasks=[]).run() == []


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, OptionError, "how many episodes"),
        ({"episodes": 0}, OptionError, "episodes must be an integer >= 1, .* got 0"),
        ({"episodes": 10, "group_size": 4}, OptionError, "Use episodes=12"),
        (
            {"episodes": 1, "group_size": 0},
            OptionError,
            "group_size must be an integer >= 1, .* got 0",
        ),
        (
            {"episodes": 1, "max_concurrency": -1},
            OptionError,
            "max_concurrency must be an integer >= 1, .* got -1",
        ),
        (
            {"episodes": 1, "max_steps": 0},
            OptionError,
            "max_steps must be an integer >= 1, .* got 0",
        ),
        (
            {"episodes": 1, "max_faults": -1},
            OptionError,
            "max_faults must be an integer >= 1, .* got -1",
        ),
        ({"episodes": 1, "on_fault": "replcae"}, OptionError, "Did you mean 'replace'"),
        ({"episodes": 1, "share_seed": 1}, OptionError, "share_seed must be True or False, got 1"),
        (
            {"episodes": 1, "progress": "yes"},
            OptionError,
            "progress must be True or False, got 'yes'",
        ),
        ({"episodes": 1, "agent": 7}, OptionError, "agent=7 cannot be called"),
        ({"tasks": "train"}, TaskError, r"pool\.tasks\('train'\)"),
        ({"tasks": TASKS}, TaskError, "tasks must be iterable"),
        ({"tasks": 3}, TaskError, "tasks must be iterable"),
        ({"tasks": itertools.cycle(["a"])}, OptionError, "endless.*episodes="),
        ({"tasks": itertools.repeat("a")}, OptionError, "endless.*episodes="),
    ],
)
def test_invalid_options_are_refused_before_anything_is_played(options, error, message):
    with ew.pool(Walk, size=1) as pool, pytest.raises(error, match=message):
        ew.rollout(pool, **{"agent": forward, **options})


def test_a_non_pool_is_refused():
    with ew.make("counter-v0") as env, pytest.raises(OptionError, match="Make one with pool"):
        ew.rollout(env, forward, episodes=1)

"""Tasks that are fetched from a server: which is away, comes back, or is killed at random."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from environments.crashing import kill
from environments.tasks import TASKS, Endless, ManyTasks, Walk, forward
from servers import app_served, process_serving, served

import envweave as ew
from envweave.errors import RolloutFailedError, TaskError
from envweave.wire.protocol import Backoff


@contextmanager
def stoppable(env: Any, path: Path) -> Iterator[tuple[str, Callable[[], None], Callable[[], None]]]:
    """A server; what starts it again after it was stopped, and what stops it."""
    running = ExitStack()

    def start() -> None:
        path.unlink(missing_ok=True)
        running.enter_context(served(env, uds=path, drain_s=0))

    start()
    with running:
        yield f"unix://{path}", start, running.close


def impatient(pool: ew.Pool) -> None:
    """Let a pool try for a moment only to reach its server again."""
    connection: Any = pool._slots[0]._transport._connection
    connection._backoff = Backoff(0.05)


KINDS: list[tuple[type[Walk], Callable[[ew.Pool], Any]]] = [
    (Walk, lambda pool: pool.tasks("train")),
    (Walk, lambda pool: list("abcdef")),
    (Walk, lambda pool: None),
    (Endless, lambda pool: pool.tasks("train")),
    (Endless, lambda pool: [f"train-{i}" for i in range(6)]),
    (Endless, lambda pool: None),
]


@pytest.mark.parametrize(("kind", "tasks"), KINDS)
def test_a_rollout_waits_for_an_unreachable_server_without_blocking_the_loop(
    kind: type[Walk], tasks: Callable[[ew.Pool], Any], tmp_path: Path
) -> None:
    async def play(env: Any, start: Callable[[], None], **options: Any) -> list[ew.Episode]:
        async with ew.pool(env, size=3, **options) as pool:
            if options:
                await asyncio.to_thread(stop)
            rollout = ew.rollout(pool, forward, tasks=tasks(pool), episodes=6, seed=3)
            running = asyncio.ensure_future(rollout)
            await asyncio.sleep(0)
            await asyncio.to_thread(start)
            return await running

    with stoppable(kind, tmp_path / "one.sock") as (url, start, stop):
        far = asyncio.run(play(kind, start, base_url=url))
        near = asyncio.run(play(kind, lambda: None))

    assert [(e.task, e.seed, e.reward, e.attempts) for e in far] == [
        (e.task, e.seed, e.reward, 1) for e in near
    ]


@pytest.mark.parametrize(("kind", "tasks"), KINDS[::3])
def test_an_unreachable_server_costs_episodes_that_are_reported(
    kind: type[Walk], tasks: Callable[[ew.Pool], Any], tmp_path: Path
) -> None:
    with stoppable(kind, tmp_path / "one.sock") as (url, _, stop), ew.pool(url, size=2) as pool:
        stop()
        impatient(pool)
        rollout = ew.rollout(pool, forward, tasks=tasks(pool), episodes=2, on_fault="keep")

        episodes = rollout.run()

    assert [(e.group, e.usable, e.task, e.end.reason) for e in episodes] == [
        (0, False, None, "lost"),
        (1, False, None, "lost"),
    ]
    assert all(math.isnan(episode.reward) for episode in episodes)
    assert rollout.fault_counts == {"lost": 2}
    assert "one.sock" in (rollout.faults[0].cause or "")


def test_with_on_fault_raise_an_unreachable_server_ends_the_rollout(tmp_path: Path) -> None:
    with stoppable(Walk, tmp_path / "one.sock") as (url, _, stop), ew.pool(url, size=2) as pool:
        stop()
        impatient(pool)

        with pytest.raises(RolloutFailedError, match=r"lost, blame infrastructure.*one\.sock"):
            ew.rollout(pool, forward, tasks=pool.tasks("train"), on_fault="raise").run()


def test_a_task_that_the_server_does_not_know_is_refused(tmp_path: Path) -> None:
    with (
        served(Walk, uds=tmp_path / "one.sock", drain_s=0) as url,
        ew.pool(url, size=2) as pool,
        pytest.raises(TaskError, match="There is no task 'y'"),
    ):
        ew.rollout(pool, forward, tasks=["a", "y"]).run()


def test_a_split_continues_where_the_last_rollout_left_it(tmp_path: Path) -> None:
    with served(Walk, uds=tmp_path / "one.sock", drain_s=0) as url, ew.pool(url, size=2) as pool:
        tasks = pool.tasks("train")
        first = ew.rollout(pool, forward, tasks=tasks, episodes=2)
        some, rest = first.run(), ew.rollout(pool, forward, tasks=tasks).run()
        by_hand = list(itertools.islice(pool.tasks("train"), 2))

    assert (first.total, [e.task_id for e in some]) == (2, ["a", "b"])
    assert [e.task_id for e in rest] == ["c", "d", "e", "f"]
    assert by_hand == list(TASKS("train"))[:2]


@pytest.mark.parametrize("kind", [ManyTasks, Endless])
def test_each_page_is_fetched_once(kind: type[Walk], tmp_path: Path) -> None:
    with served(kind, uds=tmp_path / "one.sock", drain_s=0) as url, ew.pool(url, size=40) as pool:
        connection: Any = pool._slots[0]._transport._connection
        asked: Counter[int] = Counter()
        question = connection.exchange.server_call

        def noted(method: str, params: Any = None) -> Any:
            if method == "tasks":
                asked[params["start"]] += 1
            return question(method, params)

        connection.exchange.server_call = noted
        episodes = ew.rollout(pool, forward, tasks=pool.tasks("train"), episodes=60).run()

    assert [e.task_id for e in episodes] == [f"train-{i}" for i in range(60)]
    assert set(asked.values()) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [ManyTasks, Endless])
def test_the_tasks_of_a_server_that_was_killed_come_from_its_replacement(kind: type[Walk]) -> None:
    provider = ew.SubprocessProvider()

    async def main() -> tuple[list[ew.Episode], list[ew.Fault], list[ew.Task]]:
        async with ew.pool(kind, size=3, backend="http", provider=provider) as pool:
            assert pool.tasks is not None
            await asyncio.to_thread(kill, provider.pid)
            rollout = ew.rollout(pool, forward, tasks=pool.tasks("train"), episodes=6)
            episodes = await rollout
            await asyncio.to_thread(kill, provider.pid)
            return episodes, rollout.faults, list(itertools.islice(pool.tasks("train"), 3))

    episodes, faults, tasks = asyncio.run(main())

    assert [(e.task_id, e.usable) for e in episodes] == [(f"train-{i}", True) for i in range(6)]
    assert faults == []
    assert [task.id for task in tasks] == ["train-0", "train-1", "train-2"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["ManyTasks", "Endless"])
def test_every_episode_is_accounted_for_once_though_the_server_is_killed(kind: str) -> None:
    """With `$ENVWEAVE_TEST_KILLS` the server is killed as often."""
    kills = int(os.environ.get("ENVWEAVE_TEST_KILLS", "3"))
    rng = random.Random(7)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    running = ExitStack()

    def start() -> Any:
        return running.enter_context(process_serving(f"pkg://environments.tasks:{kind}", port=port))

    async def agent(result: Any) -> dict[str, int]:
        await asyncio.sleep(0.01)
        return {"by": 1}

    async def main() -> tuple[list[ew.Episode], ew.Rollout]:
        episodes: list[ew.Episode] = []
        server = start()
        async with ew.pool(server.url, size=8) as pool:
            options: dict[str, Any] = {"attempts": 20, "group_size": 2, "seed": 1}
            count = 160 * (kills + 1)
            rollout = ew.rollout(pool, agent, tasks=pool.tasks("train"), episodes=count, **options)
            deaths = sorted(rng.sample(range(10, count - 60), kills))
            async for episode in rollout:
                episodes.append(episode)
                if deaths and len(episodes) >= deaths[0]:
                    deaths.pop(0)
                    server.process.kill()
                    await asyncio.to_thread(running.close)
                    server = await asyncio.to_thread(start)
            assert not deaths
        return episodes, rollout

    with running:
        episodes, rollout = asyncio.run(main())

    played = Counter((e.group, e.member) for e in episodes)
    assert played == Counter(itertools.product(range(80 * (kills + 1)), range(2)))
    assert all(e.usable and e.task_id == f"train-{e.group}" for e in episodes)
    again = sum(e.attempts - 1 for e in episodes)
    assert again == len(rollout.faults) == sum(rollout.fault_counts.values())
    assert {fault.reason for fault in rollout.faults} <= {"lost"}


def test_a_server_that_stops_costs_episodes_and_does_not_end_the_rollout() -> None:
    app = ew.create_fastapi_app(Walk)
    with app_served(app) as url, ew.pool(url, size=2) as pool:
        app.state.envweave.service.table.is_draining = True

        rollout = ew.rollout(pool, forward, episodes=4, attempts=1, on_fault="keep", progress=False)
        episodes = rollout.run()

    assert [one.usable for one in episodes] == [False] * 4
    assert all("is stopping" in (fault.cause or "") for fault in rollout.faults)

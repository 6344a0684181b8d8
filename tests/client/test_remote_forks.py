"""Forks of environments at a server: they continue there, and the state stays there."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from environments.forking import AsyncWalk, FixedWalk, Race, UncopiedWalk, Walk
from hostile_servers import CuttingProxy
from servers import host_and_port, served, wait_for

import envweave as ew
from envweave.errors import (
    CapacityError,
    ClosedError,
    ForkError,
    OptionError,
    ResetNeededError,
)
from envweave.session.kept_snapshots import CAPACITY, KeptSnapshot

STEPS = [1.0, 2.0, 3.0]


@pytest.fixture(params=[0, pytest.param(2, marks=pytest.mark.slow)], ids=["local", "workers"])
def workers(request: pytest.FixtureRequest) -> int:
    """How many worker processes the server has."""
    count: int = request.param
    return count


@pytest.fixture
def url(workers: int) -> Iterator[str]:
    """A server of walks."""
    with served(Walk, workers=workers, drain_s=0) as one:
        yield one


def walked(env: ew.Env, steps: list[float] = STEPS) -> list[Any]:
    return [env.step(by).observation for by in steps]


def pid_of(env: ew.Env) -> int:
    """The process that it runs in."""
    pid: int = env.state().pid  # type: ignore[attr-defined]
    return pid


def close_all(envs: list[ew.Env]) -> None:
    for env in envs:
        env.close()


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
@pytest.mark.parametrize("kind", [Walk, AsyncWalk, FixedWalk])
def test_children_take_the_steps_that_their_parent_will_take(
    kind: type[ew.Environment], encoding: str, workers: int
) -> None:
    with (
        served(kind, workers=workers, drain_s=0) as url,
        ew.make(url, encoding=encoding) as env,
    ):
        env.reset(seed=3)
        env.step(1.0)

        children = env.fork(3)

        taken = [walked(child) for child in children]
        assert taken == [walked(env)] * 3
        close_all(children)


def test_children_are_episodes_of_their_own_with_the_steps_of_their_parent(url: str) -> None:
    with ew.make(url) as env:
        began = env.reset(seed=3)
        step = env.step(1.0)
        snapshot = env.snapshot()

        with ew.make(url) as other:
            restored = other.restore(snapshot)

            assert (snapshot.episode_id, snapshot.step) == (began.episode_id, 1)
            assert restored.observation == step.observation
            assert restored.step_index == 1
            assert restored.episode_id not in (None, began.episode_id)
            assert len(restored.needs) == 1
            assert other.step(1.0).step_index == 2


def test_one_snapshot_is_restored_many_times_while_the_parent_continues(url: str) -> None:
    with ew.make(url) as env, ew.make(url) as other:
        env.reset(seed=3)
        snapshot = env.snapshot()
        future = walked(env)

        again = []
        for _ in range(3):
            other.restore(snapshot)
            again.append(walked(other))

        assert again == [future] * 3
        assert env.step(1.0).step_index == 4
        env.restore(snapshot)
        assert walked(env) == future


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_async_children_share_the_connection_of_their_parent(url: str, encoding: str) -> None:
    async def play() -> tuple[list[Any], list[Any]]:
        env = ew.make_async(url, encoding=encoding)
        await env.reset(seed=3)
        await env.step(1.0)
        children = await env.fork(3)
        future = [(await env.step(by)).observation for by in STEPS]
        await env.close()  # the children go on
        taken = [[(await child.step(by)).observation for by in STEPS] for child in children]
        for child in children:
            await child.close()
        return future, taken

    future, taken = asyncio.run(play())

    assert taken == [future] * 3


def test_forks_over_a_unix_socket(tmp_path: Path) -> None:
    with (
        served(Walk, uds=tmp_path / "walk.sock") as url,
        ew.make(url) as env,
    ):
        env.reset(seed=3)

        (child,) = env.fork()

        with child:
            assert walked(child) == walked(env)


def test_agents_that_left_stay_away_in_a_child(workers: int) -> None:
    with (
        served(Race, workers=workers, drain_s=0) as url,
        ew.make(url) as env,
    ):
        env.reset(seed=1)
        env.step({"ann": 1, "bob": 2})
        snapshot = env.snapshot()

        with ew.make(url) as other:
            restored = other.restore(snapshot)

            assert [need.agent_id for need in restored.needs] == ["ann"]
            assert other.agents == ["ann"]
            assert other.step({"ann": 1}).observation == env.step({"ann": 1}).observation


def test_an_open_tool_call_is_open_in_a_child(url: str) -> None:
    with ew.make(url) as env:
        env.reset(seed=1)
        asked = env.step(99.0)
        (child,) = env.fork()

        with child:
            answer = ew.ToolResult("call-1", 5)
            answered = child.step(answer)

            assert [call.name for call in asked.tool_calls] == ["look"]
            assert answered.observation == env.step(answer).observation
            assert len(answered.needs) == 1


@pytest.mark.slow  # starts worker processes
def test_a_session_moves_to_the_worker_that_keeps_the_snapshot() -> None:
    with (
        served(Walk, workers=2, drain_s=0) as url,
        ew.make(url) as env,
        ew.make(url) as other,
    ):
        env.reset(seed=3)
        pid = pid_of(env)
        assert pid_of(other) != pid
        env.step(1.0)

        other.restore(env.snapshot())

        assert pid_of(other) == pid
        with ew.make(url) as third:
            assert pid_of(third) != pid  # that has the fewest sessions


@pytest.mark.slow  # starts worker processes
def test_a_restore_that_fails_in_another_worker_leaves_the_session_as_it_was() -> None:
    with (
        served(FixedWalk, workers=2, drain_s=0) as url,
        ew.make(url) as env,
        ew.make(url) as other,
    ):
        env.reset(seed=3)
        env.step(60.0)
        far = env.snapshot()
        other.reset(seed=4)
        pid = pid_of(other)

        with pytest.raises(ForkError, match="too far"):
            other.restore(far)

        assert other.step(1.0).step_index == 1
        assert pid_of(other) == pid


def test_a_snapshot_outlives_its_session(url: str) -> None:
    with ew.make(url) as env:
        env.reset(seed=3)
        snapshot = env.snapshot()
        future = walked(env)

    with ew.make(url) as other:
        other.restore(snapshot)
        assert walked(other) == future


def test_the_oldest_snapshot_is_dropped_for_one_too_many(url: str) -> None:
    with ew.make(url) as env:
        env.reset(seed=3)
        snapshots = [env.snapshot() for _ in range(CAPACITY + 1)]
        env.step(1.0)

        with pytest.raises(ForkError, match="older than the last"):
            env.restore(snapshots[0])

        assert env.step(1.0).step_index == 2  # it is unharmed
        assert env.restore(snapshots[1]).step_index == 0


@pytest.mark.parametrize("token", ["0" * 32, "1-" + "0" * 32, "-", "9-"])
def test_a_token_that_was_never_given_is_refused_and_the_episode_goes_on(
    url: str, token: str
) -> None:
    with ew.make(url) as env:
        env.reset(seed=3)
        snapshot = env.snapshot()
        other = dataclasses.replace(snapshot.state, token=token)

        with pytest.raises(ForkError, match=r"not kept|No worker process"):
            env.restore(dataclasses.replace(snapshot, state=other))

        assert env.step(1.0).step_index == 1


@pytest.mark.parametrize("token", ["", "x" * 10_000, 7, None])
def test_what_is_no_token_is_refused(url: str, token: Any) -> None:
    with ew.make(url) as env:
        env.reset(seed=3)
        snapshot = env.snapshot()
        other = dataclasses.replace(snapshot.state, token=token)

        with pytest.raises(OptionError, match="token must be what snapshot"):
            env.restore(dataclasses.replace(snapshot, state=other))

        assert env.step(1.0).step_index == 1


def test_a_snapshot_of_another_place_is_refused(url: str) -> None:
    with ew.make(Walk) as here, ew.make(Walk, base_url=url) as env:
        here.reset(seed=1)
        env.reset(seed=1)

        with pytest.raises(ForkError, match="made with another `backend`"):
            env.restore(here.snapshot())

        assert env.step(1.0).step_index == 1


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_what_a_snapshot_holds_never_crosses_the_wire(encoding: str) -> None:
    with (
        served(FixedWalk) as url,
        CuttingProxy(host_and_port(url), records=True) as proxy,
        ew.make(f"http://127.0.0.1:{proxy.port}", encoding=encoding) as env,
    ):
        env.reset(seed=3)
        env.step(1.0)

        snapshot = env.snapshot()
        env.restore(snapshot)

        assert type(snapshot.state) is KeptSnapshot
        assert snapshot.state.token.encode() in proxy.sent_by_server
        assert b"the answer is" not in proxy.sent_by_server
        assert len(snapshot.state.token) >= 32


def test_a_snapshot_needs_an_episode(url: str) -> None:
    with ew.make(url) as env:
        with pytest.raises(ResetNeededError, match="no episode running"):
            env.snapshot()
        env.reset(seed=1)
        snapshot = env.snapshot()
    with pytest.raises(ClosedError):
        env.snapshot()
    with pytest.raises(ClosedError):
        env.restore(snapshot)


def test_an_environment_that_cannot_be_copied_says_what_to_do(workers: int) -> None:
    with (
        served(UncopiedWalk, workers=workers, drain_s=0) as url,
        ew.make(url) as env,
    ):
        env.reset(seed=3)

        with pytest.raises(ForkError, match=r"not `copyable`.*forkable=True"):
            env.fork()

        assert env.step(1.0).step_index == 1


def test_an_environment_that_cannot_be_copied_is_played_again(workers: int) -> None:
    with (
        served(UncopiedWalk, workers=workers, drain_s=0) as url,
        ew.make(url, forkable=True) as env,
    ):
        env.reset(seed=3)
        walked(env)

        children = env.fork(2)

        assert [walked(child) for child in children] == [walked(env)] * 2
        close_all(children)


def test_errors_of_an_authors_snapshot_and_restore_arrive(workers: int) -> None:
    with (
        served(FixedWalk, workers=workers, drain_s=0) as url,
        ew.make(url) as env,
    ):
        env.reset(seed=3)
        with pytest.raises(ForkError, match="nothing to see"):
            env.snapshot()
        env.step(60.0)
        snapshot = env.snapshot()

        with pytest.raises(ForkError, match=r"FixedWalk.restore\(\) failed: .*too far"):
            env.restore(snapshot)

        with pytest.raises(ResetNeededError, match="restore"):
            env.step(1.0)
        assert env.reset().step_index == 0


def test_a_full_server_refuses_a_fork_and_nothing_is_left_open() -> None:
    with served(Walk, max_sessions=3) as url, ew.make(url) as env:
        env.reset(seed=3)

        with pytest.raises(CapacityError, match="3 of 3 sessions"):
            env.fork(3)

        children = env.fork(2)
        assert walked(children[1]) == walked(env)
        close_all(children)


def test_a_fork_is_recorded_with_its_parent(tmp_path: Path, workers: int) -> None:
    with (
        served(Walk, record=str(tmp_path), workers=workers, drain_s=0) as url,
        ew.make(url) as env,
    ):
        parent = env.reset(seed=3).episode_id
        env.step(1.0)
        (child,) = env.fork()
        with child:
            child.step(2.0)
        env.step(3.0)

    run = ew.load(tmp_path)
    forked = [one for one in run.summaries if one.parent is not None]
    assert len(forked) == 1
    episode = run.load(forked[0])
    assert episode.parent is not None
    assert (episode.parent.episode, episode.parent.step) == (parent, 1)
    assert episode.inherited == [1.0]
    assert [step.action for step in episode.steps] == [2.0]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_snapshots_and_restores_run_exactly_once_though_connections_are_cut(encoding: str) -> None:
    with (
        served(Walk) as url,
        CuttingProxy(host_and_port(url), seed=5, mean_bytes=2000) as proxy,
        ew.make(Walk) as here,
        ew.make(Walk, base_url=f"http://127.0.0.1:{proxy.port}", encoding=encoding) as env,
    ):
        expected, taken, ids = [], [], []
        for one, seen in ((here, expected), (env, taken)):
            one.reset(seed=3)
            for _ in range(60):
                snapshot = one.snapshot()
                first = walked(one)
                restored = one.restore(snapshot)
                seen.append(
                    (restored.observation, restored.step_index, first, one.step(0.5).observation)
                )
                ids.append(restored.episode_id)

        assert taken == expected
        assert proxy.cuts > 10
        numbers = [int(one.rpartition("-")[2]) for one in ids[60:]]
        assert numbers == list(range(1, 61))  # each restore began one episode


# Servers that are started for the caller


def is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow  # starts a server process
def test_a_server_is_stopped_with_the_last_of_parent_and_children() -> None:
    env = ew.make(Walk, backend="http")
    env.reset(seed=3)
    pid = pid_of(env)
    first, second = env.fork(2)
    future = walked(env)

    env.close()
    assert walked(first) == future
    first.close()
    first.close()
    assert walked(second) == future
    (third,) = second.fork()
    second.close()
    assert third.step(1.0).step_index == 4
    third.close()

    assert not is_running(pid)


@pytest.mark.slow  # starts a server process
def test_a_server_is_stopped_with_the_last_of_async_parent_and_children() -> None:
    async def play() -> int:
        env = ew.make_async(Walk, backend="http")
        await env.reset(seed=3)
        pid: int = (await env.state()).pid  # type: ignore[attr-defined]
        first, second = await env.fork(2)
        await env.close()
        await first.close()
        assert is_running(pid)
        await second.step(1.0)
        await second.close()
        return pid

    assert not is_running(asyncio.run(play()))


@pytest.mark.slow  # starts server processes
def test_a_snapshot_is_lost_with_its_server() -> None:
    with ew.make(Walk, backend="http") as env:
        env.reset(seed=3)
        pid = pid_of(env)
        snapshot = env.snapshot()
        os.kill(pid, 9)

        with pytest.raises(ForkError, match=f"server process {pid} was killed by SIGKILL"):
            env.restore(snapshot)

        with pytest.raises(ResetNeededError):
            env.step(1.0)
        env.reset(seed=3)
        assert pid_of(env) != pid
        with pytest.raises(ForkError, match="not kept here"):
            env.restore(snapshot)


@pytest.mark.slow  # starts server processes
@pytest.mark.parametrize("kind", [Walk, UncopiedWalk])
def test_a_snapshot_that_is_lost_with_its_server_is_played_again_at_another(
    kind: type[ew.Environment],
) -> None:
    with ew.make(kind, backend="http", forkable=True) as env:
        env.reset(seed=3)
        pid = pid_of(env)
        walked(env)
        snapshot = env.snapshot()
        future = walked(env)
        os.kill(pid, 9)

        assert env.restore(snapshot).step_index == 3
        assert pid_of(env) != pid
        assert walked(env) == future


@pytest.mark.slow  # starts server processes
def test_an_async_snapshot_that_is_lost_with_its_server_is_played_again_at_another() -> None:
    async def play() -> tuple[list[Any], list[Any]]:
        async with ew.make_async(Walk, backend="http", forkable=True) as env:
            await env.reset(seed=3)
            pid = (await env.state()).pid  # type: ignore[attr-defined]
            snapshot = await env.snapshot()
            future = [(await env.step(by)).observation for by in STEPS]
            os.kill(pid, 9)
            await env.restore(snapshot)
            return future, [(await env.step(by)).observation for by in STEPS]

    future, again = asyncio.run(play())

    assert again == future


@pytest.mark.slow  # starts worker processes
def test_a_snapshot_is_lost_with_the_worker_that_kept_it() -> None:
    with (
        served(Walk, workers=1, drain_s=0) as url,
        ew.make(url) as env,
        ew.make(url, forkable=True) as other,
    ):
        env.reset(seed=3)
        pid = pid_of(env)
        other.reset(seed=3)
        point, logged = env.snapshot(), other.snapshot()
        os.kill(pid, 9)
        wait_for(lambda: not is_running(pid))
        assert env.step(1.0).end.reason == "lost"  # type: ignore[union-attr]

        with pytest.raises(ForkError, match="No worker process of the server keeps"):
            env.restore(point)

        assert other.restore(logged).step_index == 0
        assert pid_of(other) != pid
        assert env.reset(seed=3).step_index == 0

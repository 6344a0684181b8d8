"""Environments of one process share a sandbox, which ends with the last of them."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import random
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from codeact_environments import coder, lease_sandbox, open_client
from environments.crashing import kill
from processes import descendants
from server_runtimes import local_runtime, open_sessions
from servers import served

import envweave as ew
from envweave.errors import OptionError, SandboxError
from envweave.sandbox import Limits


@pytest.fixture
def templates() -> Iterator[Callable[[], set[int]]]:
    """Return which processes were started below this one since the test began; none may be left."""
    gc.collect()
    before = descendants()

    def started() -> set[int]:
        new = descendants() - before
        return {one.pid for one in new if one.parent == os.getpid() and not one.is_dead}

    yield started
    left = {one for one in descendants() - before if not one.is_dead}
    assert not left, f"left behind: {[str(one) for one in left]}"


def test_environments_share_one_process_until_the_last_is_closed(
    templates: Callable[[], set[int]],
) -> None:
    first, second = coder(), coder()
    shared = templates()
    first.reset()
    second.reset()
    first.step({"code": "mine = 1"})
    first.close()
    second.step({"code": "2"})
    kept = templates()
    apart = second.step({"code": "mine"}).execution_result.exception_type
    second.close()

    assert len(shared) == 1
    assert kept == shared
    assert apart == "NameError"
    assert templates() == set()


def test_environments_with_different_options_have_separate_processes(
    templates: Callable[[], set[int]],
) -> None:
    plain = coder()
    small = coder(limits={"timeout_s": 1.0})
    both = templates()
    plain.close()
    one = templates()
    small.close()

    assert len(both) == 2
    assert len(one) == 1


def test_closing_twice_is_allowed_and_leaves_nothing_open(
    templates: Callable[[], set[int]],
) -> None:
    env = coder()
    env.reset()
    env.step({"code": "x = 1"})

    env.close()
    env.close()

    assert templates() == set()
    with pytest.raises(ew.errors.ClosedError):
        env.step({"code": "x"})


def test_an_environment_that_is_never_closed_is_released_with_its_last_reference(
    templates: Callable[[], set[int]],
) -> None:
    env: Any = coder()
    env.reset()
    env.step({"code": "x = 1"})

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del env
        gc.collect()

    assert any("without close" in str(one.message) for one in caught)
    assert templates() == set()


def test_a_sandbox_that_cannot_start_leaves_no_lease(
    templates: Callable[[], set[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "never_loads.py").write_text("raise RuntimeError('not today')")
    monkeypatch.syspath_prepend(tmp_path)

    for _ in range(2):
        with pytest.raises(SandboxError, match="never_loads"):
            coder(preload=["never_loads"])
        with pytest.raises(OptionError, match="no_such_module"):
            coder(preload=["no_such_module"])

    assert templates() == set()


@pytest.mark.slow  # starts several sandboxes
def test_leases_taken_and_released_concurrently_are_counted(
    templates: Callable[[], set[int]],
) -> None:
    kinds = [Limits(timeout_s=1.0 + i) for i in range(2)]
    held = lease_sandbox(limits=kinds[0])

    def come_and_go(seed: int) -> int:
        chance = random.Random(seed)
        for _ in range(6):
            mine = [lease_sandbox(limits=chance.choice(kinds)) for _ in range(chance.randint(1, 3))]
            assert all(one.sandbox.tier.name for one in mine)
            for lease in mine:
                lease.release()
                lease.release()
        return seed

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(come_and_go, range(6))) == list(range(6))
    left = templates()
    held.release()

    assert len(left) == 1
    assert templates() == set()


def test_a_lease_that_is_dropped_while_another_is_taken_is_given_back(
    templates: Callable[[], set[int]],
) -> None:
    """Garbage is collected in the middle of anything, also while the table is looked up."""
    dropped: list[Any] = []

    class Collecting(float):
        def __hash__(self) -> int:
            dropped.clear()
            return super().__hash__()

    dropped.append(lease_sandbox(limits=Limits(grace_s=0.25)))
    again = lease_sandbox(limits=Limits(grace_s=Collecting(0.25)))
    started = templates()
    again.release()

    assert dropped == []
    assert len(started) == 1
    assert templates() == set()


def test_a_server_keeps_the_sandbox_between_its_sessions(
    templates: Callable[[], set[int]],
) -> None:
    seen = []
    with served(coder) as url:
        for _ in range(2):
            with ew.make(url) as env:
                env.reset()
                env.step({"code": "1"})
                seen.append(templates())
            seen.append(templates())

    assert len(seen[0]) == 1
    assert seen == [seen[0]] * 4
    assert templates() == set()


def test_a_server_closed_before_its_first_session_leaves_nothing_open(
    templates: Callable[[], set[int]],
) -> None:
    async def come_and_go() -> set[int]:
        runtime = local_runtime(coder)
        await runtime.start()
        started = templates()
        await runtime.close()
        await runtime.close()
        return started

    assert len(asyncio.run(come_and_go())) == 1


@pytest.mark.slow  # starts several sandboxes
def test_workers_of_a_server_keep_their_sandboxes_too(templates: Callable[[], set[int]]) -> None:
    def grandchildren(worker: int) -> set[int]:
        return {one.pid for one in descendants(worker) if one.parent == worker}

    seen = []
    with served(coder, workers=1) as url:
        (worker,) = templates()
        for _ in range(2):
            with ew.make(url) as env:
                env.reset()
                env.step({"code": "1"})
            seen.append(grandchildren(worker))

    assert len(seen[0]) == 1
    assert seen[0] == seen[1]


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize("name", ["direct", "make", "async", "vector", "served"])
def test_a_lost_session_earns_no_reward_and_the_next_reset_starts_another(
    name: str, templates: Callable[[], set[int]]
) -> None:
    with open_client(name) as way:
        way.reset(seed=1)
        way.step("x = 1")
        (template,) = templates()
        kill(template)

        lost = way.step("x")
        way.reset(seed=1)
        after = way.step("1 + 1")

    assert lost.done
    assert lost.end is not None
    assert (lost.end["reason"], lost.end["blame"]) == ("lost", "infrastructure")
    assert lost.reward is None or math.isnan(lost.reward)
    assert after.value == 2


@pytest.mark.slow  # starts several sandboxes
def test_a_lost_session_gives_an_invalid_row_and_its_vector_continues(
    templates: Callable[[], set[int]],
) -> None:
    codes = [{"code": "n = globals().get('n', 0) + 1\nn"}] * 3
    with ew.make_vector(coder, num_envs=3, autoreset=True) as venv:
        venv.reset(seed=0)
        venv.step(codes)
        (template,) = templates()
        kill(template)

        lost = venv.step(codes)
        after = venv.step(codes)

    assert lost.valid.tolist() == [False] * 3
    assert lost.bootstrap.tolist() == [False] * 3
    assert all(map(math.isnan, lost.reward))
    assert [row.end.reason for row in lost] == ["lost"] * 3
    assert after.current["execution_result"]["return_value"] == [1, 1, 1]


def test_a_server_takes_one_hold_from_the_first_environment_and_releases_it_once() -> None:
    caught: list[str] = []

    class Holding(ew.Environment):
        def reset(self) -> ew.Observation:
            return ew.Observation()

        def step(self, action: dict[str, Any]) -> ew.Observation:
            return ew.Observation(reward=1.0)

        def hold(self) -> Callable[[], None]:
            caught.append("held")
            return lambda: caught.append("let go")

        def close(self) -> None:
            caught.append("closed")

    async def serve() -> None:
        runtime = local_runtime(Holding)
        await runtime.start()
        runner, other = await open_sessions(runtime, 2)
        await runner.close()
        await other.close()
        await runtime.close()
        await runtime.close()

    asyncio.run(serve())

    assert caught == ["held", "closed", "closed", "let go"]

"""`random` and numpy in code follow the episode's seed; no two sessions share a stream."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from codeact_environments import coder, keep_sandbox, open_client

import envweave as ew

DRAW = (
    "import random, numpy as np\n"
    "from random import randint\n"
    "from numpy.random import rand\n"
    "[random.random(), randint(0, 10**9), random.sample(range(100), 3),"
    " float(np.random.rand()), float(rand()), int(np.random.randint(10**9)),"
    " np.random.permutation(5).tolist()]"
)
LIMITS = {"timeout_s": 20.0}  # numpy may have to be imported on a busy machine
EXECUTORS = ("sandbox", "inproc", "smolagents")


@pytest.fixture(scope="module", autouse=True)
def _kept() -> Iterator[None]:
    with keep_sandbox(limits=LIMITS):
        yield


@pytest.fixture(params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> Any:
    if request.param == "smolagents":
        pytest.importorskip("smolagents")
    return request.param


def drawn(executor: str, seeds: list[int | None]) -> list[str]:
    """Return what code draws in ten sessions that live at once, each twice, by turns."""
    envs = [coder(executor=executor, limits=LIMITS) for _ in seeds]
    try:
        for env, seed in zip(envs, seeds, strict=True):
            env.reset() if seed is None else env.reset(seed=seed)
        rounds = [[env.step({"code": DRAW}).execution_result for env in envs] for _ in range(2)]
    finally:
        for env in envs:
            env.close()
    assert all(one.success for values in rounds for one in values), rounds[0][0].traceback
    return [repr([one.return_value for one in both]) for both in zip(*rounds, strict=True)]


@pytest.mark.slow  # starts several sandboxes
def test_sessions_with_one_seed_draw_the_same(executor: str) -> None:
    assert len(set(drawn(executor, [7] * 10))) == 1


@pytest.mark.slow  # starts several sandboxes
def test_sessions_with_different_seeds_draw_different_numbers(executor: str) -> None:
    assert len(set(drawn(executor, list(range(10))))) == 10


@pytest.mark.slow  # starts several sandboxes
def test_sessions_without_a_seed_all_differ(executor: str) -> None:
    assert len(set(drawn(executor, [None] * 10))) == 10


@pytest.mark.parametrize("seed", [0, 2**32 - 1, 2**32, 2**63 - 1])
def test_a_seed_means_the_same_to_every_executor_and_to_python(seed: int) -> None:
    pytest.importorskip("smolagents")
    values = {drawn(executor, [seed])[0] for executor in EXECUTORS}

    alone = random.Random(seed).random()

    assert len(values) == 1
    assert repr(alone) in values.pop()


def test_the_hosts_own_generators_are_untouched(executor: str) -> None:
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state(legacy=False)

    with open_client("direct", executor=executor, limits=LIMITS) as way:
        way.reset(seed=1)
        way.step(DRAW)
        way.step("import random, numpy as np; random.seed(5); np.random.seed(5)")
        way.step(DRAW)

    after = random.getstate(), np.random.get_state(legacy=False)
    assert before[0] == after[0]
    np.testing.assert_equal(after[1], before[1])


def test_code_can_seed_its_own_stream(executor: str) -> None:
    with open_client("direct", executor=executor, limits=LIMITS) as way:
        way.reset(seed=1)

        way.step("random.seed(3)")
        step = way.step("random.random()")

    assert step.value == random.Random(3).random()


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize("backend", ["process", "http"])
def test_the_episodes_of_two_vectors_with_one_seed_agree_over_backends(backend: str) -> None:
    here, there = played("inproc"), played(backend)

    assert here == there
    numbers = [number for episode in here for _, number in episode]
    assert len(set(numbers)) == len(numbers)


def played(backend: str) -> list[list[tuple[int, float]]]:
    """Return, for three episodes of two environments, the seed and what was drawn."""
    code = [{"code": "random.random()"}, {"code": "random.random()"}]
    episodes = []
    with ew.make_vector(coder, num_envs=2, backend=backend, limits=LIMITS) as venv:
        for k in range(3):
            began = venv.reset(seed=11) if k == 0 else venv.reset()
            values = venv.step(code).current["execution_result"]["return_value"]
            seeds = [began[i].info["seed"] for i in range(2)]
            episodes.append(list(zip(seeds, values, strict=True)))
    return episodes

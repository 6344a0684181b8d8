"""Worker processes show and take what an environment in this process does, value for value."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from comparison import same
from environments.values import SHOW, Move, Shows, TakesAny, TakesMove, TakesNumber, TakesText

import envweave as ew
from envweave.errors import ActionError

HERE: dict[str, Any] = {"num_envs": 4, "autoreset": True}
THERE: dict[str, Any] = {**HERE, "backend": "process", "workers": 2}


def assert_same(one: Any, other: Any) -> None:
    for left, right in zip(one, other, strict=True):
        for name in ("observation", "current", "info", "reward", "done", "step_index"):
            mine, yours = getattr(left, name), getattr(right, name)
            assert same(mine, yours), (name, mine, yours)
            assert type(mine) is type(yours)
        assert [type(request) for request in left.requests] == [
            type(request) for request in right.requests
        ]
    for name in ("current", "successor") if isinstance(one, ew.StepBatch) else ("current",):
        mine, yours = getattr(one, name), getattr(other, name)
        assert same(mine, yours), (name, mine, yours)
        if isinstance(mine, np.ndarray):
            assert (mine.dtype, mine.flags.writeable) == (yours.dtype, yours.flags.writeable)


QUICK = ("float", "text", "image", "dict", "record", "subclass")
KINDS = [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in SHOW]


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_observation_arrives_unchanged(kind: str) -> None:
    with (
        ew.make_vector(Shows, kind=kind, **HERE) as here,
        ew.make_vector(Shows, kind=kind, **THERE) as there,
    ):
        assert_same(here.reset(seed=3), there.reset(seed=3))

        for turn in range(9):
            actions = [turn % 2, 1, 2, 1]
            assert_same(here.step(actions), there.step(actions))
        here.send([1, 1], ids=[0, 1])  # of one worker, which keeps their order
        there.send([1, 1], ids=[0, 1])
        assert_same(here.drain(), there.drain())


ACTIONS: list[tuple[Any, list[Any]]] = [
    (TakesNumber, [1, 2.5, np.float32(3), np.int64(4)]),
    (TakesText, ["", "é", "word", "x" * 100_000]),
    (TakesMove, [Move(1), {"by": 2}, Move(3, "fast"), {"by": 4, "how": "fast"}]),
    (TakesAny, [None, {"a": [1]}, np.arange(3), threading.Event]),
]


@pytest.mark.slow  # starts worker processes
@pytest.mark.parametrize(("kind", "actions"), ACTIONS)
def test_every_kind_of_action_arrives_unchanged(kind: Any, actions: list[Any]) -> None:
    with ew.make_vector(kind, **HERE) as here, ew.make_vector(kind, **THERE) as there:
        options = {"options": {"deep": [1]}, "task": ew.Task("t")}
        assert_same(here.reset(seed=3, **options), there.reset(seed=3, **options))

        assert_same(here.step(actions), there.step(actions))
        assert_same(here.step(actions[::-1]), there.step(actions[::-1]))


@pytest.mark.slow  # starts worker processes
def test_an_action_that_cannot_be_pickled_is_refused_and_no_row_is_stepped() -> None:
    with ew.make_vector(TakesAny, **THERE) as venv:
        venv.reset(seed=3)

        with pytest.raises(ActionError, match="cannot be sent to a worker process"):
            venv.step([1, 2, 3, threading.Lock()])
        with pytest.raises(ActionError, match="cannot be sent to a worker process"):
            venv.send([threading.Lock()], ids=[0])

        assert venv.step([1, 2, 3, 4]).step_index.tolist() == [1] * 4

    with ew.make(TakesAny, backend="process") as env:
        env.reset(seed=3)

        with pytest.raises(ActionError, match="cannot be sent to a worker process"):
            env.step(threading.Lock())

        assert env.step(1).step_index == 1


@pytest.mark.slow  # starts worker processes
def test_many_large_observations_arrive_complete() -> None:
    with ew.make_vector(Large, num_envs=8, backend="process", workers=2) as venv:
        venv.reset(seed=3)

        batch = venv.step([1] * 8)

    assert batch.successor.shape == (8, 1024, 1024)
    assert batch.successor[:, -1, -1].tolist() == [(3 + i) % 5 + 1 for i in range(8)]


class Large(Shows):
    def __init__(self) -> None:
        super().__init__("large")

    def _show(self) -> Any:
        return np.full((1024, 1024), self.at, np.uint8)


def test_limits_and_transforms_apply_as_in_a_session() -> None:
    def play(**how: Any) -> Any:
        registry = ew.Registry()
        registry.register("local://counts-v0", factory=ew.examples.CounterEnv, max_episode_steps=2)
        with ew.make_vector("local://counts-v0", registry=registry, num_envs=3, **how) as venv:
            venv.reset(seed=1)
            venv.step([{"delta": 1}] * 3)
            batch = venv.step([{"delta": 1}] * 3)
            return batch.truncated.tolist(), batch.reward.tolist()

    assert play() == play(backend="process") == ([True] * 3, [1.0] * 3)

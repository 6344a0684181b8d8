"""Making environments: what cannot be made is refused, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any, ClassVar

import numpy as np
import pytest
from processes import Leftovers

import envweave as ew
from envweave.errors import DefinitionError, OptionError
from envweave.examples import CounterEnv


class Counted(CounterEnv):
    """Counts how many were made and closed; the `fails_at`-th cannot be made."""

    made: ClassVar[int] = 0
    closed: ClassVar[int] = 0

    def __init__(self, *, fails_at: int | None = None) -> None:
        super().__init__()
        if Counted.made + 1 == fails_at:
            raise OSError("no port is left")
        Counted.made += 1

    def close(self) -> None:
        Counted.closed += 1


@pytest.fixture(autouse=True)
def _count_from_zero() -> None:
    Counted.made = Counted.closed = 0


@pytest.mark.parametrize("mode", ["serial", "threads", "async"])
def test_if_one_cannot_be_made_the_others_are_closed(mode: str) -> None:
    left = Leftovers()

    with pytest.raises(DefinitionError, match="no port is left"):
        ew.make_vector(Counted, num_envs=4, mode=mode, fails_at=3)

    assert (Counted.made, Counted.closed) == (2, 2)
    assert left.threads() == []


class AsyncCounted(ew.Environment):
    def __init__(self) -> None:
        self.inner = Counted()

    async def reset(self) -> Any:
        return 0, {}

    async def step(self, action: int) -> Any:
        return 0, 0.0, False, False, {}

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.inner.close()


def test_a_mode_that_cannot_be_leaves_nothing_behind() -> None:
    with pytest.raises(OptionError, match="Did you mean 'threads'"):
        ew.make_vector(Counted, num_envs=3, mode="thread")
    assert Counted.made == 0

    with pytest.raises(OptionError, match="mode='async'"):
        ew.make_vector(AsyncCounted, num_envs=3, mode="serial")
    assert (Counted.made, Counted.closed) == (1, 1)


class Contradicts(Counted):
    """Offers tasks, but its `reset` takes none."""

    tasks = ew.Tasks({"train": [ew.Task("one", "train")]})


@pytest.mark.parametrize("make", [ew.make, ew.make_async])
def test_an_environment_is_closed_when_make_fails(make: Any) -> None:
    with pytest.raises(DefinitionError, match="must take `task`"):
        make(Contradicts)

    assert (Counted.made, Counted.closed) == (1, 1)


@pytest.mark.parametrize("steps", [0, -1, "5", 2.5, True, [2]])
@pytest.mark.parametrize("make", [ew.make, ew.make_async, ew.make_vector])
def test_a_limit_is_a_number_of_steps(make: Any, steps: Any) -> None:
    many = {"num_envs": 2} if make is ew.make_vector else {}

    with pytest.raises(OptionError, match=r"max_episode_steps must be an integer >= 1"):
        make(Counted, max_episode_steps=steps, **many)

    assert Counted.made == 0


@pytest.mark.parametrize("num_envs", ["3", 2.5, True, None, 0, -1, [2]])
def test_a_vector_has_a_number_of_environments(num_envs: Any) -> None:
    with pytest.raises(OptionError, match=r"num_envs must be an integer >= 1"):
        ew.make_vector(Counted, num_envs=num_envs)

    assert Counted.made == 0


def test_numbers_may_be_numpys() -> None:
    venv = ew.make_vector(CounterEnv, num_envs=np.int64(2), max_episode_steps=np.uint8(1))
    venv.reset()

    assert venv.step(np.ones(2, int)).truncated.tolist() == [True, True]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"transform": 5}, r"transform=5 cannot be called\. Pass a Transform"),
        ({"backend": 3}, r"backend must be one of .*'inproc'.*, got 3"),
        ({"backend": 7}, "backend must be one of"),
        ({"autoreset": "no"}, "autoreset must be True or False, got 'no'"),
        ({"autoreset": 1}, "autoreset must be True or False, got 1"),
    ],
)
@pytest.mark.parametrize("make", [ew.make, ew.make_async, ew.make_vector])
def test_an_option_of_the_wrong_kind_is_refused_before_anything_is_made(
    make: Any, options: dict[str, Any], words: str
) -> None:
    many = {"num_envs": 2} if make is ew.make_vector else {}

    with pytest.raises(OptionError, match=words):
        make(Counted, **options, **many)

    assert Counted.made == 0


class Callable(CounterEnv):
    """An environment that can be called is still no factory."""

    def __call__(self) -> None:
        raise AssertionError("this must not be called")


def test_one_object_is_not_many_environments() -> None:
    one = CounterEnv()
    registry = ew.Registry()
    ew.register("shared-v0", factory=lambda: one, registry=registry)

    with pytest.raises(OptionError, match=r"One Callable object cannot be 3.*Pass its class"):
        ew.make_vector(Callable(), num_envs=3)
    with pytest.raises(OptionError, match=r"One CounterEnv object cannot be 3 .*a new one each"):
        ew.make_vector("shared-v0", num_envs=3, registry=registry)
    with pytest.raises(OptionError, match="returned it twice"):
        ew.make_vector(lambda: one, num_envs=2)

    assert ew.make(Callable()).reset().observation.value == 0


def _drop_a_vector(**options: Any) -> None:
    venv = ew.make_vector(Counted, num_envs=3, **options)
    venv.reset()
    venv.step(np.ones(3, int))
    del venv
    gc.collect()


def test_a_vector_that_is_dropped_leaves_no_thread_and_a_warning() -> None:
    before = set(threading.enumerate())

    with pytest.warns(ResourceWarning, match=r"3 environments in 3 threads .* without close\(\)"):
        _drop_a_vector(mode="threads")

    for thread in set(threading.enumerate()) - before:
        thread.join(30)
    assert set(threading.enumerate()) <= before
    assert Counted.closed == 3


def test_a_vector_that_is_closed_is_dropped_in_silence() -> None:
    venv = ew.make_vector(Counted, num_envs=3, mode="threads")
    venv.close()

    del venv
    gc.collect()

    assert Counted.closed == 3

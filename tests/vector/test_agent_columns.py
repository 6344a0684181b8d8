"""Each agent has columns of its own, laid out once, and the caller's own to write to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest

import envweave as ew
from envweave.codec import AnySpec, spec_from_hint
from envweave.errors import BadReturnError


@dataclass
class Pixels(ew.Observation):
    image: Annotated[np.ndarray[Any, Any], ew.Bounds(0, 255, shape=(2, 2), dtype="uint8")]
    words: str


class Latecomers(ew.MultiAgentEnvironment):
    """Begins with one agent; the others come after a step, as `late` says."""

    possible_agents = ("first", "pixels", "open")
    action_spec = AnySpec()
    observation_spec = {  # noqa: RUF012
        "first": spec_from_hint(float),
        "pixels": spec_from_hint(Pixels),
        "open": AnySpec(),
    }

    def __init__(self, late: Any) -> None:
        self.late = late

    def reset(self, *, seed: int | None = None) -> Any:
        return {"first": 1.0}, {}

    def step(self, actions: Any) -> Any:
        return {"first": 2.0, **self.late}, {}, {}, {}, {}


def test_the_columns_of_an_agent_that_joins_late_follow_its_spec() -> None:
    image = np.full((2, 2), 7, np.uint8)
    late = {"pixels": Pixels(image, "hello"), "open": np.zeros(3)}
    venv = ew.make_vector(Latecomers, num_envs=2, late=late)

    before = venv.reset(seed=0).current
    after = venv.step([{"first": 0}] * 2).current

    assert before["pixels"]["image"].shape == (2, 2, 2)
    assert before["pixels"]["image"].dtype == np.uint8
    assert before["pixels"]["words"] == before["open"] == [None, None]
    assert after["pixels"]["image"].tolist() == [image.tolist()] * 2
    assert after["pixels"]["words"] == ["hello", "hello"]
    assert [seen.tolist() for seen in after["open"]] == [[0.0, 0.0, 0.0]] * 2


@pytest.mark.parametrize("mode", ["serial", "threads", "async"])
def test_an_observation_that_does_not_fit_an_agents_columns_fails_its_environment(
    mode: str,
) -> None:
    late = {"pixels": Pixels(np.zeros((3, 3), np.uint8), "too large")}
    with ew.make_vector(Latecomers, num_envs=2, late=late, mode=mode) as venv:
        venv.reset(seed=0)

        batch = venv.step([{"first": 0}] * 2)

    assert batch[0].end.reason == "error"
    assert "'pixels': image: An observation is uint8(3, 3)" in batch[0].end.cause
    assert not batch.valid.any()


def test_environments_with_different_observations_of_an_agent_are_refused_by_name() -> None:
    shapes = iter([2, 3])

    class Odd(ew.MultiAgentEnvironment):
        possible_agents = ("a",)

        def reset(self) -> Any:
            return {"a": np.zeros(next(shapes))}, {}

        def step(self, actions: Any) -> Any:
            raise NotImplementedError

    venv = ew.make_vector(Odd, num_envs=2)

    with pytest.raises(BadReturnError, match=r"Environment 1, 'a': .*float64\(3,\)"):
        venv.reset()


@dataclass
class Height(ew.Observation):
    metres: float


def test_an_agent_that_joins_late_has_the_dtypes_of_agents_with_its_spec() -> None:
    class Climbers(ew.MultiAgentEnvironment):
        possible_agents = ("first", "second")

        def reset(self) -> dict[str, Height]:
            return {"first": Height(np.float32(1.0))}

        def step(self, actions: dict[str, int]) -> dict[str, Height]:
            return {agent: Height(np.float32(2.0)) for agent in self.possible_agents}

    venv = ew.make_vector(Climbers, num_envs=2)
    venv.reset()

    batch = venv.step({"first": [0, 0]})

    assert batch.valid.all()
    assert batch.current["second"]["metres"].dtype == np.float32
    assert batch.current["second"]["metres"].tolist() == [2.0, 2.0]


def test_returned_arrays_belong_to_the_caller() -> None:
    venv = ew.make_vector("tictactoe-v0", num_envs=2)
    batches = [venv.reset(seed=0), venv.step({"x": np.array([0, 0])})]
    board = batches[1].current["x"]["board"].copy()

    for batch in batches:
        batch.current["x"]["board"][:] = 9
        batch.successor["x"]["board"][:] = 9
        batch.to_act[:] = batch.alive[:] = False
    again = venv.reset(ids=[])
    batch = venv.step({"o": np.array([1, 1])})

    assert again.current["x"]["board"].tolist() == board.tolist()
    assert again.to_act.tolist() == [[False, True]] * 2
    assert again.alive.all()
    assert batch.alive.all()
    assert batch.bootstrap.all()

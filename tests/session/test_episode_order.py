"""What may be called when, and what a result says about it."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import envweave as ew
from envweave.errors import ActionError, ClosedError, ResetFailedError, ResetNeededError
from envweave.examples import CounterAction, CounterEnv, CounterObservation
from envweave.testing import ScriptedEnvironment


def test_the_quickstart_shows_end_start_and_need_in_one_result() -> None:
    registry = ew.Registry()
    ew.register("local://counter-v0", factory=lambda: CounterEnv(), registry=registry)

    with ew.make("local://counter-v0", autoreset=True, registry=registry) as env:
        env.reset(seed=7)
        for _ in range(3):
            result = env.step({"delta": 1})

    assert [request.type for request in result.requests] == [
        "episode_end",
        "auto_reset_ready",
        "need_action",
    ]
    assert result.observation == CounterObservation(3, reward=1.0, done=True)
    assert result.current == CounterObservation(0)
    assert result.end == ew.EpisodeEnd("terminated")
    assert result.needs == [ew.NeedAction(CounterObservation(0))]


def test_an_action_may_be_an_object_or_a_dict() -> None:
    env = ew.make(CounterEnv())
    env.reset()

    by_object = env.step(CounterAction(delta=1)).observation.value
    by_dict = env.step({"delta": 1}).observation.value

    assert (by_object, by_dict) == (1, 2)


def test_a_misspelled_field_is_refused_by_path_with_the_nearest_name() -> None:
    env = ew.make(CounterEnv())
    env.reset()

    with pytest.raises(ActionError, match=r"action\.dleta: unknown field\. Did you mean 'delta'\?"):
        env.step({"dleta": 1})

    assert env.step({"delta": 1}).observation.value == 1


def test_step_before_reset_is_refused_with_the_remedy() -> None:
    env = ew.make(CounterEnv())

    with pytest.raises(ResetNeededError, match=r"before its first episode. Call reset\(\) first"):
        env.step({"delta": 1})


def test_step_after_the_end_names_autoreset_too() -> None:
    env = ew.make(CounterEnv(done_at=1))
    env.reset()
    env.step({"delta": 1})

    with pytest.raises(ResetNeededError, match="autoreset=True"):
        env.step({"delta": 1})


def test_after_close_everything_but_close_is_refused() -> None:
    env = ew.make(CounterEnv())
    env.reset()
    env.close()
    env.close()

    for call in (env.reset, env.state, lambda: env.step({"delta": 1})):
        with pytest.raises(ClosedError):
            call()


def test_the_authors_close_runs_once() -> None:
    class Counted(CounterEnv):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    environment = Counted()
    with ew.make(environment) as env:
        env.reset()
        env.close()

    assert environment.closed == 1


def test_a_result_unpacks_as_in_gymnasium() -> None:
    env = ew.make(CounterEnv())

    observation, info = env.reset(seed=3)
    after, reward, terminated, truncated, more = env.step({"delta": 1})

    assert (observation.value, info) == (0, {"seed": 3})
    assert (after.value, reward, terminated, truncated, more) == (1, 1.0, False, False, {})


def test_a_reset_result_is_a_step_result_that_is_not_done() -> None:
    result = ew.make(CounterEnv()).reset()

    assert isinstance(result, ew.StepResult)
    assert (result.done, result.reward, result.step_index) == (False, None, 0)


class TypeErrorInReset(ew.Environment):
    """A TypeError of the author's own must not be taken for a signature."""

    runs = 0

    def reset(self, *, seed: int | None = None) -> CounterObservation:
        self.runs += 1
        raise TypeError("the author's own")

    def step(self, action: CounterAction) -> CounterObservation:
        return CounterObservation(0)


def test_an_environment_that_raises_in_reset_runs_once_and_shows_its_cause() -> None:
    environment = TypeErrorInReset()
    env = ew.make(environment)

    with pytest.raises(ResetFailedError, match="the author's own") as caught:
        env.reset(seed=1)

    assert environment.runs == 1
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(ResetNeededError, match="the author's own"):
        env.step({"delta": 1})


def test_an_interrupt_passes_and_the_episode_is_gone() -> None:
    class Interrupted(CounterEnv):
        def step(self, action: CounterAction) -> CounterObservation:
            raise KeyboardInterrupt

    env = ew.make(Interrupted())
    env.reset()

    with pytest.raises(KeyboardInterrupt):
        env.step({"delta": 1})

    with pytest.raises(ResetNeededError, match="interrupted"):
        env.step({"delta": 1})


def test_one_buffer_written_in_place_is_handed_out_as_copies() -> None:
    class OneBuffer:
        def __init__(self) -> None:
            self.buffer = np.zeros(2)

        def reset(self) -> Any:
            self.buffer[:] = 0
            return self.buffer, {}

        def step(self, action: int) -> Any:
            self.buffer += action
            return self.buffer, 1.0, bool(self.buffer[0] >= 3), False, {}

    env = ew.make(OneBuffer(), autoreset=True)
    seen = [env.reset().observation]
    seen += [env.step(1).observation for _ in range(3)]

    assert [list(observation) for observation in seen] == [[0, 0], [1, 1], [2, 2], [3, 3]]


@dataclass
class Board(ew.Observation):
    cells: list[int]


def test_one_dataclass_changed_in_place_is_handed_out_as_copies() -> None:
    class OneBoard(ew.Environment):
        def __init__(self) -> None:
            self.board = Board([0])

        def reset(self) -> Board:
            self.board.cells[0] = 0
            return self.board

        def step(self, action: int) -> Board:
            self.board.cells[0] += action
            return self.board

    env = ew.make(OneBoard())
    seen = [env.reset().observation, env.step(1).observation, env.step(1).observation]

    assert [board.cells for board in seen] == [[0], [1], [2]]


def test_state_is_a_copy() -> None:
    env = ew.make(ScriptedEnvironment())
    env.reset(episode_id="mine")
    state = env.state()

    env.step({})

    assert (state.episode_id, state.step_count) == ("mine", 0)


def test_an_environment_without_a_state_of_its_own_still_names_its_episode() -> None:
    env = ew.make(CounterEnv())
    env.reset(episode_id="mine")
    env.step({"delta": 1})

    assert env.state() == ew.State(episode_id="mine", step_count=1)


def test_a_result_survives_pickling() -> None:
    env = ew.make(CounterEnv(done_at=1), autoreset=True)
    env.reset(seed=1)
    result = env.step({"delta": 1})

    copy = pickle.loads(pickle.dumps(result))

    assert copy.requests == result.requests
    assert copy.observation == result.observation


@pytest.mark.parametrize(
    "reset",
    [
        lambda self: 0,
        lambda self, *, seed=None: 0,
        lambda self, seed=None, options=None: 0,
        lambda self, **anything: 0,
        lambda self, *, episode_id=None: 0,
    ],
)
def test_any_subset_of_the_reset_parameters_is_a_valid_signature(reset: Any) -> None:
    class Flexible(ew.Environment):
        def step(self, action: Any) -> Any:
            return 0, 0.0, True, False, {}

    Flexible.reset = reset
    Flexible.__abstractmethods__ = frozenset()

    result = ew.make(Flexible()).reset()

    assert result.observation == 0


def test_a_reset_that_needs_more_than_anyone_passes_is_refused_at_once() -> None:
    class Demanding(ew.Environment):
        def reset(self, difficulty: int) -> Any:
            return 0

        def step(self, action: Any) -> Any:
            return 0, 0.0, True, False, {}

    with pytest.raises(ew.errors.DefinitionError, match="'difficulty'"):
        ew.make(Demanding())

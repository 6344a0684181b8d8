"""An environment with a session inside: bare observations, and the rules of `make`."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
from dataclasses import dataclass
from typing import Any

import pytest

import envweave as ew
from envweave.errors import ActionError, ClosedError, ResetNeededError
from envweave.examples import CounterAction, CounterEnv, CounterObservation
from envweave.session import DirectEnvironment
from envweave.testing import AsyncScriptedEnvironment
from envweave.wrappers import EpisodeStatistics, TimeLimit


class Doubling(ew.Transform):
    """Adds one, so that applying it twice is detected."""

    def __call__(self, observation: ew.Observation) -> ew.Observation:
        observation.add_reward("one", 1.0)
        return observation


@dataclass
class Order(ew.Action):
    order: str = ""


class Ordered(ew.Environment):
    """Fails, ends and calls tools as its actions say, sync or async."""

    def reset(self, *, seed: int | None = None) -> ew.Observation:
        return ew.Observation()

    def step(self, action: Order) -> ew.Observation:
        if action.order == "raise":
            raise OSError("no more")
        if action.order == "lose":
            self.emit(ew.EpisodeEnd("lost", "infrastructure", "gone"))
        if action.order == "ask":
            self.emit(ew.ToolCallRequest("1", "look", {}))
        if action.order == "loop":
            self.emit(ew.EpisodeEnd("timeout", "agent", "it looped"))
        return ew.Observation(reward=1.0, done=action.order == "end")

    def answer(self, result: ew.ToolResult) -> ew.Observation:
        return ew.Observation(reward=5.0, metadata={"answered": result.value})


class AsyncOrdered(Ordered):
    async def step(self, action: Order) -> ew.Observation:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().step(action)


@pytest.fixture(params=[Ordered, AsyncOrdered])
def env(request: pytest.FixtureRequest) -> Any:
    with DirectEnvironment(request.param()) as made:
        yield made


def test_reset_and_step_return_bare_observations(env: Any) -> None:
    first = env.reset(seed=1)
    then = env.step(Order())

    assert type(first) is type(then) is ew.Observation
    assert (first.reward, then.reward) == (None, 1.0)


def test_a_step_before_the_first_reset_is_refused(env: Any) -> None:
    with pytest.raises(ResetNeededError, match="Call reset"):
        env.step(Order())


def test_a_step_after_the_end_is_refused(env: Any) -> None:
    env.reset()
    last = env.step(Order("end"))

    with pytest.raises(ResetNeededError, match="Call reset"):
        env.step(Order())

    assert last.done
    assert last.metadata["end"] == {"reason": "terminated", "blame": None, "cause": None}


@pytest.mark.parametrize(
    ("action", "field"), [({"oder": "x"}, "oder"), ({"order": 3}, "order"), (5, "5")]
)
def test_a_bad_action_is_refused_by_field_and_the_episode_continues(
    env: Any, action: Any, field: str
) -> None:
    env.reset()

    with pytest.raises(ActionError, match=field):
        env.step(action)

    assert env.step({"order": ""}).reward == 1.0


@pytest.mark.parametrize(
    ("order", "end", "is_paid"),
    [
        ("raise", ("error", "environment", "OSError: no more"), False),
        ("lose", ("lost", "infrastructure", "gone"), False),
        ("loop", ("timeout", "agent", "it looped"), True),
    ],
)
def test_an_observation_contains_why_its_episode_ended(
    env: Any, order: str, end: tuple[str, str, str], is_paid: bool
) -> None:
    env.reset()

    last = env.step(Order(order))
    env.reset()
    after = env.step(Order())

    outcome = last.metadata["end"]
    assert (outcome["reason"], outcome["blame"], outcome["cause"].partition(" (")[0]) == end
    assert (last.truncated, last.done) == (True, False)
    assert last.reward == 1.0 if is_paid else math.isnan(last.reward)
    assert after.reward == 1.0
    assert "end" not in after.metadata


def test_a_tool_call_of_the_environments_is_answered(env: Any) -> None:
    env.reset()
    env.step(Order("ask"))

    answered = env.answer(ew.ToolResult("1", "seen"))

    assert (answered.reward, answered.metadata) == (5.0, {"answered": "seen"})


def test_a_transform_that_is_set_in_mid_episode_holds_from_the_next_step(env: Any) -> None:
    env.reset()
    before = env.step(Order()).reward

    env.transform = Doubling()
    during = env.step(Order())
    env.transform = None
    after = env.step(Order()).reward

    assert (before, during.reward, after) == (1.0, 2.0, 1.0)
    assert during.metadata["reward_parts"]["one"] == 1.0


def test_closing_twice_is_allowed(env: Any) -> None:
    env.reset()

    env.close()
    env.close()

    with pytest.raises(ClosedError):
        env.reset()
    with pytest.raises(ClosedError):
        env.step(Order())
    with pytest.raises(ClosedError):
        env.state


def test_a_block_closes_it_once() -> None:
    inside = CounterEnv()
    closed: list[int] = []
    inside.close = lambda: closed.append(1)  # type: ignore[method-assign]

    with DirectEnvironment(inside) as env:
        env.reset()
    env.close()

    assert closed == [1]


def test_an_async_environment_is_used_directly_inside_a_running_loop() -> None:
    before = threading.active_count()

    async def notebook_cell() -> list[Any]:
        with DirectEnvironment(AsyncScriptedEnvironment()) as env:
            env.reset()
            rewards = [env.step({}).reward for _ in range(3)]
            return [*rewards, env.state.step_count]

    outcome = asyncio.run(notebook_cell())

    assert outcome == [1.0, 2.0, 3.0, 3]
    assert threading.active_count() == before


def test_it_may_be_made_outside_a_loop_and_stepped_inside_one() -> None:
    with DirectEnvironment(AsyncOrdered()) as env:
        env.reset()

        async def cell() -> Any:
            return env.step(Order()).reward

        rewards = [asyncio.run(cell()), env.step(Order()).reward, asyncio.run(cell())]

    assert rewards == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("inside", [Ordered, AsyncOrdered])
def test_make_unwraps_it_and_the_transform_is_applied_once(inside: Any) -> None:
    env = DirectEnvironment(inside())
    env.transform = Doubling()

    with ew.make(env) as made:
        made.reset()
        result = made.step({"order": ""})

    assert result.reward == 2.0


@pytest.mark.parametrize("inside", [Ordered, AsyncOrdered])
@pytest.mark.parametrize("through", ["make", "direct"])
def test_a_wrapper_around_a_direct_environment_wraps_the_one_inside(
    inside: Any, through: str
) -> None:
    env = DirectEnvironment(inside())
    env.transform = Doubling()
    wrapped = EpisodeStatistics(TimeLimit(env, max_steps=2))

    with ew.make(wrapped) if through == "make" else DirectEnvironment(wrapped) as made:
        made.reset()
        shown = [made.step(Order()) for _ in range(2)]

    assert [one.reward for one in shown] == [2.0, 2.0]
    assert [one.truncated for one in shown] == [False, True]


def test_one_inside_another_is_one() -> None:
    inner = DirectEnvironment(Ordered())
    inner.transform = Doubling()

    with DirectEnvironment(inner) as outer:
        outer.reset()
        reward = outer.step(Order()).reward

    assert outer.unwrap() is inner.unwrap()
    assert reward == 2.0


def test_a_non_observation_is_returned_unchanged() -> None:
    class Bare(ew.Environment):
        def reset(self) -> Any:
            return "begin", {}

        def step(self, action: int) -> Any:
            return f"saw {action}", 1.0, False, False, {}

    with DirectEnvironment(Bare()) as env:
        assert env.reset() == "begin"
        assert env.step(3) == "saw 3"


def test_an_observation_does_not_change_later() -> None:
    with DirectEnvironment(CounterEnv()) as env:
        env.reset()
        first = env.step(CounterAction(1))
        kept = CounterObservation(**vars(first))
        env.step(CounterAction(1))

    assert first == kept


def test_a_dropped_one_leaves_no_thread() -> None:
    before = threading.active_count()
    env: Any = DirectEnvironment(CounterEnv())
    env.reset()

    del env
    gc.collect()

    assert threading.active_count() == before

"""Actions and observations that are pydantic's models, in this process and elsewhere."""

from __future__ import annotations

import datetime
import json
import pickle
import urllib.request
from typing import Any

import numpy as np
import pytest
from environments.typed import (
    Books,
    Buy,
    Colour,
    Deal,
    Haggle,
    Ledger,
    Market,
    Sell,
    Verdict,
)
from pydantic import BaseModel
from servers import served

import envweave as ew
from envweave.codec import spec_from_hint
from envweave.errors import ActionError, SpecError

ORDER = {"order": {"kind": "buy", "count": 2}, "from": 3, "due": "2026-01-02"}


def play(env: Any) -> list[Any]:
    """Play a short episode, and return all that was shown."""
    rng = np.random.default_rng(0)
    shown = [env.reset(seed=1, episode_id="one"), env.step(ORDER)]
    shown += [env.step(env.action_spec.sample(rng)), env.step(Deal(order=Sell(price=2.5)))]
    return [*shown, env.state()]


def test_a_dict_becomes_the_model_and_the_observation_carries_the_outcome() -> None:
    with ew.make(Market) as env:
        first = env.reset(seed=1)
        result = env.step(ORDER)

    assert isinstance(first.observation, Books)
    assert first.info == {"opens": True, "seed": 1}
    assert result.observation.last == Buy(count=2)
    assert result.observation.due == datetime.date(2026, 1, 2)
    assert (result.reward, result.done, result.info) == (1.0, False, {"sender": 3})


@pytest.mark.slow  # it starts processes
@pytest.mark.parametrize("backend", ["process", "http"])
def test_every_backend_shows_the_same_objects(backend: str) -> None:
    with ew.make(Market) as env:
        here = play(env)
    with ew.make(Market, backend=backend) as env:
        there = play(env)

    assert there == here
    assert isinstance(there[-1], Ledger)


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_a_caller_without_the_classes_has_the_same_fields(encoding: Any) -> None:
    with ew.make(Market) as env:
        here = play(env)
    with served(Market) as url, ew.make(url, encoding=encoding) as env:
        there = play(env)

    shown = there[1].observation
    assert (shown.last.count, shown.seen, shown.due) == (2, ["red"], "2026-01-02")
    assert not isinstance(shown, BaseModel)
    assert [one.reward for one in there[:4]] == [one.reward for one in here[:4]]
    assert there[-1].step_count == 3


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ({**ORDER, "note": "far longer than that"}, r"action\.note: .* at most 12 characters"),
        ({**ORDER, "order": {"kind": "buy", "count": 0}}, r"action\.order\.count: 0 is refused"),
        ({**ORDER, "nte": "x"}, r"action\.nte: unknown field\. Did you mean 'note'\?"),
        ({"order": {"kind": "buy", "cuont": 1}}, r"action\.order\.cuont: .* mean 'count'\?"),
        ({"order": {"kind": "sell", "prise": 1}}, r"action\.order\.prise: .* mean 'price'\?"),
        ({"colour": "red"}, r"action\.order: this field is missing"),
        ({**ORDER, "note": "red"}, "that is said twice"),
        (3, "is neither Deal nor a dict of its fields"),
    ],
)
def test_an_error_of_the_model_is_reported_by_path(action: Any, message: str) -> None:
    with ew.make(Market) as env:
        env.reset()
        with pytest.raises(ActionError, match=message):
            env.step(action)
        result = env.step(ORDER)

    assert result.step_index == 1


def test_samples_are_valid_and_repeatable() -> None:
    spec = spec_from_hint(Deal)

    drawn = [[spec.sample(rng) for _ in range(30)] for rng in map(np.random.default_rng, (4, 4))]

    assert drawn[0] == drawn[1]
    assert {type(one.order) for one in drawn[0]} == {Buy, Sell}
    assert {one.colour for one in drawn[0]} == set(Colour)
    assert pickle.loads(pickle.dumps(spec)).contains(drawn[0][0])


class Never(BaseModel):
    at: type


def test_a_model_that_cannot_be_sampled_names_the_field() -> None:
    spec = spec_from_hint(Never)

    assert not spec.can_sample
    with pytest.raises(SpecError, match=r"Never\.at cannot be sampled"):
        spec.sample(np.random.default_rng(0))


def test_a_vector_has_a_column_per_field_and_none_for_the_outcome() -> None:
    with ew.make_vector(Market, num_envs=3, autoreset=True) as envs:
        envs.reset(seed=1)
        for _ in range(5):
            batch = envs.step([ORDER] * 3)

    assert batch.successor.keys() == {"money", "stock", "last", "seen", "due"}
    assert batch.successor["stock"].tolist() == [5, 5, 5]
    assert batch.successor["money"].dtype == np.float64
    assert batch.terminated.all()
    assert batch.current["last"] == [None] * 3


def test_a_gymnasium_view_has_a_space_for_each_field() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    env = ew.to_gymnasium(Haggle)
    spaces = gymnasium.spaces

    observation, _ = env.reset(seed=1)
    shown, reward, *_ = env.step({"price": 7})
    env.close()

    assert env.action_space == spaces.Dict({"price": spaces.Discrete(10)})
    assert env.observation_space["level"] == spaces.Discrete(4)
    assert env.observation_space.contains(observation)
    assert (shown["taken"], shown["level"], reward) == (1, 1, 1.0)


def test_a_time_limit_keeps_the_outcome_of_the_model() -> None:
    with ew.make(Market, max_episode_steps=2) as env:
        env.reset()
        env.step(ORDER)
        result = env.step(ORDER)

    assert (result.reward, result.truncated, result.terminated) == (1.0, True, False)


def test_a_reset_that_returns_an_ended_model_is_refused() -> None:
    class Over(ew.Environment):
        def reset(self) -> Books:
            return Books(done=True)

        def step(self, action: Deal) -> Books:
            raise NotImplementedError

    with ew.make(Over) as env, pytest.raises(ew.EnvWeaveError, match="over already"):
        env.reset()


def test_a_server_describes_the_models_as_pydantic_does() -> None:
    with served(Market) as url, urllib.request.urlopen(f"{url}/schema") as answer:
        document = json.load(answer)

    assert document["action"]["properties"]["order"]["discriminator"]["propertyName"] == "kind"
    assert document["observation"]["properties"].keys() == Books.model_fields.keys()


def test_openenvs_dialect_leaves_the_outcome_out_of_the_observation() -> None:
    with served(Market) as url, ew.make(f"openenv://{url}") as env:
        env.reset(seed=1)
        result = env.step(ORDER)

    assert result.observation.stock == 1
    assert not hasattr(result.observation, "reward")
    assert (result.reward, result.info) == (1.0, {"sender": 3})


def test_an_observation_is_the_callers_own() -> None:
    kept = Verdict(taken=False)

    class Same(ew.Environment):
        def reset(self) -> Any:
            return kept, {}

        def step(self, action: int) -> tuple[Verdict, float, bool, bool, dict[str, Any]]:
            kept.level += 1
            return kept, 0.0, False, False, {}

    with ew.make(Same) as env:
        first = env.reset().observation
        second = env.step(1).observation

    assert (first.level, second.level) == (0, 1)

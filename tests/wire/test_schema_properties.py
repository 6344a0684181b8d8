"""A spec survives the round trip through its schema."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict, Union

import gymnasium
import numpy as np
import pytest
from comparison import same
from fuzzing import equal, values
from gymnasium import spaces
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import envweave as ew
from envweave.codec import AgentsSpec, Bounds, Spec, spec_from_hint
from envweave.codec.gymnasium_spaces import from_space
from envweave.codec.scalars import ArraySpec
from envweave.environment import Interface
from envweave.errors import SpecError
from envweave.wire.decoding import rebuilder
from envweave.wire.description import Rebuilt, describe, read_description
from envweave.wire.encoding import JSON, MSGPACK, PLAIN_JSON
from envweave.wire.schema_read import spec_of
from envweave.wire.schema_write import schema_of

quick = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    x: int
    y: Annotated[float, Bounds(0, 1)] = 0.5


class Config(TypedDict):
    name: str
    size: NotRequired[int]


@dataclass
class Tree:
    value: int
    left: Tree | None = None
    children: list[Tree] = field(default_factory=list)


@dataclass
class Rich(ew.Action):
    size: int
    point: Point = field(default_factory=lambda: Point(1))
    colours: frozenset[str] = frozenset({"red"})
    grid: Annotated[np.ndarray, Bounds(0, 1, shape=(2,), dtype="float32")] = field(
        default_factory=lambda: np.zeros(2, np.float32)
    )
    names: list[str] = field(default_factory=lambda: ["a"])


@dataclass
class Derives(ew.Action):
    once: dataclasses.InitVar[int]
    size: int = 3
    derived: int = field(init=False, default=0)

    def __post_init__(self, once: int) -> None:
        self.derived = once


def record(hints: list[Any], base: type) -> type:
    fields = [(f"field_{i}", hint) for i, hint in enumerate(hints)]
    return dataclasses.make_dataclass("Made", fields, bases=(base,))


def array(dtype: str, shape: tuple[int, ...], low: int | None, width: int) -> Any:
    high = None if low is None else low + width
    return Annotated[np.ndarray, Bounds(low, high, shape=shape, dtype=dtype)]


dtypes = st.sampled_from(["int8", "uint8", "int64", "uint64", "float16", "float32", "float64"])
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
leaves = (
    st.sampled_from([int, float, bool, str, bytes, None, Colour, Literal[1, "a", True, None]])
    | st.sampled_from([Point, Config, Tree, Rich, dict, dict[int, float], dict[Colour, int]])
    | st.builds(
        lambda low, width: Annotated[int, Bounds(low, low + width)],
        st.integers(-(2**70), 2**70),
        st.integers(0, 2**70),
    )
    | st.builds(lambda low: Annotated[float, Bounds(low, None)], st.floats(-10, 10))
    | st.builds(array, dtypes, shapes, st.none() | st.integers(0, 50), st.integers(0, 50))
    | st.just(Annotated[np.ndarray, Bounds(shape=(2,), dtype="bool")])
)


def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        inner.map(lambda hint: list[hint])  # type: ignore[valid-type]
        | inner.map(lambda hint: tuple[hint, ...])  # type: ignore[valid-type]
        | inner.map(lambda hint: dict[str, hint])  # type: ignore[valid-type]
        | st.sampled_from([int, str]).map(lambda hint: set[hint])  # type: ignore[valid-type]
        | st.lists(inner, max_size=3).map(lambda hints: tuple[tuple(hints)])  # type: ignore[misc]
        | st.builds(
            record,
            st.lists(inner, max_size=4),
            st.sampled_from([object, ew.Action, ew.Observation]),
        )
        | st.lists(inner, min_size=1, max_size=3).map(lambda hints: Union[tuple(hints)])  # noqa: UP007
    )


specs = st.recursive(leaves, grown, max_leaves=6).map(spec_from_hint)


def plain(value: Any) -> Any:
    return MSGPACK.decode(MSGPACK.encode(value))


def travelled(spec: Spec, role: str | None = None) -> Spec:
    read = [spec_of(one.decode(one.encode(schema_of(spec))), role) for one in (MSGPACK, JSON)]
    assert read[0] is read[1]
    return read[0]


def test_what_only_the_constructor_takes_is_given_to_it_at_the_other_end():
    spec = spec_from_hint(Derives)

    made = travelled(spec, "action").check({"once": 5})

    assert spec.check(plain(made)) == Derives(5)
    assert drawn(travelled(spec), 0)["once"] == drawn(spec, 0)["derived"]


def drawn(spec: Spec, seed: int) -> Any:
    try:
        return plain(spec.sample(np.random.default_rng(seed)))
    except SpecError:
        return None


@given(
    spec=specs, seed=st.integers(0, 2**32), role=st.sampled_from([None, "action", "observation"])
)
@quick
def test_both_draw_the_same_and_take_what_the_other_draws(spec: Spec, seed: int, role: str | None):
    other = travelled(spec, role)

    ours, theirs = drawn(spec, seed), drawn(other, seed)

    assert equal(ours, theirs)
    assert spec.can_sample == other.can_sample
    assert ours is None or (spec.contains(ours) and other.contains(ours))


@pytest.mark.slow  # many generated messages
@given(spec=specs, value=values)
@quick
def test_both_refuse_the_same(spec: Spec, value: Any):
    assert travelled(spec).contains(value) == spec.contains(value)


@given(spec=specs, seed=st.integers(0, 2**32))
@quick
def test_a_value_of_the_spec_comes_back_as_it_was(spec: Spec, seed: int):
    # Lists, tuples and sets look alike on the wire: a union cannot distinguish them.
    assume("anyOf" not in str(schema_of(spec)))
    rebuild = rebuilder(spec) or (lambda one: one)
    try:
        value = spec.sample(np.random.default_rng(seed))
    except SpecError:
        return

    again = rebuild(plain(value))

    assert type(again) is type(value)
    assert same(again, value)


@given(spec=specs)
@quick
def test_the_schema_of_the_other_is_the_same_again(spec: Spec):
    schema = schema_of(spec)

    assert schema_of(travelled(spec)) == schema or "$defs" in schema


SPACES = [
    spaces.Discrete(3, start=-1),
    spaces.Box(-1, 1, (2, 3), np.float32),
    spaces.Box(np.array([0.0, -np.inf]), np.array([np.inf, 1.0]), dtype=np.float64),
    spaces.Box(0, 255, (4, 4, 3), np.uint8),
    spaces.Box(0, 1, (3,), np.int8),
    spaces.MultiBinary(4),
    spaces.MultiBinary((2, 2)),
    spaces.MultiDiscrete([2, 3], start=[1, 0]),
    spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, ())])),
    spaces.Text(5, min_length=2, charset="xyz"),
    spaces.Sequence(spaces.Box(0, 1, (2,)), stack=True),
    spaces.OneOf([spaces.Discrete(2), spaces.Box(0, 1, (1,))]),
    spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
    spaces.Graph(spaces.Discrete(3), None),
]


@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_a_gymnasium_space_comes_back(space: gymnasium.Space):
    spec = from_space(space)

    assert travelled(spec).to_space() == spec.to_space()
    assert spec_of(PLAIN_JSON.decode(PLAIN_JSON.encode(schema_of(spec)))).to_space() == (
        spec.to_space()
    )


def test_the_schema_of_a_large_image_is_short():
    image = from_space(spaces.Box(0, 255, (210, 160, 3), np.uint8))

    assert len(PLAIN_JSON.encode(schema_of(image))) < 500


@pytest.mark.parametrize("bound", [-np.inf, np.array([-np.inf, 0.0])])
def test_an_infinite_bound_is_kept(bound: Any):
    spec = ArraySpec((2,), "float64", bound, np.inf)

    other = travelled(spec)

    assert other.contains([5.0, 5.0])
    assert not other.contains([np.nan, 0.0])


@pytest.mark.parametrize(
    "env_id",
    [
        "counter-v0",
        "echo-v0",
        "lineworld-v0",
        "tictactoe-v0",
        "harvest-v0",
        "gym://CartPole-v1",
        "gym://Pendulum-v1",
        "gym://Blackjack-v1",
        "pettingzoo://classic/tictactoe_v3",
    ],
)
@pytest.mark.parametrize("encoding", [MSGPACK, JSON, PLAIN_JSON], ids=lambda one: one.name)
def test_an_environment_that_was_described_takes_and_shows_the_same(env_id: str, encoding):
    env = ew.make(env_id)
    agents = tuple(env.action_spec.agents) if isinstance(env.action_spec, AgentsSpec) else None
    interface = Interface(
        frozenset({"seed"}), frozenset(), env.action_spec, env.observation_spec, agents, name="X"
    )
    env.close()

    sent = describe(interface, spec_from_hint(ew.State), None, env_id, "1", "one line")
    rebuilt = Rebuilt(read_description(encoding.decode(encoding.encode(sent)))).interface

    assert (rebuilt.possible_agents, rebuilt.reset_takes, rebuilt.name) == (
        agents,
        frozenset({"seed"}),
        "X",
    )
    for ours, theirs in (
        (interface.action_spec, rebuilt.action_spec),
        (interface.observation_spec, rebuilt.observation_spec),
    ):
        assert theirs.to_space() == ours.to_space()
        for seed in range(10):
            assert equal(drawn(ours, seed), drawn(theirs, seed))

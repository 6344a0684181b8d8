import dataclasses
import enum
import pickle
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import envweave as ew
from envweave.codec import AgentsSpec, AnySpec, Mismatch, spec_from_hint
from envweave.codec.containers import NOT_SHOWN, DictSpec, ListSpec, TupleSpec, UnionSpec
from envweave.codec.gymnasium_spaces import AnyText, SpaceSpec, bridge, from_space
from envweave.codec.scalars import (
    ArraySpec,
    BoolSpec,
    EnumSpec,
    FloatSpec,
    InstanceSpec,
    IntSpec,
    StrSpec,
)
from envweave.errors import MissingExtraError, SpecError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: Annotated[float, ew.Bounds(-1, 1)]
    reward: int = 0


class Span(NamedTuple):
    start: int
    end: int = 3


@dataclass
class Seen(ew.Observation):
    point: Point
    colour: Colour
    said: str
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass
class Move(ew.Action):
    by: Literal[-1, 1]


@dataclass
class Shot(ew.Action):
    angle: float
    force: int


def same(one: Any, other: Any) -> bool:
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        hidden = NOT_SHOWN if isinstance(one, ew.Observation) else ()
        fields = [{k: v for k, v in vars(side).items() if k not in hidden} for side in (one, other)]
        return type(one) is type(other) and same(*fields)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        pairs = zip(one, other, strict=True)
        return type(one) is type(other) and all(same(a, b) for a, b in pairs)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)


ints = st.integers(-1000, 1000)
shapes = st.lists(st.integers(1, 3), max_size=2).map(tuple)


def ordered(low: int | None, high: int | None) -> tuple[int | None, int | None]:
    return (high, low) if low is not None and high is not None and low > high else (low, high)


bounds = st.builds(ordered, st.none() | ints, st.none() | ints)
leaves = (
    st.builds(BoolSpec)
    | st.builds(StrSpec)
    | bounds.map(lambda ends: IntSpec(*ends))
    | bounds.map(lambda ends: FloatSpec(*ends))
    | st.lists(st.integers() | st.text(max_size=3), min_size=1, unique=True).map(EnumSpec)
    | st.just(EnumSpec(Colour, enum=Colour))
    | st.builds(ArraySpec, shapes, st.just("bool"))
    | st.builds(ArraySpec, shapes, st.just("int8"), st.just(0), st.just(1))
    | st.builds(
        lambda shape, dtype, ends: ArraySpec(shape, dtype, *ends),
        shapes,
        st.sampled_from(["float32", "float64", "int64", "int32"]),
        bounds,
    )
    | st.sampled_from([Move, Shot, Seen, Point, Span, tuple[int, ...], bool | None]).map(
        spec_from_hint
    )
)
specs = st.recursive(
    leaves,
    lambda inner: (
        st.builds(ListSpec, inner)
        | st.lists(inner, min_size=1, max_size=3).map(TupleSpec)
        | st.lists(inner, min_size=1, max_size=3).map(UnionSpec)
        | st.dictionaries(st.text("abc", min_size=1), inner, min_size=1, max_size=3).map(
            lambda fields: DictSpec(fields=fields)
        )
    ),
    max_leaves=6,
)


@given(specs, st.integers(0, 2**32 - 1))
def test_a_value_goes_to_the_space_and_comes_back_the_same(spec, seed):
    value = spec.sample(np.random.default_rng(seed))
    way = bridge(spec)

    encoded = way.encode(value)

    assert way.space.contains(encoded)
    assert same(spec.read(way.decode(encoded)), spec.read(value))


@given(specs, st.integers(0, 2**31 - 1))
def test_a_sample_of_the_space_is_a_value_of_the_spec(spec, seed):
    way = bridge(spec)
    way.space.seed(seed)

    decoded = way.decode(way.space.sample())

    assert spec.contains(decoded)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3),
        spaces.Discrete(3, start=-1),
        spaces.Box(-1.0, 1.0, (2, 3), np.float32),
        spaces.Box(np.array([-np.inf, 0.0]), np.array([1.0, np.inf]), dtype=np.float64),
        spaces.Box(0, 255, (4, 4, 3), np.uint8),
        spaces.Box(0, 1, (9,), np.int8),
        spaces.Box(-np.inf, np.inf, (3,), np.float32),
        spaces.Box(-np.inf, np.inf, (2,), np.int64),
        spaces.Box(0, np.inf, (1,), np.int32),
        spaces.MultiBinary(4),
        spaces.MultiBinary((2, 2)),
        spaces.MultiDiscrete([3, 2]),
        spaces.MultiDiscrete([[3, 2], [5, 4]], start=[[0, 1], [-2, 7]]),
        spaces.Text(5, min_length=2, charset="xyz"),
        spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-1.0, 1.0, (1,))}),
        spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(2)]),
        spaces.Sequence(spaces.Discrete(3)),
        spaces.OneOf([spaces.Discrete(3), spaces.Box(0.0, 1.0, (2,))]),
        AnyText(),
    ],
    ids=repr,
)
def test_a_space_survives_the_way_to_a_spec_and_back(space):
    spec = from_space(space)

    drawn = spec.sample(np.random.default_rng(0))

    assert spec.to_space() == space
    assert space.contains(spec.to_space().sample())
    assert space.contains(bridge(spec).encode(drawn))
    assert same(drawn, spec.sample(np.random.default_rng(0)))


def test_a_graph_space_checks_and_draws_with_itself():
    space = spaces.Graph(spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(3))
    spec = from_space(space)

    drawn = spec.sample(np.random.default_rng(0))

    assert isinstance(spec, SpaceSpec)
    assert space.contains(drawn)
    assert not spec.contains("no graph")


def test_sampling_a_spec_leaves_the_random_state_of_the_space_alone():
    space = spaces.Text(5)
    space.seed(1)
    expected = space.sample()
    space.seed(1)

    from_space(space).sample(np.random.default_rng(0))

    assert space.sample() == expected


def test_a_text_outside_the_space_is_refused_by_a_sentence():
    spec = from_space(spaces.Text(3, charset="ab"))

    with pytest.raises(SpecError, match=r"word: 'abc' is not in Text\(1, 3"):
        spec.check("abc", "word")

    assert spec.check("ab") == "ab"
    assert spec.json_schema() == {"type": "string", "minLength": 1, "maxLength": 3}


def test_a_space_that_stumbles_over_a_value_refuses_it():
    spec = from_space(spaces.Sequence(spaces.Discrete(3), stack=True))

    with pytest.raises(SpecError, match="None is not in Sequence"):
        spec.check(None)


def test_a_float_box_leaves_values_beyond_its_bounds_to_the_environment():
    spec = from_space(spaces.Box(-1.0, 1.0, (2,), np.float32))

    read = spec.check(np.array([5.0, 0.0]))

    assert read.dtype == np.float32
    assert not spec.contains(np.array([5.0]))
    assert not spec.contains(["a", "b"])


def test_an_int_box_refuses_values_beyond_its_bounds():
    spec = from_space(spaces.Box(0, 3, (2,), np.int64))

    assert spec.contains([0, 3])
    assert not spec.contains([0, 4])
    assert not spec.contains([0.5, 1.0])


@pytest.mark.parametrize("action", [2, np.int64(2), np.int32(2), np.array(2)])
def test_a_discrete_space_takes_every_form_of_a_whole_number(action):
    spec = from_space(spaces.Discrete(3))

    assert spec.check(action) == 2
    assert type(spec.check(action)) is int


def test_a_non_space_is_refused():
    with pytest.raises(SpecError, match="3 is not a Gymnasium space"):
        from_space(3)


def test_a_dataclass_becomes_a_dict_of_the_authors_own_fields():
    space = spec_from_hint(Seen).to_space()

    assert space == spaces.Dict(
        {
            "point": spaces.Dict(
                {
                    "x": spaces.Box(-1.0, 1.0, (1,), np.float64),
                    "reward": spaces.Box(
                        np.iinfo(np.int64).min, np.iinfo(np.int64).max, (1,), np.int64
                    ),
                }
            ),
            "colour": spaces.Discrete(2),
            "said": AnyText(),
        }
    )


def test_an_observation_is_encoded_with_the_dtypes_of_its_space():
    seen = Seen(Point(0.5, 3), Colour.BLUE, "grüß dich", reward=1.0, done=True)

    encoded = bridge(spec_from_hint(Seen)).encode(seen)

    assert encoded["point"]["x"].dtype == np.float64
    assert encoded["point"]["reward"].dtype == np.int64
    assert encoded == {
        "point": {"x": np.array(0.5), "reward": np.array(3)},
        "colour": 1,
        "said": "grüß dich",
    }


def test_an_action_of_one_field_is_that_fields_space():
    way = bridge(spec_from_hint(Move))

    assert way.space == spaces.Discrete(2)
    assert way.decode(np.int64(0)) == Move(-1)
    assert way.encode(Move(1)) == 1


def test_an_action_of_several_fields_is_a_dict():
    way = bridge(spec_from_hint(Shot))

    assert isinstance(way.space, spaces.Dict)
    assert way.decode({"angle": np.array(0.5), "force": np.array(3)}) == Shot(0.5, 3)


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (Move, 2, "action.by: 2 is not between 0 and 1"),
        (Move, 0.5, "action.by: 0.5 is not an int"),
        (Shot, {"angle": 0.5}, "action['force']: this key is missing"),
        (Shot, {"angle": 0.5, "forse": 1}, "action['forse']: unknown key. Did you mean 'force'?"),
        (Shot, {"angle": "up", "force": 1}, "action['angle']: 'up' is not a number"),
        (Shot, 3, "action: 3 is not a dict"),
        (tuple[int, bool], (1, 5), "action[1]: 5 is not between 0 and 1"),
        (tuple[int, bool], (1,), "action: (1,) is not a tuple of 2"),
        (list[int], [1, "x"], "action[1]: 'x' is not an int"),
        (int | str, (2, "x"), "action[0]: 2 is not between 0 and 1"),
        (int | str, (0, "x"), "action[1]: 'x' is not an int"),
        (int | str, "x", "action: 'x' is not a pair of an option's number and its value"),
    ],
)
def test_a_value_that_is_not_in_the_space_is_refused_by_its_path(hint, value, message):
    way = bridge(spec_from_hint(hint))

    with pytest.raises(Mismatch) as refused:
        way.decode(value)

    assert refused.value.describe("action") == message


def test_an_observation_that_does_not_fit_is_refused_by_its_path():
    way = bridge(spec_from_hint(Seen))

    with pytest.raises(Mismatch) as refused:
        way.encode(Seen(Point(2.0), Colour.RED, "x"))

    assert refused.value.describe("seen") == "seen.point.x: 2.0 is not between -1 and 1"


def test_a_number_too_large_for_the_space_is_refused():
    with pytest.raises(Mismatch, match="does not fit into int64"):
        bridge(IntSpec()).encode(2**63)


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (AnySpec(), "value"),
        (StrSpec(binary=True), "value"),
        (DictSpec(), "value"),
        (DictSpec(fields={"a": IntSpec()}, optional=["a"]), "value"),
        (ListSpec(IntSpec(), kind=set), "value"),
        (ArraySpec(), "value"),
        (ArraySpec((2,), "complex128"), "value"),
        (IntSpec(0, 2**70), "value"),
        (
            DictSpec(fields={"a": TupleSpec([IntSpec(), InstanceSpec(object)])}),
            r"value\['a'\]\[1\]",
        ),
        (ListSpec(AnySpec()), r"value\[…\]"),
        (AgentsSpec({"one": AnySpec()}), r"value\['one'\]"),
    ],
    ids=repr,
)
def test_a_part_without_a_space_is_named(spec, path):
    with pytest.raises(SpecError, match=f"^{path}: .* has no Gymnasium space"):
        spec.to_space()


def test_agents_become_a_dict_of_their_spaces():
    spec = AgentsSpec({"one": IntSpec(0, 2), "two": BoolSpec()})

    assert spec.to_space() == spaces.Dict({"one": spaces.Discrete(3), "two": spaces.Discrete(2)})


def test_encoded_arrays_share_nothing_with_the_value():
    array = np.zeros(2)

    encoded = bridge(ArraySpec((2,), "float64")).encode(array)

    assert not np.shares_memory(encoded, array)


def test_a_spec_that_wraps_a_space_travels_to_other_processes():
    spec = from_space(spaces.Text(5))

    copied = pickle.loads(pickle.dumps(spec))

    assert copied.space == spec.space


def test_without_gymnasium_the_install_command_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "envweave.codec.gymnasium_spaces", raising=False)
    monkeypatch.setitem(sys.modules, "gymnasium", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'envweave\[gym\]'"):
        IntSpec(0, 1).to_space()


def test_an_adapted_environment_can_be_flattened_by_gymnasium():
    env = gym.wrappers.FlattenObservation(ew.to_gymnasium("lineworld-v0"))

    observation, _ = env.reset(seed=0)

    assert env.observation_space.contains(observation)
    env.close()

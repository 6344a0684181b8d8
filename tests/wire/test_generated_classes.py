"""Classes made from schemas behave as the author's own do."""

from __future__ import annotations

import copy
import dataclasses
import enum
import pickle
import uuid
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import numpy as np
import pytest

import envweave as ew
from envweave.codec import AnySpec, Spec, spec_from_hint
from envweave.codec.containers import DataclassSpec, DictSpec
from envweave.codec.records import docstring
from envweave.environment.introspection import state_spec
from envweave.errors import SpecError, WireError
from envweave.types import Action, Observation, State
from envweave.wire.description import Description, Rebuilt, Types
from envweave.wire.encoding import JSON, MSGPACK
from envweave.wire.schema_read import spec_of
from envweave.wire.schema_write import schema_of


@dataclass
class Move(ew.Action):
    dx: int
    speed: float = 1.5
    path: list[int] = field(default_factory=lambda: [1, 2])
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    note: str = field(kw_only=True)


@dataclass
class Tree:
    value: int
    left: Tree | None = None


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Paint(ew.Action):
    colour: Colour
    tree: Tree


@dataclass
class Seen(ew.Observation):
    tree: Tree


def class_for(hint: Any, role: str | None = None) -> Any:
    spec = spec_of(schema_of(spec_from_hint(hint)), role)
    assert isinstance(spec, DataclassSpec)
    return spec.cls


def test_a_class_has_the_fields_and_defaults_of_the_authors():
    made = class_for(Move, "action")(3, note="hello")

    assert isinstance(made, Action)
    assert type(made).__name__ == "Move"
    assert (made.dx, made.speed, made.path, made.note, made.metadata) == (
        3,
        1.5,
        [1, 2],
        "hello",
        {},
    )


def test_the_author_s_descriptions_are_kept():
    @dataclass
    class Aim(ew.Action):
        """Aim at a place.

        Attributes:
            x: Where to.
        """

        x: int
        y: Annotated[int, msgspec.Meta(description="How high.")] = 0

    made = spec_of(schema_of(spec_from_hint(Aim)), "action")

    assert isinstance(made, DataclassSpec)
    assert docstring(made.cls) == docstring(Aim)
    assert made.json_schema()["properties"]["y"]["description"] == "How high."
    assert docstring(class_for(Move, "action")) == ""


def test_a_field_that_is_needed_is_needed():
    with pytest.raises(TypeError, match="note"):
        class_for(Move, "action")(3)


def test_a_default_is_not_shared():
    cls = class_for(Move, "action")

    cls(3, note="").path.append(3)

    assert cls(3, note="").path == [1, 2]


def test_a_default_unknown_to_the_client_is_left_to_the_server():
    made = class_for(Move, "action")(3, note="")

    sent = MSGPACK.decode(MSGPACK.encode(made))

    assert "name" not in sent
    assert made.name is None
    assert len(spec_from_hint(Move).check(sent).name) == 32


def test_the_same_schema_gives_the_same_class():
    nested = class_for(Seen, "observation")
    schema = schema_of(spec_from_hint(Seen))

    assert class_for(Seen, "observation") is nested
    assert spec_of(JSON.decode(JSON.encode(schema)), "observation").cls is nested  # type: ignore[attr-defined]
    assert class_for(Move, "action") is not class_for(Move)


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]
)
def test_instances_are_copied_and_pickled(again: Any):
    spec = spec_of(schema_of(spec_from_hint(Seen)), "observation")
    made = spec.check({"tree": {"value": 1, "left": {"value": 2}}, "reward": 1.0})

    twin = again(made)

    assert twin == made
    assert twin is not made
    assert type(twin.tree) is type(twin.tree.left) is type(made.tree)


@pytest.mark.parametrize(
    ("role", "base"), [("action", Action), ("observation", Observation), ("state", State)]
)
def test_envweaves_own_classes_are_kept(role: str, base: type):
    assert class_for(base, role) is base


def test_a_class_without_the_fields_of_a_base_does_not_derive_from_it():
    @dataclass
    class Bare:
        x: int

    made = class_for(Bare, "observation")(x=1)

    assert not isinstance(made, Observation)


@pytest.mark.parametrize(
    "name", ["class", "a b", "__init__", "__class__", "a=print(1)", "", "1a", "ﬁ", "a\0", "x: int"]
)
def test_names_that_python_would_run_never_reach_it(name: str):
    schema = {"title": "Trap", "type": "object", "properties": {name: {"type": "integer"}}}

    spec = spec_of(schema)

    assert isinstance(spec, DictSpec)
    assert spec.contains({name: 1})


@pytest.mark.parametrize("title", ["class", "a b", "x(object): pass\nimport os", "", "None"])
def test_an_invalid_class_name_in_a_title_is_not_used(title: str):
    schema = {"title": title, "type": "object", "properties": {"x": {"type": "integer"}}}

    spec = spec_of(schema)

    assert isinstance(spec, DataclassSpec)
    assert spec.cls.__name__ == "Record"


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "unheard of"},
        {"type": 5},
        {"enum": []},
        {"enum": 5},
        {"anyOf": 5},
        {"$ref": "https://example.org/schema"},
        {"$ref": 5},
        {"$ref": "#/$defs/missing", "$defs": {}},
        {"type": "integer", "minimum": 5, "maximum": 1},
        {"type": "number", "minimum": float("nan")},
        {"x-array": 5},
        {"x-array": {"dtype": "object"}},
        {"x-array": {"dtype": ["float32"]}},
        {"x-array": {"shape": [2**40, 2**40]}},
        {"x-array": {"shape": [-1]}},
        {"x-array": {"shape": [2], "dtype": "float32", "low": [[1], [2, 3]]}},
        {"x-array": {"shape": [2], "dtype": "int8", "low": [1, 2, 3]}},
        {"x-array": {"shape": [2], "dtype": "int8", "low": 2**70}},
        {"x-space": {"kind": "text", "min_length": 5, "max_length": 1, "charset": "a"}},
        {"x-space": {"kind": "text", "min_length": -5, "max_length": 1, "charset": "a"}},
        {"x-space": {"kind": "one_of", "options": []}},
        {"type": "object", "properties": {1: {}}},
        {"$ref": "#/$defs/a", "$defs": {"a": 5}},
    ],
    ids=repr,
)
def test_a_schema_that_means_nothing_takes_anything(schema: dict[str, Any]):
    assert isinstance(spec_of(schema), AnySpec)


def test_a_schema_that_is_only_itself_never_ends_and_never_hangs():
    spec = spec_of({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})

    assert isinstance(spec, Spec)
    assert not spec.contains(5)


def deep(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def wide() -> dict[str, Any]:
    return {"type": "object", "properties": {f"x{i}": {} for i in range(30_000)}}


@pytest.mark.parametrize("schema", [deep(80), wide()], ids=["deep", "wide"])
def test_a_schema_beyond_the_limits_is_refused(schema: dict[str, Any]):
    with pytest.raises(WireError, match=r"too deep|too large"):
        spec_of(schema)


def test_references_that_double_at_every_turn_are_read_once_each():
    definitions = {
        f"a{i}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/a{i + 1}"}] * 2}
        for i in range(20)
    }

    spec = spec_of({"$ref": "#/$defs/a0", "$defs": definitions})

    assert not spec.contains([1])


@pytest.mark.parametrize("schema", [None, 5, [], "object"])
def test_an_invalid_schema_is_refused(schema: Any):
    with pytest.raises(WireError, match="A schema must be a dict"):
        spec_of(schema)


def description(**changes: Any) -> Description:
    fields: dict[str, Any] = {
        "name": "X",
        "env_id": "x-v0",
        "version": "1",
        "action": schema_of(spec_from_hint(Move)),
        "observation": schema_of(spec_from_hint(Seen)),
        "state": schema_of(spec_from_hint(State)),
        "reset_takes": ["seed", "nonsense"],
    }
    return Description(**{**fields, **changes})


def test_a_caller_without_the_authors_classes_gets_some_with_the_same_fields():
    rebuilt = Rebuilt(description())

    seen = rebuilt.rebuild({"tree": {"value": 1, "left": None}, "reward": 2.0})

    assert isinstance(seen, Observation)
    assert (seen.tree.value, seen.reward, seen.done, seen.metadata) == (1, 2.0, False, {})
    assert rebuilt.rebuild_state({"episode_id": "e", "step_count": 3}) == State(
        episode_id="e", step_count=3
    )
    assert rebuilt.interface.reset_takes == {"seed"}


def test_a_caller_with_the_authors_classes_gets_those():
    rebuilt = Rebuilt(description(), Types(action=Move, observation=Seen))

    seen = rebuilt.rebuild({"tree": {"value": 1, "left": {"value": 2, "left": None}}})

    assert seen == Seen(tree=Tree(1, Tree(2)))
    assert rebuilt.interface.action_spec.check({"dx": 1, "note": ""}).speed == 1.5
    assert type(rebuilt.interface.action_spec.check({"dx": 1, "note": ""})) is Move


def test_several_agents_have_a_spec_and_an_observation_each():
    several = {"type": "object", "properties": {"x": {"type": "integer"}, "o": {"type": "string"}}}
    described = description(action=several, observation=several, possible_agents=["x", "o"])

    rebuilt = Rebuilt(described, Types(observation=Seen))

    tree = {"tree": {"value": 1, "left": None}}
    assert rebuilt.rebuild({"x": tree, "o": tree}) == {
        "x": Seen(tree=Tree(1)),
        "o": Seen(tree=Tree(1)),
    }
    assert rebuilt.rebuild.one("o", tree) == Seen(tree=Tree(1))
    assert rebuilt.interface.action_spec.check({"x": 1, "o": "a"}) == {"x": 1, "o": "a"}


@pytest.mark.parametrize(
    "changes",
    [
        {"possible_agents": ["x", "x"]},
        {"possible_agents": ["x"]},
        {"possible_agents": ["x"], "action": {"properties": {"x": 5}}},
    ],
)
def test_a_description_without_one_of_its_agents_is_refused(changes: dict[str, Any]):
    with pytest.raises(WireError, match="The server's description"):
        Rebuilt(description(**changes))


def test_the_authors_own_objects_are_taken_too():
    rebuilt = Rebuilt(description(action=schema_of(spec_from_hint(Paint))))

    sent = rebuilt.interface.action_spec.check(Paint(Colour.RED, Tree(1, Tree(2))))

    assert MSGPACK.decode(MSGPACK.encode(sent)) == {
        "colour": "red",
        "tree": {"value": 1, "left": {"value": 2, "left": None}},
        "metadata": {},
    }


@pytest.mark.parametrize("action", [Tree(1), Move(1, note=""), 5])
def test_an_object_of_another_class_is_refused(action: Any):
    rebuilt = Rebuilt(description(action=schema_of(spec_from_hint(Paint))))

    with pytest.raises(SpecError, match="is neither Paint nor a dict of its fields"):
        rebuilt.interface.action_spec.check(action, "action")


def test_own_fields_are_distinguished_from_inherited_ones():
    names = [one.name for one in dataclasses.fields(class_for(Move, "action"))]

    assert sorted(names) == sorted(one.name for one in dataclasses.fields(Move))
    assert np.array_equal(np.array(names[:1]), ["metadata"])


class HasState(ew.Environment):
    def reset(self) -> Seen:
        return Seen(tree=Tree(0))

    def step(self, action: Move) -> Seen:
        return Seen(tree=Tree(action.dx))

    @property
    def state(self) -> Progress:
        return Progress(far=1)


@dataclass
class Progress(State):
    far: int = 0


class HasNone(HasState):
    state = property(lambda self: {"far": 1})  # type: ignore[assignment]


def test_the_state_has_the_type_of_its_hint():
    schema = schema_of(state_spec(HasState()))

    arrived = Rebuilt(description(state=schema)).rebuild_state(
        {"far": 2, "episode_id": "e", "step_count": 1}
    )

    assert isinstance(arrived, State)
    assert (type(arrived).__name__, arrived.far, arrived.episode_id) == ("Progress", 2, "e")
    assert schema_of(state_spec(HasNone())) == schema_of(spec_from_hint(State))

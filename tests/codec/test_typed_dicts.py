"""`TypedDict` hints: known keys, some of which may be left out; plain dicts come back."""

from __future__ import annotations

from typing import Any, Generic, NotRequired, Required, TypedDict, TypeVar

import numpy as np
import pytest
import typing_extensions

from envweave.codec import spec_from_hint
from envweave.errors import SpecError
from envweave.wire.schema_read import spec_of
from envweave.wire.schema_write import schema_of

T = TypeVar("T")


class Plain(TypedDict):
    x: int
    y: NotRequired[str]


class Partial(TypedDict, total=False):
    x: Required[int]
    y: str


class Inherited(Partial):
    z: bool


class Extended(typing_extensions.TypedDict):
    x: typing_extensions.ReadOnly[int]
    y: NotRequired[typing_extensions.ReadOnly[str]]


class Boxed(TypedDict, Generic[T]):
    inside: T


class Tree(TypedDict):
    name: str
    kids: list[Tree]


class Jump(TypedDict):
    height: int


class Say(TypedDict):
    words: str
    loudly: NotRequired[bool]


@pytest.mark.parametrize("hint", [Plain, Partial, Extended])
def test_keys_are_checked_one_by_one(hint: Any) -> None:
    spec = spec_from_hint(hint)

    assert spec.check({"x": 1, "y": "a"}) == {"x": 1, "y": "a"}
    assert spec.check({"x": 1}) == {"x": 1}
    for value, words in [
        ({}, r"^value\['x'\]: this key is missing"),
        ({"x": "a"}, r"^value\['x'\]: 'a' is not an int"),
        ({"x": 1, "yy": ""}, r"^value\['yy'\]: unknown key\. Did you mean 'y'\?"),
        ({"x": 1, "other": ""}, r"^value\['other'\]: unknown key\. Known: x, y\."),
        (3, r"^value: 3 is not a dict"),
    ]:
        with pytest.raises(SpecError, match=words):
            spec.check(value)


@pytest.mark.parametrize("hint", [Plain, Partial, Inherited, Extended, Boxed[int], Tree])
def test_samples_fit_and_the_other_end_takes_the_same(hint: Any) -> None:
    spec = spec_from_hint(hint)
    there = spec_of(schema_of(spec))
    rng = np.random.default_rng(0)

    for _ in range(20):
        drawn = spec.sample(rng)

        assert type(drawn) is dict
        assert spec.contains(drawn)
        assert there.contains(drawn)


def test_the_keys_of_a_base_are_needed_too() -> None:
    spec = spec_from_hint(Inherited)

    assert spec.json_schema()["required"] == ["x", "z"]
    assert not spec.contains({"x": 1})


def test_a_generic_one_checks_what_it_is_filled_with() -> None:
    spec = spec_from_hint(Boxed[int])

    assert spec.contains({"inside": 1})
    assert not spec.contains({"inside": "a"})


def test_one_within_itself_is_checked_all_the_way_down() -> None:
    spec = spec_from_hint(Tree)
    tree = {"name": "a", "kids": [{"name": "b", "kids": []}]}

    assert spec.check(tree) == tree
    assert spec_of(schema_of(spec)).contains(tree)
    with pytest.raises(SpecError, match=r"^value\['kids'\]\[0\]\['kid'\]"):
        spec.check({"name": "a", "kids": [{"name": "b", "kid": []}]})


def test_the_likeliest_member_of_a_union_gives_the_error() -> None:
    spec = spec_from_hint(Jump | Say)

    assert spec.check({"words": "hello"}) == {"words": "hello"}
    with pytest.raises(SpecError, match=r"^value\['wrods'\]: unknown key. Did you mean 'words'"):
        spec.check({"wrods": "hello", "loudly": True})

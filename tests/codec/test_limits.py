"""What the marks of `Annotated` limit is checked, sampled and described; or refused at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import annotated_types as at
import msgspec
import numpy as np
import pydantic
import pytest
from gymnasium import spaces

import envweave as ew
from envweave.codec import spec_from_hint
from envweave.codec.strings import Pattern
from envweave.errors import ActionError, DefinitionError, SpecError
from envweave.wire.schema_read import spec_of
from envweave.wire.schema_write import schema_of

Meta = msgspec.Meta

# A hint, values that fit, values that don't, and what the JSON Schema says of it.
LIMITS: list[Any] = [
    (Annotated[str, Meta(min_length=2)], ["ab"], ["", "a"], {"minLength": 2}),
    (Annotated[str, Meta(max_length=3)], ["", "abc"], ["abcd"], {"maxLength": 3}),
    (
        Annotated[str, Meta(min_length=1, max_length=2)],
        ["a", "ab"],
        ["", "abc"],
        {"minLength": 1, "maxLength": 2},
    ),
    (
        Annotated[str, Meta(pattern="^[a-h][1-8]$")],
        ["e4"],
        ["e9", "", "e44"],
        {"pattern": "^[a-h][1-8]$"},
    ),
    (Annotated[str, Meta(pattern="b+")], ["abc"], ["ac"], {"pattern": "b+"}),
    (Annotated[bytes, Meta(min_length=2, max_length=2)], [b"ab"], [b"a", b"abc"], {}),
    (
        Annotated[list[int], Meta(min_length=1, max_length=2)],
        [[1], [1, 2]],
        [[], [1, 2, 3]],
        {"minItems": 1, "maxItems": 2},
    ),
    (Annotated[set[int], Meta(min_length=3)], [{1, 2, 3}], [{1, 2}], {"minItems": 3}),
    (Annotated[tuple[int, ...], Meta(max_length=1)], [(), (1,)], [(1, 2)], {"maxItems": 1}),
    (
        Annotated[dict[str, int], Meta(min_length=2, max_length=2)],
        [{"a": 1, "b": 2}],
        [{}, {"a": 1}],
        {"minProperties": 2, "maxProperties": 2},
    ),
    (Annotated[int, Meta(multiple_of=5)], [0, -5, 10], [1, 7], {"multipleOf": 5}),
    (Annotated[int, Meta(ge=1, le=9, multiple_of=4)], [4, 8], [0, 5, 12], {"multipleOf": 4}),
    (Annotated[float, Meta(multiple_of=0.1)], [0.3, 1, -0.7], [0.25], {"multipleOf": 0.1}),
    (Annotated[str, at.Len(1, 3)], ["a"], ["", "abcd"], {"minLength": 1, "maxLength": 3}),
    (Annotated[list[str], at.MinLen(1)], [["a"]], [[]], {"minItems": 1}),
    (Annotated[int, at.Interval(gt=0, le=3)], [1, 3], [0, 4], {"minimum": 1, "maximum": 3}),
    (Annotated[int, at.MultipleOf(3)], [3], [4], {"multipleOf": 3}),
    (
        Annotated[str, pydantic.Field(min_length=1, pattern="^a")],
        ["a"],
        ["", "b"],
        {"minLength": 1, "pattern": "^a"},
    ),
    (
        Annotated[str, pydantic.StringConstraints(max_length=2)],
        ["ab"],
        ["abc"],
        {"maxLength": 2},
    ),
]


@pytest.mark.parametrize(("hint", "fitting", "others", "schema"), LIMITS)
def test_a_limit_is_checked_described_and_kept_by_samples(
    hint: Any, fitting: list[Any], others: list[Any], schema: dict[str, Any]
) -> None:
    spec = spec_from_hint(hint)

    assert all(map(spec.contains, fitting))
    assert not any(map(spec.contains, others))
    assert schema.items() <= spec.json_schema().items()
    rng = np.random.default_rng(0)
    assert all(spec.contains(spec.sample(rng)) for _ in range(200))


@pytest.mark.parametrize(("hint", "fitting", "others", "schema"), LIMITS)
def test_a_limit_is_the_same_at_the_other_end_of_the_wire(
    hint: Any, fitting: list[Any], others: list[Any], schema: dict[str, Any]
) -> None:
    here = spec_from_hint(hint)

    there = spec_of(schema_of(here))

    assert all(map(there.contains, fitting))
    assert not any(map(there.contains, others))
    rng = np.random.default_rng(0)
    assert all(here.contains(there.sample(rng)) for _ in range(100))


@pytest.mark.parametrize("pattern", ["(?:){4000000000}", "(?:(?:){60000}){60000}"])
def test_a_pattern_that_repeats_nothing_without_end_is_not_drawn(pattern: str) -> None:
    assert not Pattern(pattern).can_sample


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"^\d{3}-\d{4}$", "phone"),
        (r"^\w+(\.\w+)*@\w+\.(com|org)$", "mail"),
        (r"^[^\d\s]{2,4}$", "no digits"),
        (r"^(?P<a>[ab])(?P=a)$", "the same twice"),
        (r"^(?:north|south|east|west)( [1-9])?$", "directions"),
        (r"(?i)^GO$", "any case"),
        (r"^.{5}$", "anything"),
        (r"^[+-]?\d+(\.\d*)?$", "numbers"),
    ],
)
def test_texts_are_drawn_for_the_common_patterns(pattern: str, words: str) -> None:
    spec = spec_from_hint(Annotated[str, Meta(pattern=pattern)])
    rng = np.random.default_rng(1)

    drawn = {spec.sample(rng) for _ in range(50)}

    assert all(re.search(pattern, one) for one in drawn), words


def test_a_pattern_that_cannot_be_drawn_asks_for_examples() -> None:
    spec = spec_from_hint(Annotated[str, Meta(pattern=r"^(?=.*a)(?!b)\w+$")])

    with pytest.raises(SpecError, match=r"examples=\[…\]"):
        spec.sample(np.random.default_rng(0))


def test_examples_are_drawn_where_the_pattern_cannot_be() -> None:
    hint = Annotated[str, Meta(pattern=r"^(?=.*a)\w+$", examples=["cat", "hat", "dog"])]
    spec = spec_from_hint(hint)
    rng = np.random.default_rng(0)

    assert {spec.sample(rng) for _ in range(30)} == {"cat", "hat"}


def test_a_pattern_that_takes_long_is_left_to_the_server() -> None:
    here = spec_from_hint(Annotated[str, Meta(pattern=r"^(\w+ ?)+$")])

    there = spec_of(schema_of(here))

    assert there.contains("a" * 40 + "!")
    assert here.contains(there.sample(np.random.default_rng(0)))


@dataclass
class Say(ew.Action):
    text: Annotated[str, Meta(min_length=1, max_length=5)] = "hi"


class Echo(ew.Environment):
    def reset(self) -> int:
        return 0

    def step(self, action: Say) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return 0, 0.0, False, False, {}


@pytest.mark.parametrize(
    ("pattern", "is_simple"),
    [
        ("^[a-h][1-8]$", True),
        ("^(north|south)( [1-9])?$", True),
        (r"^\w+$", True),
        ("^([a-h][1-8])+$", True),
        (r"(\w+)*$", False),
        ("(a|aa)+$", False),
        (".*.*.*x", False),
        ("(?=a)b", False),
        ("a{0,99}a{0,99}a{0,99}a{0,99}b", False),
    ],
)
def test_a_pattern_is_simple_if_it_is_found_quickly_in_any_text(
    pattern: str, is_simple: bool
) -> None:
    assert Pattern(pattern).is_simple is is_simple


def test_a_broken_limit_is_reported_by_path() -> None:
    with ew.make(Echo) as env:
        env.reset()

        with pytest.raises(
            ActionError, match=r"^action\.text: 'too long' has a length of 8, not b"
        ):
            env.step({"text": "too long"})
        with pytest.raises(ActionError, match=r"^action\.text: .* between 1 and 5"):
            env.step(Say(text=""))


def test_notes_go_into_the_schema_and_limit_nothing() -> None:
    @dataclass
    class Move(ew.Action):
        to: Annotated[int, Meta(ge=0, title="To", description="Where to go", examples=[1, 2])] = 0
        why: Annotated[str, Meta(extra_json_schema={"format": "markdown", "type": "array"})] = ""

    properties = spec_from_hint(Move).json_schema()["properties"]

    assert properties["to"] == {
        "type": "integer",
        "minimum": 0,
        "title": "To",
        "description": "Where to go",
        "examples": [1, 2],
    }
    assert properties["why"] == {"type": "string", "format": "markdown"}


@pytest.mark.parametrize("mark", ["a note", at.doc("a note"), object(), ("a", "b")])
def test_documentation_is_ignored(mark: Any) -> None:
    assert spec_from_hint(Annotated[int, mark]).exact is int


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (Annotated[int, Meta(min_length=2)], "min_length=2 in Annotated does not apply to"),
        (Annotated[str, Meta(ge=2)], "ge=2 in Annotated does not apply to"),
        (Annotated[bool, Meta(gt=0)], "gt=0 in Annotated does not apply"),
        (Annotated[Any, Meta(max_length=2)], "max_length=2 in Annotated does not apply"),
        (Annotated[bytes, Meta(pattern="a")], "pattern='a' in Annotated does not apply"),
        (Annotated[Literal["a"], Meta(min_length=1)], "min_length=1 in Annotated"),
        (Annotated[np.ndarray, Meta(max_length=2)], "max_length=2 in Annotated"),
        (Annotated[tuple[int, int], Meta(max_length=2)], "has a fixed length"),
        (Annotated[int | bool, Meta(max_length=2)], "max_length=2 in Annotated does not apply"),
        (Annotated[str, pydantic.Field(pattern="(")], "is not a regular expression"),
        (Annotated[str, at.Len(3, 2)], "No length is between 3 and 2"),
        (Annotated[int, Meta(ge=1, le=2, multiple_of=5)], "No multiple of 5 is between 1 and 2"),
        (Annotated[float, Meta(gt=0, lt=0.1, multiple_of=0.2)], "No multiple of 0.2"),
        (Annotated[int, at.Predicate(bool)], "raise ActionError there"),
        (Annotated[int, pydantic.AfterValidator(abs)], "raise ActionError there"),
        (Annotated[int, at.Timezone(None)], "Annotated"),
        (Annotated[int, 5], r"5 in Annotated is not a limit. Write Bounds\(low, high\)"),
        (Annotated[int, range(5)], "is not a limit"),
        (Annotated[str, Meta(pattern="a"), Meta(pattern="b")], "pattern is given twice"),
    ],
)
def test_an_unsupported_limit_is_refused_when_the_environment_is_made(
    hint: Any, words: str
) -> None:
    class Limited(ew.Environment):
        def reset(self) -> int:
            return 0

        def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
            return 0, 0.0, False, False, {}

    Limited.step.__annotations__["action"] = hint

    with pytest.raises(DefinitionError, match=words):
        ew.make(Limited)


def test_limits_around_a_union_are_those_of_the_options_they_fit() -> None:
    spec = spec_from_hint(Annotated[int | str | None, Meta(ge=0), Meta(max_length=2)])

    assert all(map(spec.contains, [0, "ab", None]))
    assert not any(map(spec.contains, [-1, "abc"]))


def test_a_space_keeps_the_limits() -> None:
    @dataclass
    class Say(ew.Action):
        word: Annotated[str, Meta(pattern="^[ab]{2}$")] = "aa"
        even: Annotated[int, Meta(ge=0, le=8, multiple_of=2)] = 0
        few: Annotated[list[int], Meta(min_length=1, max_length=2)] = (1,)  # type: ignore[assignment]

    spec = spec_from_hint(Say)
    space = spec.to_space()
    space.seed(3)

    assert space["even"] == spaces.Discrete(5)
    for _ in range(50):
        drawn = space.sample()
        assert spec_from_hint(Annotated[str, Meta(pattern="^[ab]{2}$")]).contains(drawn["word"])
        assert 1 <= len(drawn["few"]) <= 2
    assert not space["word"].contains("abc")
    assert not space["few"].contains(())

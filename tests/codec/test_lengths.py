"""Texts and lists of limited length, and texts that match a pattern or have a format."""

from __future__ import annotations

import datetime
import pickle
import re
import uuid

import numpy as np
import pytest

from envweave.codec.branches import Listing
from envweave.codec.leaves import Boolean, Instance, Text
from envweave.codec.spec import Spec
from envweave.codec.texts import can_draw
from envweave.errors import DefinitionError, SpecError

PATTERNS = [
    r"^[A-Z]{2}-\d{2}$",
    r"^[a-h][1-8](q|r|b|n)?$",
    r"[^a-z]+x",
    r"\w+@\w+\.com",
    r"(?:ab|cd){2,3}",
    r"^\S+\s\D\W$",
    r"é|ü",
    r".[^b]",
]
LIMITED = [
    Text(min_length=3),
    Text(max_length=2),
    Text(min_length=20, max_length=25),
    Text(binary=True, min_length=2, max_length=2),
    Text(pattern="^a+$", max_length=3),
    Listing(Text(), min_length=2),
    Listing(Text(), max_length=1),
    Listing(Text(), kind=set, min_length=3, max_length=3),
    *(Text(pattern=pattern) for pattern in PATTERNS),
]


@pytest.mark.parametrize("spec", LIMITED, ids=repr)
def test_every_sample_fits_here_and_elsewhere(spec: Spec) -> None:
    rng = np.random.default_rng(0)
    elsewhere = pickle.loads(pickle.dumps(spec))

    drawn = [spec.sample(rng) for _ in range(50)]

    assert all(elsewhere.contains(one) for one in drawn)


@pytest.mark.parametrize(
    ("spec", "value", "message"),
    [
        (Text(min_length=3), "ab", "'ab' is shorter than 3"),
        (Text(max_length=1), "ab", "'ab' is longer than 1"),
        (Text(pattern="^a"), "ba", r"'ba' does not match the pattern '\^a'"),
        (Listing(Text(), min_length=1), [], r"\[\] has fewer than 1 items"),
        (Listing(Text(), max_length=1), ["a", "b"], "has more than 1 items"),
    ],
)
def test_what_is_too_short_too_long_or_of_another_form_is_refused(
    spec: Spec, value: object, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        spec.check(value)


def test_a_format_is_drawn_and_described_and_not_checked() -> None:
    rng = np.random.default_rng(0)

    datetime.date.fromisoformat(Text(format="date").sample(rng))
    datetime.datetime.fromisoformat(Text(format="date-time").sample(rng))
    uuid.UUID(Text(format="uuid").sample(rng))

    assert Text(format="date").contains("some day")
    assert Text(format="date").json_schema() == {"type": "string", "format": "date"}
    assert not Text(format="of their own").can_sample


def test_a_pattern_of_an_author_elsewhere_is_drawn_and_not_checked() -> None:
    spec = Text(pattern="^(a+)+$", stands_in=True)

    assert spec.contains("a" * 50 + "b")
    assert re.search("^(a+)+$", spec.sample(np.random.default_rng(0)))


@pytest.mark.parametrize(
    "pattern", ["(a{9999}){9999}", "((){9999}){9999}", "(?=a)b", r"(a)\1", "("]
)
def test_a_pattern_that_asks_too_much_is_not_drawn(pattern: str) -> None:
    assert not can_draw(pattern)


def test_limits_that_nothing_fits_are_refused() -> None:
    with pytest.raises(DefinitionError):
        Text(min_length=3, max_length=2)
    with pytest.raises(DefinitionError, match="is not a pattern"):
        Text(pattern="(")
    with pytest.raises(SpecError, match="3 different items"):
        Listing(Boolean(), kind=set, min_length=3).sample(np.random.default_rng(0))


def test_a_list_that_needs_items_that_cannot_be_drawn_cannot_be_drawn() -> None:
    assert Listing(Instance(datetime.date)).can_sample
    assert not Listing(Instance(datetime.date), min_length=1).can_sample

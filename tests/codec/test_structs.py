"""`msgspec.Struct` hints: instances and dicts, tagged or not."""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np
import pytest
from environments.typed import Close, Open, Structs
from servers import served

import envweave as ew
from envweave.codec import spec_from_hint
from envweave.errors import ActionError, SpecError
from envweave.wire.schema_read import spec_of
from envweave.wire.schema_write import schema_of


class Plain(msgspec.Struct, frozen=True, rename="camel"):
    how_many: Annotated[int, msgspec.Meta(ge=0)]
    note: str = "x"


class Tree(msgspec.Struct):
    name: str
    kids: list[Tree] = []


def test_a_dict_becomes_the_struct_and_an_instance_is_checked_by_field() -> None:
    spec = spec_from_hint(Plain)

    assert spec.check({"how_many": 2}) == Plain(2)
    assert spec.check({"howMany": 2, "note": "y"}) == Plain(2, "y")
    assert spec.check(Plain(np.int64(2))) == Plain(2)  # type: ignore[arg-type]
    for value, words in [
        ({}, r"^value\.how_many: this field is missing"),
        ({"how_many": -1}, r"^value\.how_many: -1 is not at least 0"),
        (Plain(-1), r"^value\.how_many: -1 is not at least 0"),
        ({"how_many": 1, "noet": "y"}, r"^value\.noet: unknown field\. Did you mean 'note'\?"),
        (3, r"^value: int 3 is neither Plain nor a dict of its fields"),
    ]:
        with pytest.raises(SpecError, match=words):
            spec.check(value)


def test_a_tag_selects_the_member_of_a_union() -> None:
    spec = spec_from_hint(Open | Close)

    assert spec.check({"type": "close", "door": 2}) == Close(2)
    assert spec.check({"type": "open", "door": 2}) == Open(2)
    with pytest.raises(SpecError, match=r"^value\.door: 9 is not between 1 and 3"):
        spec.check({"type": "open", "door": 9})


def test_one_within_itself_is_checked_all_the_way_down() -> None:
    spec = spec_from_hint(Tree)

    assert spec.check({"name": "a", "kids": [{"name": "b"}]}) == Tree("a", [Tree("b")])
    assert not spec.contains({"name": "a", "kids": [{"nam": "b"}]})


def test_samples_fit_here_and_at_the_other_end() -> None:
    spec = spec_from_hint(Open | Close)
    there = spec_of(schema_of(spec))
    rng = np.random.default_rng(0)

    assert {type(spec.sample(rng)) for _ in range(50)} == {Open, Close}
    for _ in range(50):
        assert spec.contains(msgspec.to_builtins(there.sample(rng)))


def test_structs_are_taken_at_a_server_as_they_are_here() -> None:
    with served(Structs) as url, ew.make(url) as far, ew.make(Structs, base_url=url) as typed:
        for env, action in [(far, {"type": "open", "door": 2}), (typed, Open(2))]:
            env.reset()

            assert env.step(action).observation == "Open"
            with pytest.raises(ActionError, match=r"^action\.door"):
                env.step({"type": "open", "door": 4})
            assert env.step({"type": "close"}).observation == "Close"

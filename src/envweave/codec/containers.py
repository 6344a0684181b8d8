"""Specs made of specs: lists, sets, tuples, dicts and unions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np

from envweave.codec.pydantic_models import PydanticSpec as PydanticSpec
from envweave.codec.pydantic_models import carries_outcome
from envweave.codec.records import DataclassSpec as DataclassSpec
from envweave.codec.records import RecursiveSpec as RecursiveSpec
from envweave.codec.records import StructSpec
from envweave.codec.scalars import EnumSpec, FloatSpec, InstanceSpec, IntSpec, StrSpec
from envweave.codec.spec import (
    ANY_LENGTH,
    AgentsSpec,
    AnySpec,
    Length,
    Mismatch,
    Spec,
    described,
    gathered,
    short_repr,
)
from envweave.errors import SpecError, suggest
from envweave.types import Action, Observation

_ATTEMPTS = 100


@final
class ListSpec(Spec):
    """A list, set or tuple of any length whose items all have one spec."""

    def __init__(self, item: Spec, *, kind: type = list, length: Length = ANY_LENGTH) -> None:
        self.item = item
        self.kind = kind
        self.length = length
        self._is_set = kind in (set, frozenset)
        self.can_sample = item.can_sample or length.low == 0

    def read(self, value: Any) -> Any:
        """Take a list, a tuple or an array of at least one dimension; for a set, a set too."""
        if self._is_set and isinstance(value, set | frozenset):
            items: Sequence[Any] | None = list(value)
        else:
            items = _sequence(value)
        if items is None:
            raise Mismatch(f"{short_repr(value)} is not a {self.kind.__name__}")
        if not self.length.is_open:
            self.length.check(items)
        if type(value) is self.kind and set(map(type, items)) == {self.item.exact}:
            return value
        read = _read_each(items, [self.item] * len(items))
        if type(value) is self.kind and all(map(_same, read, items)):
            return value
        if self._is_set:
            return self._unique(read)
        return self.kind(read)

    def _unique(self, items: list[Any]) -> Any:
        try:
            unique = self.kind(items)
        except TypeError as error:
            raise Mismatch(
                f"{short_repr(items)} cannot be a {self.kind.__name__}: {error}"
            ) from None
        if len(unique) != len(items):
            raise Mismatch(f"{short_repr(items)} is not a {self.kind.__name__}: it has duplicates")
        return unique

    def sample(self, rng: np.random.Generator) -> Any:
        """Draw up to four items, or the minimum; if the items cannot be drawn, none.

        Raises:
            SpecError: A set needs more different items than could be drawn.
        """
        count = self.length.draw(rng, 4) if self.item.can_sample else self.length.low
        items = [self.item.sample(rng) for _ in range(count)]
        if not self._is_set:
            return self.kind(items)
        different = self.kind(items)
        for _ in range(_ATTEMPTS):
            if len(different) >= self.length.low:
                return different
            different = different | {self.item.sample(rng)}
        raise SpecError(f"{self.length.low} different items could not be drawn for {self!r}.")

    def json_schema(self) -> dict[str, Any]:
        """Describe an array."""
        unique = {"uniqueItems": True} if self._is_set else {}
        lengths = self.length.schema("minItems", "maxItems")
        return gathered({"type": "array", "items": described(self.item), **unique, **lengths})

    def __repr__(self) -> str:
        length = "" if self.length.is_open else f", length={self.length}"
        return f"ListSpec({self.item!r}, kind={self.kind.__name__}{length})"


@final
class TupleSpec(Spec):
    """A tuple of fixed length with one spec per item.

    With `names` the items have names, as in a `NamedTuple`, which `make` builds from them.
    """

    def __init__(
        self,
        items: Iterable[Spec],
        *,
        names: Sequence[str] = (),
        optional: Mapping[str, Any] | None = None,
        make: Callable[[list[Any]], Any] = tuple,
        kind: type = tuple,
    ) -> None:
        self.items = list(items)
        self.kind = kind
        self.names = tuple(names)
        self.optional = dict(optional or {})
        self.make = make
        self.can_sample = all(item.can_sample for item in self.items)

    def read(self, value: Any) -> Any:
        """Take a tuple, a list or an array of that length; with names also a dict."""
        if self.names and isinstance(value, Mapping):
            items: Sequence[Any] | None = self._by_name(value)
        else:
            items = _sequence(value)
        if items is None or len(items) != len(self.items):
            raise Mismatch(
                f"{short_repr(value)} is not a {self.kind.__name__} of {len(self.items)}"
            )
        read = _read_each(items, self.items, self.names)
        if type(value) is self.kind and all(map(_same, read, items)):
            return value
        return self.make(read)

    def _by_name(self, value: Mapping[Any, Any]) -> list[Any]:
        given = {**self.optional, **value}
        for name in value:
            if name not in self.names:
                hint = suggest(str(name), self.names) or f" Known: {', '.join(self.names)}."
                raise Mismatch(f"unknown field.{hint}").under(f".{name}")
        for name in self.names:
            if name not in given:
                raise Mismatch("this field is missing").under(f".{name}")
        return [given[name] for name in self.names]

    def sample(self, rng: np.random.Generator) -> Any:
        """Draw each item."""
        return self.make([item.sample(rng) for item in self.items])

    def json_schema(self) -> dict[str, Any]:
        """Describe an array of that length."""
        items = [described(item) for item in self.items]
        if not items:
            return {"type": "array", "maxItems": 0}
        return gathered(
            {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        )

    def __repr__(self) -> str:
        return f"TupleSpec({self.items!r})"


@final
class DictSpec(Spec):
    """A dict. With `fields` its keys are known, and all but the `optional` ones are required."""

    def __init__(
        self,
        item: Spec | None = None,
        fields: Mapping[str, Spec] | None = None,
        *,
        key: Spec | None = None,
        optional: Iterable[str] = (),
        length: Length = ANY_LENGTH,
        definition: str | None = None,
        name: str = "dict",
    ) -> None:
        self.length = length
        self.name = name  # of a `TypedDict`, for messages
        self._definition = definition  # its name in `$defs`, if it is recursive
        self.item = AnySpec() if item is None else item
        self.key = AnySpec() if key is None else key
        self.fields = None if fields is None else dict(fields)
        self.optional = frozenset(optional)
        takes_anything = isinstance(self.item, AnySpec) and isinstance(self.key, AnySpec)
        self.exact = dict if fields is None and takes_anything and length.is_open else None
        self.can_sample = all(
            spec.can_sample for name, spec in (fields or {}).items() if name not in self.optional
        ) and (length.low == 0 or self.item.can_sample)

    def read(self, value: Any) -> dict[Any, Any]:
        """Take a dict."""
        if not isinstance(value, Mapping):
            raise Mismatch(f"{short_repr(value)} is not a dict")
        if self.exact is not None:
            return value if type(value) is dict else dict(value)
        if not self.length.is_open:
            self.length.check(value)
        read = self._read_any(value) if self.fields is None else self._read_known(value)
        if type(value) is dict and value.keys() == read.keys():
            same = all(read[key] is one for key, one in value.items())
            return value if same else read
        return read

    def _read_any(self, value: Mapping[Any, Any]) -> dict[Any, Any]:
        read = {}
        for key, one in value.items():
            try:
                read[self.read_key(key)] = self.item.read(one)
            except Mismatch as mismatch:
                raise mismatch.under(f"[{key!r}]") from None
        return read

    def read_key(self, key: Any) -> Any:
        """Read a key, also a number written as a string; or raise `Mismatch`."""
        try:
            return self.key.read(key)
        except Mismatch as mismatch:
            # JSON keys are strings, so a number may be written as one.
            for number in (int, float) if isinstance(key, str) else ():
                try:
                    return self.key.read(number(key))
                except (Mismatch, ValueError):
                    continue
            raise Mismatch(f"this key does not fit: {mismatch.message}") from None

    def _read_known(self, value: Mapping[Any, Any]) -> dict[Any, Any]:
        assert self.fields is not None
        read = {}
        for key in {**value, **self.fields}:
            if key not in self.fields:
                known = f"Known: {', '.join(self.fields)}." if self.fields else "It has none."
                hint = suggest(str(key), self.fields) or f" {known}"
                raise Mismatch(f"unknown key.{hint}").under(f"[{key!r}]")
            if key in value:
                try:
                    read[key] = self.fields[key].read(value[key])
                except Mismatch as mismatch:
                    raise mismatch.under(f"[{key!r}]") from None
            elif key not in self.optional:
                raise Mismatch("this key is missing").under(f"[{key!r}]")
        return read

    def overlap(self, value: Mapping[Any, Any]) -> int:
        """Return how many keys of a dict are known here."""
        return sum(key in (self.fields or ()) for key in value)

    def sample(self, rng: np.random.Generator) -> dict[str, Any]:
        """Draw the known keys; if none are known, the minimum number of items.

        Raises:
            SpecError: More different keys are needed than could be drawn.
        """
        drawn: dict[str, Any] = {}
        key = StrSpec() if isinstance(self.key, AnySpec) else self.key
        for _ in range(_ATTEMPTS + self.length.low if self.length.low else 0):
            if len(drawn) == self.length.low:
                break
            drawn[key.sample(rng)] = self.item.sample(rng)
        if len(drawn) < self.length.low:
            raise SpecError(f"{self.length.low} different keys could not be drawn for {self!r}.")
        return drawn or {
            key: spec.sample(rng)
            for key, spec in (self.fields or {}).items()
            if spec.can_sample or key not in self.optional
        }

    def json_schema(self) -> dict[str, Any]:
        """Describe an object."""
        if self.fields is None:
            schema = {"type": "object", "additionalProperties": described(self.item)}
            lengths = self.length.schema("minProperties", "maxProperties")
            return gathered({**schema, **_key_schema(self.key), **lengths})
        properties = {key: described(spec) for key, spec in self.fields.items()}
        described_object = gathered(
            {
                "type": "object",
                "properties": properties,
                "required": [key for key in self.fields if key not in self.optional],
                "additionalProperties": False,
            }
        )
        if self._definition is None:
            return described_object
        others = described_object.pop("$defs", {})
        reference = f"#/$defs/{self._definition}"
        return {"$ref": reference, "$defs": {self._definition: described_object, **others}}

    def __repr__(self) -> str:
        return f"DictSpec({self.item!r}, fields={self.fields!r})"


@final
class UnionSpec(Spec):
    """A union: the first option that fits is taken, an int before a float."""

    def __init__(self, options: Iterable[Spec]) -> None:
        # A float takes every int, so an int option after it would never match.
        self.options = sorted(options, key=lambda option: isinstance(option, FloatSpec))
        self._drawn = [option for option in self.options if option.can_sample]
        self.can_sample = bool(self._drawn)

    def read(self, value: Any) -> Any:
        """Take the first option that fits."""
        mismatches = []
        for option in self.options:
            try:
                return option.read(value)
            except Mismatch as mismatch:
                # Its traceback would hold this frame and so the list: a reference cycle per value.
                mismatches.append(mismatch.with_traceback(None))
        raise self._nearest(value, mismatches)

    def _nearest(self, value: Any, mismatches: list[Mismatch]) -> Mismatch:
        """The mismatch of the likeliest option, if one stands out; otherwise all."""
        deeper = [mismatch for mismatch in mismatches if mismatch.path]
        if len(deeper) == 1:
            return deeper[0]
        if isinstance(value, Mapping):
            overlaps = [
                option.overlap(value)
                if isinstance(option, DataclassSpec | DictSpec | PydanticSpec | StructSpec)
                else 0
                for option in self.options
            ]
            if overlaps.count(max(overlaps)) == 1:
                return mismatches[overlaps.index(max(overlaps))]
        reasons = [mismatch.describe("").removeprefix(": ") for mismatch in mismatches]
        return Mismatch("; or ".join(dict.fromkeys(reasons)))

    def sample(self, rng: np.random.Generator) -> Any:
        """Draw one of the options that can be sampled, then a value of it."""
        options = self._drawn or self.options
        return options[int(rng.integers(len(options)))].sample(rng)

    def json_schema(self) -> dict[str, Any]:
        """Describe the options."""
        return gathered({"anyOf": [described(option) for option in self.options]})

    def __repr__(self) -> str:
        return f"UnionSpec({self.options!r})"


def _sequence(value: Any) -> Sequence[Any] | None:
    if isinstance(value, list | tuple):
        return value
    return list(value) if isinstance(value, np.ndarray) and value.ndim > 0 else None


def _read_each(values: Iterable[Any], specs: Iterable[Spec], names: Sequence[str] = ()) -> Any:
    read = []
    for index, (one, spec) in enumerate(zip(values, specs, strict=True)):
        try:
            read.append(spec.read(one))
        except Mismatch as mismatch:
            raise mismatch.under(f".{names[index]}" if names else f"[{index}]") from None
    return read


def _same(one: Any, other: Any) -> bool:
    return one is other


def _key_schema(key: Spec) -> dict[str, Any]:
    if isinstance(key, IntSpec):
        return {"propertyNames": {"pattern": "^-?[0-9]+$"}}
    if isinstance(key, EnumSpec):
        values = key.json_schema()["enum"]
        return {"propertyNames": {"enum": [v if isinstance(v, str) else str(v) for v in values]}}
    return {}


def members_of(spec: Spec) -> dict[str, Spec]:
    """Return the members of a union by name, if at least one has fields; else nothing.

    `None` does not count as a member.
    """
    if not isinstance(spec, UnionSpec):
        return {}
    options = [
        one for one in spec.options if not (isinstance(one, EnumSpec) and one.values == [None])
    ]
    if not any(_has_fields(option) for option in options):
        return {}
    members: dict[str, Spec] = {}
    for option in options:
        name = _name(option)
        members[name if name not in members else f"{name} {len(members) + 1}"] = option
    return members


def can_be_plain(spec: Spec) -> bool:
    """Whether plain data can match. None can where an object of an unknown class is expected."""
    match spec:
        case InstanceSpec():
            return False
        case ListSpec(item=item):
            return can_be_plain(item)
        case TupleSpec(items=items):
            return all(map(can_be_plain, items))
        case DictSpec(fields=None, item=item):
            return can_be_plain(item)
        case DictSpec(fields=fields) if fields is not None:
            needed = [one for name, one in fields.items() if name not in spec.optional]
            return all(map(can_be_plain, needed))
        case UnionSpec(options=options):
            return any(map(can_be_plain, options))
        case DataclassSpec() | PydanticSpec():
            taken = {**spec.fields, **spec.init_only}
            needed = [one for name, one in taken.items() if name not in spec.optional]
            return all(map(can_be_plain, needed))
        case _:
            return True


def _has_fields(spec: Spec) -> bool:
    return isinstance(spec, DataclassSpec | PydanticSpec | StructSpec) or (
        isinstance(spec, DictSpec) and spec.fields is not None
    )


def _name(spec: Spec) -> str:
    if isinstance(spec, DataclassSpec | PydanticSpec | StructSpec):
        return spec.cls.__name__
    return spec.name if isinstance(spec, DictSpec) else type(spec).__name__.lower()


def draw_each_member(spec: Spec, rng: np.random.Generator) -> Iterator[tuple[str, Any]]:
    """Yield a name and a sample for every member of every union in a spec.

    For a spec of several agents it yields nothing; call it for each agent's spec.

    Raises:
        SpecError: A member cannot be drawn.
    """
    if isinstance(spec, AgentsSpec):
        return
    for name, member in members_of(spec).items():
        inside = list(draw_each_member(member, rng))
        yield from [(f"{name}.{part}", value) for part, value in inside] or [
            (name, member.sample(rng))
        ]
    if not isinstance(spec, DataclassSpec | PydanticSpec | StructSpec):
        return
    for field, one in spec.fields.items():
        for name, value in draw_each_member(one, rng):
            drawn = spec.sample(rng)
            plain = {other: getattr(drawn, other) for other in spec.fields}
            yield f"{field}={name}", spec.read({**plain, field: value})


NOT_SHOWN = frozenset({"metadata", "reward", "done", "truncated"})
"""The base fields of `Action` and `Observation`, which are not part of a space."""


def shown_fields(record: DataclassSpec | PydanticSpec) -> dict[str, Spec]:
    """Return the author's own fields of a class, without those of the base classes."""
    if not issubclass(record.cls, Action | Observation) and not carries_outcome(record.cls):
        return dict(record.fields)
    return {name: spec for name, spec in record.fields.items() if name not in NOT_SHOWN}

"""Specs made of specs: records, lists, tuples, dicts and unions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np

from envweave.codec.leaves import Choice, Integer, Real
from envweave.codec.ranges import refuse_empty
from envweave.codec.records import Record as Record
from envweave.codec.records import Recursion as Recursion
from envweave.codec.spec import AnySpec, Mismatch, Spec, gathered, short
from envweave.errors import SpecError, suggest

_ATTEMPTS = 100
_MAX_DRAWN = 1000


@final
class Listing(Spec):
    """A list, every item of one kind; or a tuple or set of such. Without limits, of any length."""

    def __init__(
        self,
        item: Spec,
        *,
        kind: type = list,
        min_length: int = 0,
        max_length: int | None = None,
    ) -> None:
        refuse_empty(min_length, max_length)
        self.item = item
        self.kind = kind
        self.min_length, self.max_length = min_length, max_length
        self._is_set = kind in (set, frozenset)
        self._is_limited = min_length > 0 or max_length is not None
        self.can_sample = min_length == 0 or (item.can_sample and min_length <= _MAX_DRAWN)

    def read(self, value: Any) -> Any:
        """Take a list, a tuple or an array of at least one dimension; for a set, a set too."""
        if self._is_set and isinstance(value, set | frozenset):
            items: Sequence[Any] | None = list(value)
        else:
            items = _sequence(value)
        if items is None:
            raise Mismatch(f"{short(value)} is not a {self.kind.__name__}")
        if len(items) < self.min_length:
            raise Mismatch(f"{short(value)} has fewer than {self.min_length} items")
        if self.max_length is not None and len(items) > self.max_length:
            raise Mismatch(f"{short(value)} has more than {self.max_length} items")
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
            raise Mismatch(f"{short(items)} cannot be a {self.kind.__name__}: {error}") from None
        if len(unique) != len(items):
            raise Mismatch(f"{short(items)} is not a {self.kind.__name__}: an item comes twice")
        return unique

    def sample(self, rng: np.random.Generator) -> Any:
        """Draw up to four items, or as many as are needed; of what cannot be drawn, none.

        Raises:
            SpecError: There are not as many different ones as a set needs.
        """
        low, high = self.min_length, self.min_length + 4
        if not self.item.can_sample:
            high = low  # refused by the item, if there must be some
        elif self.max_length is not None:
            high = min(high, self.max_length)
        drawn = self.kind([self.item.sample(rng) for _ in range(int(rng.integers(low, high + 1)))])
        for _ in range(_ATTEMPTS):  # the items of a set may be the same
            if len(drawn) >= low:
                return drawn
            drawn = self.kind([*drawn, self.item.sample(rng)])
        raise SpecError(f"{self!r} needs {low} different items, and {len(drawn)} were drawn.")

    def json_schema(self) -> dict[str, Any]:
        """Describe an array."""
        schema: dict[str, Any] = {"type": "array", "items": self.item.json_schema()}
        if self._is_set:
            schema["uniqueItems"] = True
        if self.min_length:
            schema["minItems"] = self.min_length
        if self.max_length is not None:
            schema["maxItems"] = self.max_length
        return gathered(schema)

    def __repr__(self) -> str:
        limits = f", {self.min_length} to {self.max_length}" if self._is_limited else ""
        return f"Listing({self.item!r}, kind={self.kind.__name__}{limits})"


@final
class Fixed(Spec):
    """A tuple of fixed length, each place with a spec of its own.

    With `names` the places have names, as in a `NamedTuple`, which `make` makes from the items.
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
        """Take a tuple, a list or an array of that length; with names a dict of them, too."""
        if self.names and isinstance(value, Mapping):
            items: Sequence[Any] | None = self._by_name(value)
        else:
            items = _sequence(value)
        if items is None or len(items) != len(self.items):
            raise Mismatch(f"{short(value)} is not a {self.kind.__name__} of {len(self.items)}")
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
        """Draw each place."""
        return self.make([item.sample(rng) for item in self.items])

    def json_schema(self) -> dict[str, Any]:
        """Describe an array of that length."""
        items = [item.json_schema() for item in self.items]
        if not items:
            return {"type": "array", "maxItems": 0}
        return gathered(
            {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        )

    def __repr__(self) -> str:
        return f"Fixed({self.items!r})"


@final
class Dictionary(Spec):
    """A dict. With `fields` its keys are known, and all but the `optional` ones are needed."""

    def __init__(
        self,
        item: Spec | None = None,
        fields: Mapping[str, Spec] | None = None,
        *,
        key: Spec | None = None,
        optional: Iterable[str] = (),
    ) -> None:
        self.item = AnySpec() if item is None else item
        self.key = AnySpec() if key is None else key
        self.fields = None if fields is None else dict(fields)
        self.optional = frozenset(optional)
        takes_anything = isinstance(self.item, AnySpec) and isinstance(self.key, AnySpec)
        self.exact = dict if fields is None and takes_anything else None
        self.can_sample = all(
            spec.can_sample for name, spec in (fields or {}).items() if name not in self.optional
        )

    def read(self, value: Any) -> dict[Any, Any]:
        """Take a dict."""
        if not isinstance(value, Mapping):
            raise Mismatch(f"{short(value)} is not a dict")
        if self.exact is not None:
            return value if type(value) is dict else dict(value)
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
        """Take what its keys may be, or a number as a text; or raise `Mismatch`."""
        try:
            return self.key.read(key)
        except Mismatch as mismatch:
            # JSON has only texts as keys, so that a number may stand there as one.
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
                hint = suggest(str(key), self.fields)
                raise Mismatch(f"unknown key.{hint}").under(f"[{key!r}]")
            if key in value:
                try:
                    read[key] = self.fields[key].read(value[key])
                except Mismatch as mismatch:
                    raise mismatch.under(f"[{key!r}]") from None
            elif key not in self.optional:
                raise Mismatch("this key is missing").under(f"[{key!r}]")
        return read

    def sample(self, rng: np.random.Generator) -> dict[str, Any]:
        """Draw the known keys; where none is known, an empty dict."""
        return {
            key: spec.sample(rng)
            for key, spec in (self.fields or {}).items()
            if spec.can_sample or key not in self.optional
        }

    def json_schema(self) -> dict[str, Any]:
        """Describe an object."""
        if self.fields is None:
            schema = {"type": "object", "additionalProperties": self.item.json_schema()}
            return gathered({**schema, **_key_schema(self.key)})
        properties = {key: spec.json_schema() for key, spec in self.fields.items()}
        return gathered(
            {
                "type": "object",
                "properties": properties,
                "required": [key for key in self.fields if key not in self.optional],
                "additionalProperties": False,
            }
        )

    def __repr__(self) -> str:
        return f"Dictionary({self.item!r}, fields={self.fields!r})"


@final
class Either(Spec):
    """A union: the first option that fits is taken, an int before a float."""

    def __init__(self, options: Iterable[Spec]) -> None:
        # A float takes every int, so that an int behind it would never be one.
        self.options = sorted(options, key=lambda option: isinstance(option, Real))
        self._drawn = [option for option in self.options if option.can_sample]
        self.can_sample = bool(self._drawn)

    def read(self, value: Any) -> Any:
        """Take what any option takes."""
        mismatches = []
        for option in self.options:
            try:
                return option.read(value)
            except Mismatch as mismatch:
                mismatches.append(mismatch)
        raise self._nearest(value, mismatches)

    def _nearest(self, value: Any, mismatches: list[Mismatch]) -> Mismatch:
        """The mismatch of the option that was meant, if one stands out; otherwise all."""
        deeper = [mismatch for mismatch in mismatches if mismatch.path]
        if len(deeper) == 1:
            return deeper[0]
        if isinstance(value, Mapping):
            overlaps = [
                option.overlap(value) if isinstance(option, Record) else 0
                for option in self.options
            ]
            if overlaps.count(max(overlaps)) == 1:
                return mismatches[overlaps.index(max(overlaps))]
        reasons = [mismatch.describe("").removeprefix(": ") for mismatch in mismatches]
        return Mismatch("; or ".join(dict.fromkeys(reasons)))

    def sample(self, rng: np.random.Generator) -> Any:
        """Draw an option that can be drawn, then from it."""
        options = self._drawn or self.options
        return options[int(rng.integers(len(options)))].sample(rng)

    def json_schema(self) -> dict[str, Any]:
        """Describe the options."""
        return gathered({"anyOf": [option.json_schema() for option in self.options]})

    def __repr__(self) -> str:
        return f"Either({self.options!r})"


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
    if isinstance(key, Integer):
        return {"propertyNames": {"pattern": "^-?[0-9]+$"}}
    if isinstance(key, Choice):
        values = key.json_schema()["enum"]
        return {"propertyNames": {"enum": [v if isinstance(v, str) else str(v) for v in values]}}
    return {}

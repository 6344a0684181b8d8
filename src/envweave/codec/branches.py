"""Specs made of specs: records, lists, tuples, dicts and unions."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Mapping
from typing import Any, final

import numpy as np

from envweave.codec.leaves import Boolean, Integer, Real, Text
from envweave.codec.spec import AnySpec, Mismatch, Spec
from envweave.errors import suggest


@final
class Record(Spec):
    """A dataclass, given as an instance or as a dict of its fields.

    Fields of plain unbounded types are checked together by exact type, in one C call; the
    rest, and whatever fails that, one by one.
    """

    def __init__(self, cls: type, fields: Mapping[str, Spec], optional: Iterable[str]) -> None:
        self.cls = cls
        self.fields = dict(fields)
        self._optional = frozenset(optional)
        names = [*self.fields]
        # With one name `attrgetter` returns no tuple, so the first one stands twice.
        self._get = operator.attrgetter(*(names if len(names) > 1 else [*names, *names]))
        exact = [_exact_type(spec) for spec in self.fields.values()]
        self._types = tuple(exact if len(exact) > 1 else exact + exact)
        self._all_exact = bool(exact) and all(kind is not None for kind in exact)

    def read(self, value: Any) -> Any:
        """Take an instance, or a dict with exactly its fields."""
        if type(value) is dict:
            value = self._build(value)
        elif type(value) is not self.cls and not isinstance(value, self.cls):
            value = self._foreign(value)
        if self._all_exact and tuple(map(type, self._get(value))) == self._types:
            return value
        changed = {}
        for name, spec in self.fields.items():
            before = getattr(value, name)
            try:
                after = spec.read(before)
            except Mismatch as mismatch:
                raise mismatch.under(f".{name}") from None
            if after is not before:
                changed[name] = after
        return dataclasses.replace(value, **changed) if changed else value

    def _foreign(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self._build(dict(value))
        raise Mismatch(
            f"{type(value).__name__} {value!r} is neither {self.cls.__name__} "
            f"nor a dict of its fields ({', '.join(self.fields)})"
        )

    def _build(self, fields: dict[str, Any]) -> Any:
        try:
            return self.cls(**fields)
        except TypeError:
            for name in fields:
                if name not in self.fields:
                    hint = suggest(str(name), self.fields) or f" Known: {', '.join(self.fields)}."
                    raise Mismatch(f"unknown field.{hint}").under(f".{name}") from None
            missing = [n for n in self.fields if n not in fields and n not in self._optional]
            if missing:
                raise Mismatch("this field is missing").under(f".{missing[0]}") from None
            raise

    def sample(self, rng: np.random.Generator) -> Any:
        """Draw every field but those whose default says enough (dicts of anything)."""
        drawn = {
            name: spec.sample(rng)
            for name, spec in self.fields.items()
            if not (name in self._optional and isinstance(spec, Dictionary | AnySpec))
        }
        return self.cls(**drawn)

    def json_schema(self) -> dict[str, Any]:
        """Describe an object with these properties and no others."""
        return {
            "title": self.cls.__name__,
            "type": "object",
            "properties": {name: spec.json_schema() for name, spec in self.fields.items()},
            "required": [name for name in self.fields if name not in self._optional],
            "additionalProperties": False,
        }

    def __repr__(self) -> str:
        return f"Record({self.cls.__name__}, {self.fields!r})"


@final
class Listing(Spec):
    """A list of any length, every item of one kind."""

    def __init__(self, item: Spec) -> None:
        self.item = item

    def read(self, value: Any) -> list[Any]:
        """Take a list or a tuple."""
        if not isinstance(value, list | tuple):
            raise Mismatch(f"{value!r} is not a list")
        return _read_each(value, [self.item] * len(value))

    def sample(self, rng: np.random.Generator) -> list[Any]:
        """Draw up to four items."""
        return [self.item.sample(rng) for _ in range(int(rng.integers(5)))]

    def json_schema(self) -> dict[str, Any]:
        """Describe an array."""
        return {"type": "array", "items": self.item.json_schema()}

    def __repr__(self) -> str:
        return f"Listing({self.item!r})"


@final
class Fixed(Spec):
    """A tuple of fixed length, each place with a spec of its own."""

    def __init__(self, items: Iterable[Spec]) -> None:
        self.items = list(items)

    def read(self, value: Any) -> tuple[Any, ...]:
        """Take a tuple or a list of that length."""
        if not isinstance(value, list | tuple) or len(value) != len(self.items):
            raise Mismatch(f"{value!r} is not a tuple of {len(self.items)}")
        return tuple(_read_each(value, self.items))

    def sample(self, rng: np.random.Generator) -> tuple[Any, ...]:
        """Draw each place."""
        return tuple(item.sample(rng) for item in self.items)

    def json_schema(self) -> dict[str, Any]:
        """Describe an array of that length."""
        items = [item.json_schema() for item in self.items]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}

    def __repr__(self) -> str:
        return f"Fixed({self.items!r})"


@final
class Dictionary(Spec):
    """A dict. With `fields` its keys are known, and all of them are needed."""

    def __init__(self, item: Spec | None = None, fields: Mapping[str, Spec] | None = None) -> None:
        self.item = AnySpec() if item is None else item
        self.fields = None if fields is None else dict(fields)

    def read(self, value: Any) -> dict[Any, Any]:
        """Take a dict."""
        if not isinstance(value, Mapping):
            raise Mismatch(f"{value!r} is not a dict")
        if self.fields is None and isinstance(self.item, AnySpec):
            return value if type(value) is dict else dict(value)
        read = {}
        for key in value if self.fields is None else {**value, **self.fields}:
            spec = self.item if self.fields is None else self.fields.get(key)
            if spec is None:
                hint = suggest(str(key), self.fields or ())
                raise Mismatch(f"unknown key.{hint}").under(f"[{key!r}]")
            try:
                read[key] = spec.read(value[key])
            except KeyError:
                raise Mismatch("this key is missing").under(f"[{key!r}]") from None
            except Mismatch as mismatch:
                raise mismatch.under(f"[{key!r}]") from None
        return read

    def sample(self, rng: np.random.Generator) -> dict[str, Any]:
        """Draw the known keys; where none is known, an empty dict."""
        return {key: spec.sample(rng) for key, spec in (self.fields or {}).items()}

    def json_schema(self) -> dict[str, Any]:
        """Describe an object."""
        if self.fields is None:
            return {"type": "object", "additionalProperties": self.item.json_schema()}
        properties = {key: spec.json_schema() for key, spec in self.fields.items()}
        return {
            "type": "object",
            "properties": properties,
            "required": [*self.fields],
            "additionalProperties": False,
        }

    def __repr__(self) -> str:
        return f"Dictionary({self.item!r}, fields={self.fields!r})"


@final
class Either(Spec):
    """A union: the first option that fits is taken."""

    def __init__(self, options: Iterable[Spec]) -> None:
        self.options = list(options)

    def read(self, value: Any) -> Any:
        """Take what any option takes."""
        reasons = []
        for option in self.options:
            try:
                return option.read(value)
            except Mismatch as mismatch:
                reasons.append(mismatch.describe("").lstrip(": "))
        raise Mismatch("; or ".join(dict.fromkeys(reasons)))

    def sample(self, rng: np.random.Generator) -> Any:
        """Draw an option, then from it."""
        return self.options[int(rng.integers(len(self.options)))].sample(rng)

    def json_schema(self) -> dict[str, Any]:
        """Describe the options."""
        return {"anyOf": [option.json_schema() for option in self.options]}

    def __repr__(self) -> str:
        return f"Either({self.options!r})"


def _read_each(values: Iterable[Any], specs: Iterable[Spec]) -> list[Any]:
    read = []
    for index, (one, spec) in enumerate(zip(values, specs, strict=True)):
        try:
            read.append(spec.read(one))
        except Mismatch as mismatch:
            raise mismatch.under(f"[{index}]") from None
    return read


def _exact_type(spec: Spec) -> type | None:
    """The one type that needs no further look, or None."""
    if isinstance(spec, Integer | Real) and spec.low is None and spec.high is None:
        return int if isinstance(spec, Integer) else float
    if isinstance(spec, Boolean):
        return bool
    if isinstance(spec, Text):
        return bytes if spec.binary else str
    if isinstance(spec, Dictionary) and spec.fields is None and isinstance(spec.item, AnySpec):
        return dict
    return None

"""The spec of a `msgspec.Struct`, tagged or not."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, final

import msgspec
import numpy as np

from envweave.codec.records import definition
from envweave.codec.spec import Mismatch, Spec, described, gathered, short
from envweave.errors import SpecError, in_words, suggest

_ATTEMPTS = 100


@final
class Struct(Spec):
    """A `msgspec.Struct`, given as an instance or as a dict of its fields.

    A dict may name the tag, as MessagePack and JSON do; another tag is refused.

    Attributes:
        cls: The class.
        fields: Its fields, by their names in Python.
        optional: The names of those with a default.
        is_recursive: Whether it holds itself.
    """

    def __init__(self, cls: Any, fields: Mapping[str, Spec], optional: Iterable[str]) -> None:
        self.cls = cls
        self.fields = dict(fields)
        self.optional = frozenset(optional)
        self.is_recursive = False
        self.can_sample = all(
            spec.can_sample for name, spec in self.fields.items() if name not in self.optional
        )
        names = zip(cls.__struct_encode_fields__, cls.__struct_fields__, strict=True)
        self._names = {**dict(names), **{name: name for name in self.fields}}
        self._tag_field: str | None = cls.__struct_config__.tag_field
        self._tag = cls.__struct_config__.tag

    def read(self, value: Any) -> Any:
        """Take an instance, or a dict with exactly its fields."""
        if isinstance(value, self.cls):
            return self._settle(value)
        if not isinstance(value, Mapping):
            raise Mismatch(
                f"{type(value).__name__} {short(value)} is neither {self.cls.__name__} nor a dict "
                f"of its fields ({', '.join(self.fields)})"
            )
        given = dict(value)
        if self._tag_field is not None and given.pop(self._tag_field, self._tag) != self._tag:
            shown = short(value[self._tag_field])
            raise Mismatch(f"{shown} is not {self._tag!r}").under(f".{self._tag_field}")
        read = {}
        for key, one in given.items():
            name = self._names.get(key)
            if name is None:
                hint = suggest(str(key), self.fields) or f" Known: {', '.join(self.fields)}."
                raise Mismatch(f"unknown field.{hint}").under(f".{key}")
            read[name] = self._part(name, one)
        for name in self.fields:
            if name not in read and name not in self.optional:
                raise Mismatch("this field is missing").under(f".{name}")
        try:
            return self.cls(**read)
        except Exception as error:  # an author's __post_init__
            raise Mismatch(f"{self.cls.__name__} refuses it: {in_words(error)}") from error

    def _part(self, name: str, value: Any) -> Any:
        try:
            return self.fields[name].read(value)
        except Mismatch as mismatch:
            raise mismatch.under(f".{name}") from None

    def _settle(self, value: Any) -> Any:
        changed = {}
        for name in self.fields:
            before = getattr(value, name)
            after = self._part(name, before)
            if after is not before:
                changed[name] = after
        if not changed:
            return value
        twin = copy.copy(value)
        for name, one in changed.items():
            msgspec.structs.force_setattr(twin, name, one)  # also into a frozen one
        return twin

    def overlap(self, value: Mapping[Any, Any]) -> int:
        """Return how many keys of a dict are fields here; the right tag counts more than all."""
        named = self._tag_field is not None and value.get(self._tag_field) == self._tag
        return sum(key in self._names for key in value) + named * (len(value) + 1)

    def sample(self, rng: np.random.Generator) -> Any:
        """Draw every field that can be drawn.

        Raises:
            SpecError: A field cannot be drawn, or the class refuses what is drawn.
        """
        drawable = {
            name: spec
            for name, spec in self.fields.items()
            if spec.can_sample or name not in self.optional
        }
        for _ in range(_ATTEMPTS):
            drawn = {name: spec.sample(rng) for name, spec in drawable.items()}
            try:
                return self.cls(**drawn)
            except Exception as error:  # noqa: BLE001 - the author's __post_init__
                reason = error
        raise SpecError(
            f"{self.cls.__name__} refused {_ATTEMPTS} samples, the last with: {in_words(reason)}. "
            "Put what it wants into the type hints, as a Literal or as Bounds."
        ) from reason

    def json_schema(self) -> dict[str, Any]:
        """Describe an object with these properties, its tag and no others."""
        properties = {name: described(spec) for name, spec in self.fields.items()}
        if self._tag_field is not None:
            tag = {"enum": [self._tag], "default": self._tag}
            properties = {self._tag_field: tag, **properties}
        schema = gathered(
            {
                "title": self.cls.__name__,
                "type": "object",
                "properties": properties,
                "required": [name for name in self.fields if name not in self.optional],
                "additionalProperties": False,
            }
        )
        if not self.is_recursive:
            return schema
        others, name = schema.pop("$defs", {}), definition(self.cls)
        return {"$ref": f"#/$defs/{name}", "$defs": {name: schema, **others}}

    def __repr__(self) -> str:
        return f"Struct({self.cls.__name__}, {self.fields!r})"

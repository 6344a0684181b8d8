"""Specs from JSON Schema: the inverse of `schema_writing.py`, and of what others write.

A schema comes from a stranger. What is not understood becomes a spec that takes anything; what
cannot be meant well, such as a schema without end, is refused.
"""

from __future__ import annotations

import functools
from collections import namedtuple
from typing import Any, final

from envweave.codec import AnySpec, Mismatch, Spec, spec_from_hint
from envweave.codec.branches import Dictionary, Either, Fixed, Listing, Record, Recursion
from envweave.codec.leaves import Boolean, Choice, Integer, Real
from envweave.errors import EnvWeaveError, WireError
from envweave.wire.encoding import JSON
from envweave.wire.generated import (
    ROLES,
    UNKNOWN,
    Member,
    are_names,
    base_for,
    is_all_of,
    is_field,
    make_class,
)
from envweave.wire.schema_leaves import (
    array_of,
    bounds,
    choice,
    length,
    text,
    text_in,
    unit,
    whole_bounds,
    whole_unit,
)
from envweave.wire.schema_spaces import space_in

MAX_DEPTH = 64
"""How deep a schema may go."""

MAX_PARTS = 20_000
"""How many schemas a schema may hold."""

_MAX_WRITTEN = 2**26
_MAX_CLASSES = 1024
_classes: dict[tuple[bytes, str | None], type] = {}
_KINDS: dict[str, type] = {"tuple": tuple, "frozenset": frozenset}


def spec_of(schema: Any, role: str | None = None) -> Spec:
    """Return the spec that a schema describes. The same schema gives the same spec.

    Args:
        schema: The JSON Schema.
        role: `"action"`, `"observation"` or `"state"`; a class for it derives from envweave's.

    Raises:
        WireError: The schema is none, or goes too deep, or is too large.
    """
    if not isinstance(schema, dict):
        raise WireError(f"A schema is a dict, but this is a {type(schema).__name__}.")
    return _cached(JSON.encode(schema), role)


@functools.lru_cache(maxsize=256)
def _cached(schema: bytes, role: str | None) -> Spec:
    plain = JSON.decode(schema)
    definitions = plain.get("$defs", plain.get("definitions"))
    reader = _Reader(definitions if isinstance(definitions, dict) else {})
    try:
        return reader.read(plain, role, 0)
    except RecursionError:
        raise WireError("A schema goes too deep.") from None


@final
class _Reader:
    """Reads one schema with its definitions."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._parts = 0
        self._written = 0
        self._names: dict[int, str] = {}
        self._open: dict[tuple[str, str | None], list[Recursion]] = {}
        self._known: dict[tuple[str, str | None], Spec] = {}

    def read(self, schema: Any, role: str | None, depth: int) -> Spec:
        self._parts += 1
        if depth > MAX_DEPTH or self._parts > MAX_PARTS:
            raise WireError("A schema goes too deep, or is too large.")
        if not isinstance(schema, dict):
            return AnySpec()
        try:
            return self._read(schema, role, depth)
        except WireError:
            raise
        except (EnvWeaveError, ValueError, OverflowError, MemoryError):
            return AnySpec()  # bounds that no number lies between, and the like

    def _read(self, schema: dict[str, Any], role: str | None, depth: int) -> Spec:
        if "$ref" in schema:
            return self._reference(schema["$ref"], role, depth)
        if "x-array" in schema:
            return array_of(schema["x-array"])
        if "x-space" in schema:
            return space_in(schema["x-space"], lambda one: self.read(one, None, depth + 1))
        if "enum" in schema or "const" in schema:
            return choice(schema.get("enum", [schema.get("const")]))
        for several in ("anyOf", "oneOf"):
            if isinstance(options := schema.get(several), list) and options:
                return self._either(options, role, depth)
        kind = schema.get("type")
        if isinstance(kind, list) and kind:
            return self._either([{**schema, "type": one} for one in kind], role, depth)
        return self._typed(kind, schema, role, depth)

    def _typed(self, kind: Any, schema: dict[str, Any], role: str | None, depth: int) -> Spec:
        match kind:
            case "integer":
                return Integer(*whole_bounds(schema), multiple_of=whole_unit(schema))
            case "number":
                return Real(*bounds(schema), multiple_of=unit(schema))
            case "boolean":
                return Boolean()
            case "string":
                return text(schema)
            case "null":
                return Choice([None])
            case "array":
                return self._sequence(schema, depth)
            case "object":
                return self._object(schema, role, depth)
        return AnySpec()

    def _either(self, options: list[Any], role: str | None, depth: int) -> Spec:
        read = [self.read(one, role, depth + 1) for one in options]
        return Either(read)

    def _sequence(self, schema: dict[str, Any], depth: int) -> Spec:
        places = schema.get("prefixItems")
        if isinstance(places, list):
            return self._fixed(places, schema, depth)
        if "items" not in schema and schema.get("maxItems") == 0:
            return Fixed([])
        kind: type = set if schema.get("uniqueItems") is True else list
        kind = _KINDS.get(text_in(schema.get("x-kind")), kind)
        item = self.read(schema.get("items"), None, depth + 1)
        return Listing(item, kind=kind, length=length(schema, "minItems", "maxItems"))

    def _fixed(self, places: list[Any], schema: dict[str, Any], depth: int) -> Spec:
        items = [self.read(one, None, depth + 1) for one in places]
        names = schema.get("x-names")
        if not isinstance(names, list) or len(names) != len(items) or not are_names(names):
            return Fixed(items)
        defaults = {
            name: item.read(place["default"])
            for name, item, place in zip(names, items, places, strict=True)
            if isinstance(place, dict) and "default" in place
        }
        title = text_in(schema.get("title"))
        kind = _named_tuple(title if are_names([title]) else "Tuple", tuple(names))
        return Fixed(items, names=names, optional=defaults, make=kind._make, kind=kind)

    def _object(self, schema: dict[str, Any], role: str | None, depth: int) -> Spec:
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            keys = schema.get("x-keys")
            key = None if keys is None else self.read(keys, None, depth + 1)
            return Dictionary(
                self.read(schema.get("additionalProperties"), None, depth + 1),
                key=key,
                length=length(schema, "minProperties", "maxProperties"),
            )
        if not all(isinstance(name, str) for name in properties):
            return AnySpec()
        specs = {name: self.read(one, None, depth + 1) for name, one in properties.items()}
        needed = schema.get("required", [])
        needed = (
            {one for one in needed if isinstance(one, str)} if isinstance(needed, list) else set()
        )
        if isinstance(schema.get("title"), str) and are_names(list(properties)):
            return self._record(schema, properties, specs, needed, role)
        return Dictionary(fields=specs, optional=[name for name in specs if name not in needed])

    def _record(
        self,
        schema: dict[str, Any],
        properties: dict[str, Any],
        specs: dict[str, Spec],
        needed: set[str],
        role: str | None,
    ) -> Spec:
        members = {
            name: _member(properties[name], spec, needed=name in needed)
            for name, spec in specs.items()
        }
        base = base_for(None if role is None else ROLES[role], properties)
        for name, member in members.items():
            # A field that envweave's own class has takes the default that it has there.
            is_inherited = base is not None and is_field(base, name)
            if not member.needed and member.default is UNKNOWN and not is_inherited:
                specs[name] = _or_none(specs[name])
        if base is not None and schema["title"] == base.__name__ and is_all_of(base, properties):
            return spec_from_hint(base)  # the author's is envweave's own
        cls = self._class(schema, members, base, role)
        derived = {name: specs[name] for name, member in members.items() if member.derived}
        return Record(
            cls,
            {name: spec for name, spec in specs.items() if name not in derived},
            [name for name in specs if name not in needed],
            derived=derived,
            stands_in=True,
        )

    def _class(
        self,
        schema: dict[str, Any],
        members: dict[str, Member],
        base: type | None,
        role: str | None,
    ) -> type:
        """The class of a schema, which is the same wherever it stands."""
        name = self._names.get(id(schema))
        whole = schema if name is None else {"$ref": f"#/$defs/{name}"}
        if self._definitions:
            whole = {**whole, "$defs": self._definitions}
        key = JSON.encode(whole)
        self._written += len(key)
        if self._written > _MAX_WRITTEN:
            raise WireError("A schema is too large.")
        cls = _classes.get((key, role))
        if cls is None:
            revive = functools.partial(_revived, key, role)
            cls = _classes[key, role] = make_class(schema["title"], members, base, revive)
            while len(_classes) > _MAX_CLASSES:
                _classes.pop(next(iter(_classes)), None)
        return cls

    def _reference(self, reference: Any, role: str | None, depth: int) -> Spec:
        prefix, _, name = text_in(reference).rpartition("/")
        if prefix not in ("#/$defs", "#/definitions") or name not in self._definitions:
            return AnySpec()
        key = name, role
        if key in self._known:
            return self._known[key]
        for (opened, _), returns in self._open.items():
            if opened == name:
                returns.append(Recursion(object))
                return returns[-1]
        self._open[key] = []
        self._names[id(self._definitions[name])] = name
        spec = self.read(self._definitions[name], role, depth + 1)
        for recursion in self._open.pop(key):
            recursion.record = spec
            if isinstance(spec, Record):
                spec.is_recursive = True
                recursion.cls = spec.cls
        self._known[key] = spec
        return spec


def _revived(schema: bytes, role: str | None, fields: dict[str, Any]) -> Any:
    """An instance that was pickled, of the class that its schema describes."""
    record = _cached(schema, role)
    if not isinstance(record, Record):
        raise WireError("A pickled object has a schema of something else.")
    made: Any = object.__new__(record.cls)
    made.__dict__.update(fields)
    return made


@functools.lru_cache(maxsize=256)
def _named_tuple(title: str, names: tuple[str, ...]) -> Any:
    return namedtuple(title, names)


def _member(schema: Any, spec: Spec, *, needed: bool) -> Member:
    if needed or not isinstance(schema, dict):
        return Member(needed=needed)
    derived = schema.get("readOnly") is True
    if "default" not in schema:
        return Member(needed=False, derived=derived)
    try:
        return Member(needed=False, default=spec.read(schema["default"]), derived=derived)
    except Mismatch:
        return Member(needed=False, derived=derived)


def _or_none(spec: Spec) -> Spec:
    return spec if spec.contains(None) else Either([spec, Choice([None])])

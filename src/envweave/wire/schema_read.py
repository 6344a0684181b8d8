"""Makes specs from JSON Schema: the inverse of `schema_write.py`, and for others' schemas.

A schema is untrusted. Parts that are not understood become a spec that accepts anything; what can
only be an attack, such as a schema nested too deep, is refused.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import keyword
import math
import unicodedata
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from envweave.codec import AnySpec, Mismatch, Spec, spec_from_hint
from envweave.codec.containers import (
    DataclassSpec,
    DictSpec,
    ListSpec,
    RecursiveSpec,
    TupleSpec,
    UnionSpec,
)
from envweave.codec.scalars import ArraySpec, BoolSpec, EnumSpec, FloatSpec, IntSpec, StrSpec
from envweave.codec.spec import Length
from envweave.codec.strings import Pattern
from envweave.errors import DefinitionError, EnvWeaveError, WireError
from envweave.types import Action, Observation, State
from envweave.wire.encoding import JSON

_MAX_SIZE = 2**28
_MAX_LENGTH = 2**16
_MAX_PATTERN = 1000
_MAX_EXAMPLES = 100
_DTYPES = frozenset(
    ["bool", "float16", "float32", "float64", "complex64", "complex128"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    + [f">{kind}" for kind in ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")]
)


def read_enum(values: Any) -> Spec:
    """Return the spec of an enumeration."""
    if not isinstance(values, list) or not values:
        return AnySpec()
    return EnumSpec(values, stands_in=True)


def str_or_empty(value: Any) -> str:
    """Return a string; an empty one in place of anything else."""
    return value if isinstance(value, str) else ""


def _number(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else None


def bounds(schema: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the lowest and the highest number that a schema allows."""
    low, high = _number(schema.get("minimum")), _number(schema.get("maximum"))
    above = _number(schema.get("exclusiveMinimum"))
    below = _number(schema.get("exclusiveMaximum"))
    if above is not None:
        low = max(_next(above, math.inf), -math.inf if low is None else low)
    if below is not None:
        high = min(_next(below, -math.inf), math.inf if high is None else high)
    return low, high


def _next(bound: float, towards: float) -> float:
    return math.nextafter(float(bound), towards)


def int_bounds(schema: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the lowest and the highest integer that a schema allows."""
    low, high = _number(schema.get("minimum")), _number(schema.get("maximum"))
    above = _number(schema.get("exclusiveMinimum"))
    below = _number(schema.get("exclusiveMaximum"))
    lows = [math.ceil(low)] if low is not None else []
    lows += [math.floor(above) + 1] if above is not None else []
    highs = [math.floor(high)] if high is not None else []
    highs += [math.ceil(below) - 1] if below is not None else []
    return max(lows, default=None), min(highs, default=None)


def multiple_of(schema: Mapping[str, Any]) -> float | None:
    """Return what a schema's numbers must be a multiple of."""
    value = _number(schema.get("multipleOf"))
    return value if value is not None and 0 < value < math.inf else None


def int_multiple_of(schema: Mapping[str, Any]) -> int | None:
    """Return what a schema's integers must be a multiple of."""
    value = multiple_of(schema)
    return int(value) if value is not None and value >= 1 and int(value) == value else None


def length(schema: Mapping[str, Any], low: str, high: str) -> Length:
    """Return the allowed lengths of a value; invalid limits are ignored."""
    least, most = (schema.get(name) for name in (low, high))
    least = least if type(least) is int and 0 <= least <= _MAX_LENGTH else 0
    return Length(least, most if type(most) is int and most >= least else None)


def read_string(schema: Mapping[str, Any]) -> StrSpec:
    """Return the spec of strings or bytes.

    A pattern that may be slow to match is left to the server, which checks it anyway.
    """
    if schema.get("contentEncoding") == "base64":
        limits = schema.get("x-bytes")
        limits = limits if isinstance(limits, dict) else {}
        return StrSpec(binary=True, length=length(limits, "min", "max"))
    lengths, pattern = length(schema, "minLength", "maxLength"), schema.get("pattern")
    if isinstance(pattern, str) and len(pattern) <= _MAX_PATTERN:
        examples = schema.get("examples")
        try:
            compiled = Pattern(pattern)
        except DefinitionError:
            return StrSpec(length=lengths)
        return StrSpec(
            length=lengths,
            pattern=compiled,
            examples=examples[:_MAX_EXAMPLES] if isinstance(examples, list) else (),
            checks_pattern=compiled.is_simple,
        )
    return StrSpec(length=lengths, format=str_or_empty(schema.get("format")) or None)


def read_array(schema: Any) -> Spec:
    """Return the spec of an array from its `x-array`."""
    if not isinstance(schema, dict):
        return AnySpec()
    dtype, shape = schema.get("dtype"), schema.get("shape")
    if dtype is not None and str_or_empty(dtype) not in _DTYPES:
        return AnySpec()
    if shape is not None:
        if not isinstance(shape, list) or len(shape) > 32:
            return AnySpec()
        if not all(type(n) is int and 0 <= n <= _MAX_SIZE for n in shape):
            return AnySpec()
        if math.prod(shape) > _MAX_SIZE:
            return AnySpec()
        shape = tuple(shape)
    ends = [
        _bound(schema[name], infinite, dtype, shape) if name in schema else None
        for name, infinite in (("low", -math.inf), ("high", math.inf))
    ]
    return ArraySpec(shape, dtype, *ends, clips=schema.get("clips") is True)


def _bound(bound: Any, infinite: float, dtype: str | None, shape: tuple[int, ...] | None) -> Any:
    if not isinstance(bound, list):
        return infinite if bound is None else _number(bound)
    kind = np.dtype(dtype or "float64")
    filled = np.array(_filled(bound, infinite), kind if kind.kind in "biuf" else None)
    return filled if shape is None else np.broadcast_to(filled, shape)


def _filled(bound: Any, infinite: float) -> Any:
    if isinstance(bound, list):
        return [_filled(element, infinite) for element in bound]
    return infinite if bound is None else bound


def describe_space(spec: Spec, write: Callable[[Spec], Any]) -> dict[str, Any] | None:
    """Return the `x-space` of a spec; `None` if it has no space that `read_space` can make."""
    space = getattr(spec, "space", None)  # only a `SpaceSpec` has one, and needs Gymnasium
    if space is None:
        return None
    from gymnasium import spaces

    from envweave.codec.gymnasium_spaces import from_space

    def inner(one: Any) -> Any:
        return None if one is None else write(from_space(one))

    match space:
        case spaces.Text():
            lengths = {"min_length": space.min_length, "max_length": space.max_length}
            return {"kind": "text", **lengths, "charset": "".join(sorted(space.character_set))}
        case spaces.Sequence():
            return {"kind": "sequence", "of": inner(space.feature_space), "stack": space.stack}
        case spaces.OneOf():
            return {"kind": "one_of", "options": [inner(one) for one in space.spaces]}
        case spaces.Graph():
            return {
                "kind": "graph",
                "node": inner(space.node_space),
                "edge": inner(space.edge_space),
            }
    return None


def read_space(described: Any, read: Callable[[Any], Spec]) -> Spec:
    """Return the spec of a space from its `x-space`; anything unknown accepts anything."""
    try:
        from gymnasium import spaces
    except ImportError:
        return AnySpec()
    from envweave.codec.gymnasium_spaces import from_space

    def inner(schema: Any) -> Any:
        return None if schema is None else read(schema).to_space()

    try:
        match described:
            case {"kind": "text", "min_length": int(), "max_length": int(), "charset": str()}:
                lengths = {name: described[name] for name in ("min_length", "max_length")}
                return from_space(spaces.Text(**lengths, charset=described["charset"]))
            case {"kind": "sequence", "of": of, "stack": bool(stack)}:
                return from_space(spaces.Sequence(inner(of), stack=stack))
            case {"kind": "one_of", "options": [*options]}:
                return from_space(spaces.OneOf([inner(one) for one in options]))
            case {"kind": "graph", "node": node, "edge": edge}:
                return from_space(spaces.Graph(inner(node), inner(edge)))
    except WireError:
        raise
    except Exception:  # noqa: BLE001 - Gymnasium's errors for an invalid space from outside
        return AnySpec()
    return AnySpec()


MAX_FIELDS = 1000
"""How many fields a class may have; with more, a dict is used."""

UNKNOWN: Any = object()
"""A default that is not in the schema."""

_PLAIN = (type(None), bool, int, float, str, bytes)


@final
@dataclass(frozen=True, slots=True)
class Member:
    """One field of a class to make.

    Attributes:
        required: Whether it has no default.
        default: Its default; `UNKNOWN` if only the author's class knows it.
        derived: Whether the author's class computes it, so the constructor does not take it.
    """

    required: bool
    default: Any = UNKNOWN
    derived: bool = False


def are_field_names(names: list[Any]) -> bool:
    """Whether a dataclass can have fields of these names.

    Python writes them into the source of an `__init__`, so nothing else may pass.
    """
    return len(names) <= MAX_FIELDS and all(
        isinstance(name, str)
        and name.isidentifier()
        and not keyword.iskeyword(name)
        and not name.startswith("__")
        and unicodedata.normalize("NFKC", name) == name
        for name in names
    )


def base_class(role: type | None, names: Mapping[str, Any]) -> type | None:
    """Return the class to derive from: `role`, if all its fields are among the names."""
    if role is None or not {field.name for field in dataclasses.fields(role)} <= names.keys():
        return None
    return role


def is_field(cls: type, name: str) -> bool:
    """Whether a class has a field of this name."""
    return any(field.name == name for field in dataclasses.fields(cls))


def has_exactly(cls: type, names: Mapping[str, Any]) -> bool:
    """Whether a class has exactly these fields."""
    return names.keys() == {field.name for field in dataclasses.fields(cls)}


def make_class(
    title: str,
    members: Mapping[str, Member],
    base: type | None,
    unpickle: Callable[..., Any],
    docstring: str = "",
) -> type:
    """Return a dataclass with these fields, derived from `base`.

    `unpickle` makes an instance from its fields; instances are pickled as a call of it.
    """
    inherited = set() if base is None else {field.name for field in dataclasses.fields(base)}
    own, has_default = [], False
    for name, member in members.items():
        if name in inherited:
            continue
        own.append((name, Any, _field(member, kw_only=has_default)))
        has_default = has_default or not member.required
    left_out = tuple(
        name
        for name, member in members.items()
        if not member.required and member.default is UNKNOWN and name not in inherited
    )

    def post_init(self: Any) -> None:
        # Omitted fields are not sent, so the author's class sets its own defaults.
        for name in left_out:
            if self.__dict__.get(name) is None:
                self.__dict__.pop(name, None)

    def reduce(self: Any) -> Any:
        return unpickle, (dict(self.__dict__),)

    def shallow_copy(self: Any) -> Any:
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    namespace: dict[str, Any] = {"__reduce__": reduce, "__copy__": shallow_copy}
    if docstring:
        namespace["__doc__"] = docstring
    if left_out:
        namespace["__post_init__"] = post_init
    name = title if title.isidentifier() and not keyword.iskeyword(title) else "Record"
    made = dataclasses.make_dataclass(
        name, own, bases=() if base is None else (base,), namespace=namespace
    )
    made.__module__ = __name__
    return made


def _field(member: Member, *, kw_only: bool) -> Any:
    if member.required:
        return dataclasses.field(kw_only=kw_only)
    if member.default is UNKNOWN:
        return dataclasses.field(default=None, init=not member.derived)
    if isinstance(member.default, _PLAIN):
        return dataclasses.field(default=member.default, init=not member.derived)
    return dataclasses.field(
        default_factory=functools.partial(copy.deepcopy, member.default), init=not member.derived
    )


ROLES: dict[str, type] = {"action": Action, "observation": Observation, "state": State}
"""envweave's own base classes, by role."""


MAX_DEPTH = 64
"""How deep a schema may be nested."""

MAX_PARTS = 20_000
"""How many subschemas a schema may have."""

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
        WireError: The schema is not a dict, nested too deep, or too large.
    """
    if not isinstance(schema, dict):
        raise WireError(f"A schema must be a dict, got {type(schema).__name__}.")
    return _cached(JSON.encode(schema), role)


@functools.lru_cache(maxsize=256)
def _cached(schema: bytes, role: str | None) -> Spec:
    plain = JSON.decode(schema)
    definitions = plain.get("$defs", plain.get("definitions"))
    reader = _Reader(definitions if isinstance(definitions, dict) else {})
    try:
        return reader.read(plain, role, 0)
    except RecursionError:
        raise WireError("A schema is nested too deep.") from None


@final
class _Reader:
    """Reads one schema with its definitions."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._parts = 0
        self._written = 0
        self._names: dict[int, str] = {}
        self._open: dict[tuple[str, str | None], list[RecursiveSpec]] = {}
        self._known: dict[tuple[str, str | None], Spec] = {}

    def read(self, schema: Any, role: str | None, depth: int) -> Spec:
        self._parts += 1
        if depth > MAX_DEPTH or self._parts > MAX_PARTS:
            raise WireError("A schema is nested too deep, or is too large.")
        if not isinstance(schema, dict):
            return AnySpec()
        try:
            return self._read(schema, role, depth)
        except WireError:
            raise
        except (EnvWeaveError, ValueError, OverflowError, MemoryError):
            return AnySpec()  # for instance bounds that exclude every number

    def _read(self, schema: dict[str, Any], role: str | None, depth: int) -> Spec:
        if "$ref" in schema:
            return self._reference(schema["$ref"], role, depth)
        if "x-array" in schema:
            return read_array(schema["x-array"])
        if "x-space" in schema:
            return read_space(schema["x-space"], lambda one: self.read(one, None, depth + 1))
        if "enum" in schema or "const" in schema:
            return read_enum(schema.get("enum", [schema.get("const")]))
        for several in ("anyOf", "oneOf"):
            if isinstance(options := schema.get(several), list) and options:
                return self._union(options, role, depth)
        kind = schema.get("type")
        if isinstance(kind, list) and kind:
            return self._union([{**schema, "type": one} for one in kind], role, depth)
        return self._typed(kind, schema, role, depth)

    def _typed(self, kind: Any, schema: dict[str, Any], role: str | None, depth: int) -> Spec:
        match kind:
            case "integer":
                return IntSpec(*int_bounds(schema), multiple_of=int_multiple_of(schema))
            case "number":
                return FloatSpec(*bounds(schema), multiple_of=multiple_of(schema))
            case "boolean":
                return BoolSpec()
            case "string":
                return read_string(schema)
            case "null":
                return EnumSpec([None])
            case "array":
                return self._sequence(schema, depth)
            case "object":
                return self._object(schema, role, depth)
        return AnySpec()

    def _union(self, options: list[Any], role: str | None, depth: int) -> Spec:
        read = [self.read(one, role, depth + 1) for one in options]
        return UnionSpec(read)

    def _sequence(self, schema: dict[str, Any], depth: int) -> Spec:
        prefix = schema.get("prefixItems")
        if isinstance(prefix, list):
            return self._tuple(prefix, schema, depth)
        if "items" not in schema and schema.get("maxItems") == 0:
            return TupleSpec([])
        kind: type = set if schema.get("uniqueItems") is True else list
        kind = _KINDS.get(str_or_empty(schema.get("x-kind")), kind)
        item = self.read(schema.get("items"), None, depth + 1)
        return ListSpec(item, kind=kind, length=length(schema, "minItems", "maxItems"))

    def _tuple(self, prefix: list[Any], schema: dict[str, Any], depth: int) -> Spec:
        items = [self.read(one, None, depth + 1) for one in prefix]
        names = schema.get("x-names")
        if not isinstance(names, list) or len(names) != len(items) or not are_field_names(names):
            return TupleSpec(items)
        defaults = {
            name: item.read(place["default"])
            for name, item, place in zip(names, items, prefix, strict=True)
            if isinstance(place, dict) and "default" in place
        }
        title = str_or_empty(schema.get("title"))
        kind = _named_tuple(title if are_field_names([title]) else "Tuple", tuple(names))
        return TupleSpec(items, names=names, optional=defaults, make=kind._make, kind=kind)

    def _object(self, schema: dict[str, Any], role: str | None, depth: int) -> Spec:
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            keys = schema.get("x-keys")
            key = None if keys is None else self.read(keys, None, depth + 1)
            return DictSpec(
                self.read(schema.get("additionalProperties"), None, depth + 1),
                key=key,
                length=length(schema, "minProperties", "maxProperties"),
            )
        if not all(isinstance(name, str) for name in properties):
            return AnySpec()
        specs = {name: self._field(one, depth + 1) for name, one in properties.items()}
        required = schema.get("required", [])
        required = (
            {one for one in required if isinstance(one, str)}
            if isinstance(required, list)
            else set()
        )
        if isinstance(schema.get("title"), str) and are_field_names(list(properties)):
            return self._record(schema, properties, specs, required, role)
        return DictSpec(fields=specs, optional=[name for name in specs if name not in required])

    def _field(self, schema: Any, depth: int) -> Spec:
        spec = self.read(schema, None, depth)
        # What describes an object is the docstring of its class, and a reference is shared.
        if isinstance(schema, dict) and not (isinstance(spec, DataclassSpec) or "$ref" in schema):
            description = str_or_empty(schema.get("description"))
            if description:
                spec.notes = {"description": description}
        return spec

    def _record(
        self,
        schema: dict[str, Any],
        properties: dict[str, Any],
        specs: dict[str, Spec],
        required: set[str],
        role: str | None,
    ) -> Spec:
        members = {
            name: _member(properties[name], spec, required=name in required)
            for name, spec in specs.items()
        }
        base = base_class(None if role is None else ROLES[role], properties)
        for name, member in members.items():
            # An inherited field has the default of envweave's own class.
            is_inherited = base is not None and is_field(base, name)
            if not member.required and member.default is UNKNOWN and not is_inherited:
                specs[name] = _optional(specs[name])
        if base is not None and schema["title"] == base.__name__ and has_exactly(base, properties):
            return spec_from_hint(base)  # the author uses envweave's own class
        cls = self._class(schema, members, base, role)
        derived = {name: specs[name] for name, member in members.items() if member.derived}
        return DataclassSpec(
            cls,
            {name: spec for name, spec in specs.items() if name not in derived},
            [name for name in specs if name not in required],
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
        """The class of a schema; the same for equal schemas."""
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
            unpickle = functools.partial(_unpickled, key, role)
            docstring = str_or_empty(schema.get("description"))
            cls = make_class(schema["title"], members, base, unpickle, docstring)
            _classes[key, role] = cls
            while len(_classes) > _MAX_CLASSES:
                _classes.pop(next(iter(_classes)), None)
        return cls

    def _reference(self, reference: Any, role: str | None, depth: int) -> Spec:
        prefix, _, name = str_or_empty(reference).rpartition("/")
        if prefix not in ("#/$defs", "#/definitions") or name not in self._definitions:
            return AnySpec()
        key = name, role
        if key in self._known:
            return self._known[key]
        for (opened, _), returns in self._open.items():
            if opened == name:
                returns.append(RecursiveSpec(object))
                return returns[-1]
        self._open[key] = []
        self._names[id(self._definitions[name])] = name
        spec = self.read(self._definitions[name], role, depth + 1)
        for recursion in self._open.pop(key):
            recursion.record = spec
            if isinstance(spec, DataclassSpec):
                spec.is_recursive = True
                recursion.cls = spec.cls
        self._known[key] = spec
        return spec


def _unpickled(schema: bytes, role: str | None, fields: dict[str, Any]) -> Any:
    """Make a pickled instance of the class that its schema describes."""
    record = _cached(schema, role)
    if not isinstance(record, DataclassSpec):
        raise WireError("The schema of a pickled object does not describe a class.")
    made: Any = object.__new__(record.cls)
    made.__dict__.update(fields)
    return made


@functools.lru_cache(maxsize=256)
def _named_tuple(title: str, names: tuple[str, ...]) -> Any:
    return namedtuple(title, names)


def _member(schema: Any, spec: Spec, *, required: bool) -> Member:
    if required or not isinstance(schema, dict):
        return Member(required=required)
    derived = schema.get("readOnly") is True
    if "default" not in schema:
        return Member(required=False, derived=derived)
    try:
        return Member(required=False, default=spec.read(schema["default"]), derived=derived)
    except Mismatch:
        return Member(required=False, derived=derived)


def _optional(spec: Spec) -> Spec:
    return spec if spec.contains(None) else UnionSpec([spec, EnumSpec([None])])

"""Writes specs as JSON Schema from which the same spec can be made again.

It is the codec's schema with a few additional keywords, which other readers ignore:

    "description"   of a class: its docstring
    "default"       of a field, if it is plain data
    "readOnly"      a field that the class computes itself
    "writeOnly"     a field that only the constructor takes
    "x-kind"        `tuple` or `frozenset`, if an array is neither a list nor a set
    "x-names"       the names of a named tuple's items
    "x-bytes"       the allowed number of bytes
    "x-keys"        the schema of a dict's keys, if they are not strings
    "x-array"       dtype, shape and bounds of a numpy array
    "x-space"       a Gymnasium space that has no other form
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from envweave.codec import AgentsSpec, AnySpec, Spec, to_plain
from envweave.codec.containers import DataclassSpec, DictSpec, ListSpec, TupleSpec, UnionSpec
from envweave.codec.hints import Declared
from envweave.codec.records import StructSpec, docstring
from envweave.codec.scalars import ArraySpec
from envweave.types.results import same
from envweave.wire.schema_read import ROLES, describe_space


def schema_of(spec: Spec) -> dict[str, Any]:
    """Return the JSON Schema of a spec, from which `spec_of` makes it again."""
    schema = spec.json_schema()
    _Annotator(schema.get("$defs", {})).annotate(spec, schema)
    return schema


class _Annotator:
    """Walks a spec and its schema side by side, and adds what the schema lacks."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._done: set[str] = set()

    def annotate(self, spec: Spec, schema: dict[str, Any]) -> None:
        match spec:
            case Declared(spec=declared):
                self.annotate(declared, schema)
            case ArraySpec():
                schema["x-array"] = _array(spec)
            case ListSpec(item=item, kind=kind):
                if kind not in (list, set):
                    schema["x-kind"] = kind.__name__
                self.annotate(item, schema["items"])
            case TupleSpec():
                self._tuple(spec, schema)
            case DictSpec(fields=None):
                if not isinstance(spec.key, AnySpec):
                    schema["x-keys"] = schema_of(spec.key)
                self.annotate(spec.item, schema["additionalProperties"])
            case DictSpec(fields=fields) if fields is not None:
                if (found := self._defined(schema)) is not None:
                    self._each(fields, found["properties"])
            case StructSpec(fields=fields, cls=cls):
                if (found := self._defined(schema)) is not None:
                    self._each(fields, found["properties"])
                    for name, default in _struct_defaults(cls).items():
                        found["properties"][name]["default"] = default
                    _describe(cls, found)
            case AgentsSpec(agents=agents):
                self._each(agents, schema["properties"])
            case UnionSpec(options=options):
                for option, one in zip(options, schema["anyOf"], strict=True):
                    self.annotate(option, one)
            case DataclassSpec():
                self._record(spec, schema)
            case _:
                space = describe_space(spec, schema_of)
                if space is not None:
                    schema["x-space"] = space

    def _each(self, specs: Mapping[str, Spec], schemas: dict[str, Any]) -> None:
        for name, spec in specs.items():
            self.annotate(spec, schemas[name])

    def _tuple(self, spec: TupleSpec, schema: dict[str, Any]) -> None:
        prefix = schema.get("prefixItems", [])
        for item, one in zip(spec.items, prefix, strict=True):
            self.annotate(item, one)
        if spec.names:
            schema["title"] = spec.kind.__name__
            schema["x-names"] = list(spec.names)
            for name, place in zip(spec.names, prefix, strict=True):
                if name in spec.optional and _is_plain(spec.optional[name]):
                    place["default"] = to_plain(spec.optional[name])

    def _defined(self, schema: dict[str, Any]) -> dict[str, Any] | None:
        """The schema that a reference points to, or the schema itself; `None` if done before."""
        if "$ref" not in schema:
            return schema
        name = schema["$ref"].removeprefix("#/$defs/")
        if name in self._done:
            return None
        self._done.add(name)
        definition: dict[str, Any] = self._definitions[name]
        return definition

    def _record(self, spec: DataclassSpec, schema: dict[str, Any]) -> None:
        found = self._defined(schema)
        if found is None:
            return
        properties = found["properties"]
        self._each({**spec.fields, **spec.init_only, **spec.derived}, properties)
        for name in spec.init_only:
            properties[name]["writeOnly"] = True
        for name in spec.derived:
            properties[name]["readOnly"] = True
        for name, default in _defaults(spec.cls).items():
            if name in spec.optional and name in properties:
                properties[name]["default"] = default
        _describe(spec.cls, found)


def _describe(cls: type, schema: dict[str, Any]) -> None:
    text = "" if cls in ROLES.values() else docstring(cls)
    if text:
        schema.setdefault("description", text)


def _defaults(cls: Any) -> dict[str, Any]:
    """The defaults of a dataclass that JSON can express, as plain data."""
    defaults = {}
    for name, field in cls.__dataclass_fields__.items():
        default = field.default
        if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            default = _constant_default(field.default_factory)
        if default is not dataclasses.MISSING and _is_plain(default):
            defaults[name] = to_plain(default)
    return defaults


def _struct_defaults(cls: Any) -> dict[str, Any]:
    """The defaults of a struct that JSON can express, as plain data."""
    defaults = {}
    for field in msgspec.structs.fields(cls):
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = _constant_default(field.default_factory)
        is_known = default is not msgspec.NODEFAULT and default is not dataclasses.MISSING
        if is_known and _is_plain(default):
            defaults[field.name] = to_plain(default)
    return defaults


def _constant_default(factory: Any) -> Any:
    """The value of a default factory, if it is always the same."""
    try:
        first, second = factory(), factory()
        return first if same(first, second) else dataclasses.MISSING
    except Exception:  # noqa: BLE001 - an author's factory
        return dataclasses.MISSING


def _is_plain(value: Any) -> bool:
    """Whether JSON can express it, so that every reader understands it."""
    plain = to_plain(value)
    if isinstance(plain, float):
        return math.isfinite(plain)
    if isinstance(plain, list):
        return all(map(_is_plain, plain))
    if isinstance(plain, dict):
        return all(map(_is_plain, plain.values()))
    if isinstance(plain, str):
        return isinstance(value, str) or plain != repr(value)
    return plain is None or isinstance(plain, int)


def _array(spec: ArraySpec) -> dict[str, Any]:
    described: dict[str, Any] = {}
    if spec.dtype is not None:
        described["dtype"] = spec.dtype.name if spec.dtype.isnative else spec.dtype.str
    if spec.shape is not None:
        described["shape"] = list(spec.shape)
    for name, bound in (("low", spec.low), ("high", spec.high)):
        if bound is not None:
            described[name] = _bound(bound)
    if spec.clips:
        described["clips"] = True
    return described


def _bound(bound: Any) -> Any:
    """A bound as a number or nested lists; null if it is infinite."""
    array = np.asarray(bound)
    if array.ndim and array.size and bool((array == array.flat[0]).all()):
        array = array.flat[0].reshape((1,) * array.ndim)
    return _finite(array.tolist())


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and math.isinf(value) else value

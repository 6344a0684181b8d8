"""Specs as JSON Schema that says enough to make the same spec again.

It is the schema of the codec with a few words more, which other readers ignore:

    "default"       of a field, where it is plain data
    "readOnly"      a field that the class works out by itself
    "writeOnly"     a field that only the constructor takes
    "x-kind"        `tuple` or `frozenset`, where an array is no list and no set
    "x-names"       the names of a tuple's places
    "x-bytes"       how many bytes there may be
    "x-keys"        what the keys of a dict are, where they are no texts
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
from envweave.codec.records import StructSpec
from envweave.codec.scalars import ArraySpec
from envweave.types.results import same
from envweave.wire.schema_read import words_for


def schema_of(spec: Spec) -> dict[str, Any]:
    """Return the JSON Schema of a spec, from which `spec_of` makes it again."""
    schema = spec.json_schema()
    _Annotator(schema.get("$defs", {})).annotate(spec, schema)
    return schema


class _Annotator:
    """Goes down a spec and its schema side by side, and adds what the schema leaves out."""

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
                self._fixed(spec, schema)
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
            case AgentsSpec(agents=agents):
                self._each(agents, schema["properties"])
            case UnionSpec(options=options):
                for option, one in zip(options, schema["anyOf"], strict=True):
                    self.annotate(option, one)
            case DataclassSpec():
                self._record(spec, schema)
            case _:
                space = words_for(spec, schema_of)
                if space is not None:
                    schema["x-space"] = space

    def _each(self, specs: Mapping[str, Spec], schemas: dict[str, Any]) -> None:
        for name, spec in specs.items():
            self.annotate(spec, schemas[name])

    def _fixed(self, spec: TupleSpec, schema: dict[str, Any]) -> None:
        places = schema.get("prefixItems", [])
        for item, one in zip(spec.items, places, strict=True):
            self.annotate(item, one)
        if spec.names:
            schema["title"] = spec.kind.__name__
            schema["x-names"] = list(spec.names)
            for name, place in zip(spec.names, places, strict=True):
                if name in spec.optional and _is_plain(spec.optional[name]):
                    place["default"] = to_plain(spec.optional[name])

    def _defined(self, schema: dict[str, Any]) -> dict[str, Any] | None:
        """The schema that one refers to, or itself; nothing if that was gone through before."""
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


def _defaults(cls: Any) -> dict[str, Any]:
    """The defaults of a dataclass that can be told, as plain data."""
    told = {}
    for name, field in cls.__dataclass_fields__.items():
        default = field.default
        if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            default = _made_alike(field.default_factory)
        if default is not dataclasses.MISSING and _is_plain(default):
            told[name] = to_plain(default)
    return told


def _struct_defaults(cls: Any) -> dict[str, Any]:
    """The defaults of a struct that can be told, as plain data."""
    told = {}
    for field in msgspec.structs.fields(cls):
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = _made_alike(field.default_factory)
        is_known = default is not msgspec.NODEFAULT and default is not dataclasses.MISSING
        if is_known and _is_plain(default):
            told[field.name] = to_plain(default)
    return told


def _made_alike(factory: Any) -> Any:
    """What a default factory makes each time, if it is always the same."""
    try:
        one, other = factory(), factory()
        return one if same(one, other) else dataclasses.MISSING
    except Exception:  # noqa: BLE001 - an author's factory
        return dataclasses.MISSING


def _is_plain(value: Any) -> bool:
    """Whether JSON has a word for it, so that every reader knows what is meant."""
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
    said: dict[str, Any] = {}
    if spec.dtype is not None:
        said["dtype"] = spec.dtype.name if spec.dtype.isnative else spec.dtype.str
    if spec.shape is not None:
        said["shape"] = list(spec.shape)
    for name, bound in (("low", spec.low), ("high", spec.high)):
        if bound is not None:
            said[name] = _bound(bound)
    if spec.clips:
        said["clips"] = True
    return said


def _bound(bound: Any) -> Any:
    """A bound as a number or nested lists; null where it is infinite."""
    array = np.asarray(bound)
    if array.ndim and array.size and bool((array == array.flat[0]).all()):
        array = array.flat[0].reshape((1,) * array.ndim)
    return _finite(array.tolist())


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and math.isinf(value) else value

"""Rebuilds the author's objects from plain data.

It is lenient where a spec is strict: it rebuilds what the author's code made, even if that does not
fit the spec. A value that does not fit its hint stays plain. Constructors do not run again.
"""

from __future__ import annotations

import base64
import binascii
import collections
import dataclasses
import datetime
import decimal
import enum
import pathlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import msgspec
import numpy as np

from envweave.codec import AgentsSpec, AnySpec, Mismatch, Spec
from envweave.codec.containers import (
    DataclassSpec,
    DictSpec,
    ListSpec,
    PydanticSpec,
    RecursiveSpec,
    TupleSpec,
    UnionSpec,
)
from envweave.codec.hints import Declared
from envweave.codec.pydantic_models import validate
from envweave.codec.records import StructSpec
from envweave.codec.scalars import ArraySpec, EnumSpec, InstanceSpec, StrSpec


def best_match(options: Sequence[Spec], plain: Any) -> int | None:
    """Return the index of the option that a value fits; of the nearest record if none does."""
    for index, option in enumerate(options):
        if fits(option, plain):
            return index
    if type(plain) is not dict:
        return None
    overlaps = [
        (option.overlap(plain), -index)
        for index, option in enumerate(options)
        if isinstance(option, DataclassSpec | PydanticSpec)
    ]
    overlap, index = max(overlaps, default=(0, 0))
    return -index if overlap else None


def fits(spec: Spec, plain: Any) -> bool:
    """Whether a value of this spec can look like this as plain data."""
    match spec:
        case AnySpec():
            return True
        case DataclassSpec() | PydanticSpec():
            return _is_record(spec, plain)
        case RecursiveSpec():
            return spec.record is not None and fits(spec.record, plain)
        case ListSpec(item=item):
            return type(plain) is list and all(fits(item, one) for one in plain)
        case TupleSpec(items=items):
            return type(plain) is list and len(plain) == len(items) and all(map(fits, items, plain))
        case DictSpec(fields=None, item=item):
            return type(plain) is dict and all(fits(item, one) for one in plain.values())
        case DictSpec(fields=fields, optional=optional) if fields is not None:
            return (
                type(plain) is dict
                and plain.keys() <= fields.keys()
                and fields.keys() - optional <= plain.keys()
                and all(fits(fields[name], one) for name, one in plain.items())
            )
        case AgentsSpec(agents=agents):
            return type(plain) is dict and plain.keys() <= agents.keys()
        case UnionSpec(options=options):
            return any(fits(option, plain) for option in options)
        case ArraySpec():
            return isinstance(plain, np.ndarray | list) and spec.contains(plain)
        case InstanceSpec():
            return not isinstance(plain, bool | int | float | None)
    return spec.contains(plain)


def _is_record(spec: DataclassSpec | PydanticSpec, plain: Any) -> bool:
    fields = {**spec.fields, **spec.derived}
    return (
        type(plain) is dict
        and plain.keys() == fields.keys()
        and all(fits(fields[name], one) for name, one in plain.items())
    )


Rebuilder = Callable[[Any], Any]

_BY_TEXT = (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID)


def rebuilder(spec: Spec) -> Rebuilder | None:
    """Return what makes the author's objects from plain data; `None` if there is nothing to do."""
    return _Compiler().compile(spec)


@final
class ObservationRebuilder:
    """Makes observations, of one agent or several. It is a `Rebuild` (`results.py`)."""

    def __init__(self, spec: Spec) -> None:
        self._agents: dict[str, Rebuilder] | None = None
        if isinstance(spec, AgentsSpec):
            self._agents = {name: rebuilder(one) or _identity for name, one in spec.agents.items()}
        else:
            self._one = rebuilder(spec) or _identity

    def __call__(self, plain: Any) -> Any:
        """Return the observation; with several agents, a dict of them by agent."""
        if self._agents is None:
            return self._one(plain)
        if type(plain) is not dict:
            return plain
        find = self._agents.get
        return {name: find(name, _identity)(one) for name, one in plain.items()}

    def one(self, agent_id: str, plain: Any) -> Any:
        """Return the observation of one agent."""
        if self._agents is None:
            return self._one(plain)
        return self._agents.get(agent_id, _identity)(plain)


def _identity(plain: Any) -> Any:
    return plain


@final
class _Compiler:
    """Makes the rebuilding functions of one spec."""

    def __init__(self) -> None:
        self._records: dict[int, list[Rebuilder]] = {}

    def compile(self, spec: Spec) -> Rebuilder | None:
        match spec:
            case Declared(spec=declared):
                return self.compile(declared)
            case DataclassSpec():
                return self._record(spec)
            case PydanticSpec():
                return self._model(spec)
            case RecursiveSpec():
                return self._recursion(spec)
            case ArraySpec():
                return _array(spec)
            case ListSpec():
                return self._list(spec)
            case TupleSpec():
                return self._tuple(spec)
            case DictSpec(fields=None):
                return self._dict(spec)
            case DictSpec(fields=fields) if fields is not None:
                return _dict_fields(self._parts(fields))
            case AgentsSpec(agents=agents):
                return _dict_fields(self._parts(agents))
            case UnionSpec(options=options):
                return self._union(options)
            case EnumSpec(values=values):
                has_members = any(isinstance(value, enum.Enum | tuple) for value in values)
                return _enum(spec) if has_members else None
            case StrSpec(binary=True):
                return _binary
            case InstanceSpec(cls=cls) | StructSpec(cls=cls):
                return _instance(cls)
        return None

    def _parts(self, specs: Mapping[str, Spec]) -> dict[str, Rebuilder]:
        compiled = {name: self.compile(spec) for name, spec in specs.items()}
        return {name: one for name, one in compiled.items() if one is not None}

    def _record(self, spec: DataclassSpec) -> Rebuilder:
        holder: list[Rebuilder] = []
        self._records[id(spec)] = holder
        parts = self._parts({**spec.fields, **spec.derived})
        holder.append(_record(spec.cls, parts))
        return holder[0]

    def _model(self, spec: PydanticSpec) -> Rebuilder:
        holder: list[Rebuilder] = []
        self._records[id(spec)] = holder
        holder.append(_model(spec, self._parts(spec.fields)))
        return holder[0]

    def _recursion(self, spec: RecursiveSpec) -> Rebuilder | None:
        if spec.record is None:
            return None
        holder = self._records.setdefault(id(spec.record), [])

        def rebuild(plain: Any) -> Any:
            return holder[0](plain) if holder else plain

        return rebuild

    def _list(self, spec: ListSpec) -> Rebuilder | None:
        item, kind = self.compile(spec.item), spec.kind
        if item is None and kind is list:
            return None

        def rebuild(plain: Any) -> Any:
            if type(plain) is not list:
                return plain
            made = plain if item is None else [item(one) for one in plain]
            try:
                return kind(made)
            except TypeError:  # a set of unhashable values
                return made

        return rebuild

    def _tuple(self, spec: TupleSpec) -> Rebuilder:
        items = [self.compile(item) or _identity for item in spec.items]
        make, names = spec.make, spec.names

        def rebuild(plain: Any) -> Any:
            if type(plain) is dict and len(plain) == len(names) and all(n in plain for n in names):
                plain = [plain[name] for name in names]
            if type(plain) is not list or len(plain) != len(items):
                return plain
            return make([item(one) for item, one in zip(items, plain, strict=True)])

        return rebuild

    def _dict(self, spec: DictSpec) -> Rebuilder | None:
        item, key = self.compile(spec.item), spec.read_key
        if spec.exact is dict:
            return None
        item = item or _identity

        def rebuild(plain: Any) -> Any:
            if type(plain) is not dict:
                return plain
            try:
                return {key(name): item(one) for name, one in plain.items()}
            except (Mismatch, TypeError):
                return {name: item(one) for name, one in plain.items()}

        return rebuild

    def _union(self, options: list[Spec]) -> Rebuilder | None:
        compiled = [self.compile(option) for option in options]
        if not any(compiled):
            return None
        takes_none = any(
            isinstance(option, EnumSpec) and None in option.values for option in options
        )
        real = [
            (option, one)
            for option, one in zip(options, compiled, strict=True)
            if not (isinstance(option, EnumSpec) and option.values == [None])
        ]
        if takes_none and len(real) == 1:
            (only,) = (one for _, one in real)

            def rebuild_or_none(plain: Any) -> Any:
                return None if plain is None or only is None else only(plain)

            return rebuild_or_none

        def rebuild(plain: Any) -> Any:
            best = best_match(options, plain)
            one = None if best is None else compiled[best]
            return plain if one is None else one(plain)

        return rebuild


def _dict_fields(parts: Mapping[str, Rebuilder]) -> Rebuilder | None:
    """Return what rebuilds these keys of a dict."""
    if not parts:
        return None
    items = tuple(parts.items())

    def rebuild(plain: Any) -> Any:
        if type(plain) is not dict:
            return plain
        made = dict(plain)
        for name, one in items:
            if name in made:
                made[name] = one(made[name])
        return made

    return rebuild


def _record(cls: Any, parts: Mapping[str, Rebuilder]) -> Rebuilder:
    fields = dataclasses.fields(cls)
    names = frozenset(field.name for field in fields)
    has_dict = not any("__slots__" in base.__dict__ for base in cls.__mro__[:-1])
    items = tuple(parts.items())
    new, count = object.__new__, len(names)

    def rebuild(plain: Any) -> Any:
        if type(plain) is not dict:
            return plain
        if len(plain) != count or not names.issuperset(plain):
            return _other(plain)
        made: Any = new(cls)
        fields = made.__dict__
        fields.update(plain)
        for name, one in items:
            fields[name] = one(fields[name])
        return made

    def _other(plain: dict[Any, Any]) -> Any:
        """Make it if fields are missing, or if there are more, as in a subclass."""
        made: Any = new(cls)
        for name, value in plain.items():
            one = parts.get(name)
            _put(made, name, value if one is None else one(value))
        for field in fields:
            if field.name not in plain:
                if field.default_factory is not dataclasses.MISSING:
                    _put(made, field.name, field.default_factory())
                elif field.default is not dataclasses.MISSING:
                    _put(made, field.name, field.default)
        return made

    return rebuild if has_dict else lambda plain: _other(plain) if type(plain) is dict else plain


def _model(spec: PydanticSpec, parts: Mapping[str, Rebuilder]) -> Rebuilder:
    cls, known, derived = spec.cls, spec.fields.keys(), spec.derived

    def rebuild(plain: Any) -> Any:
        if type(plain) is not dict:
            return plain
        fields = {
            name: parts[name](one) if name in parts else one
            for name, one in plain.items()
            if name not in derived
        }
        try:
            return validate(cls, fields)
        except Exception:  # noqa: BLE001 - what the author's code returned may be invalid
            if not fields.keys() > known:
                return plain
            made = cls.model_construct(**fields)
            for name, one in fields.items():
                _put(made, name, one)  # including fields of a subclass
            return made

    return rebuild


def _put(made: Any, name: Any, value: Any) -> None:
    if isinstance(name, str) and not name.startswith("__"):
        try:
            object.__setattr__(made, name, value)  # works on frozen classes too
        except (AttributeError, TypeError):
            return  # a class with slots has room for its own fields only


def _array(spec: ArraySpec) -> Rebuilder:
    dtype = spec.dtype

    def rebuild(plain: Any) -> Any:
        if type(plain) is not list and type(plain) not in (int, float, bool):
            return plain
        try:
            made = np.array(plain, dtype)
        except (ValueError, TypeError, OverflowError, RuntimeError):
            return plain
        return plain if made.dtype.kind == "O" else made

    return rebuild


def _enum(spec: EnumSpec) -> Rebuilder:
    def rebuild(plain: Any) -> Any:
        try:
            return spec.read(plain)
        except Mismatch:
            return plain

    return rebuild


def _binary(plain: Any) -> Any:
    if not isinstance(plain, str):
        return plain
    try:
        return base64.b64decode(plain, validate=True)
    except (binascii.Error, ValueError):
        return plain


def _instance(cls: Any) -> Rebuilder | None:
    """What makes objects of some classes that the codec does not know."""
    if issubclass(cls, np.generic | collections.deque | pathlib.PurePath):
        make: Rebuilder = cls
    elif issubclass(cls, msgspec.Struct) or cls in (*_BY_TEXT, datetime.datetime):

        def make(plain: Any) -> Any:
            return msgspec.convert(plain, cls)

    else:
        return None

    def rebuild(plain: Any) -> Any:
        try:
            return make(plain)
        except Exception:  # noqa: BLE001 - an author's class; what it refuses stays plain
            return plain

    return rebuild

"""Specs as tables: one row per field, with its type and the allowed values."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from envweave.codec import AgentsSpec, AnySpec, Spec
from envweave.codec.containers import (
    NOT_SHOWN,
    DataclassSpec,
    DictSpec,
    ListSpec,
    PydanticSpec,
    RecursiveSpec,
    TupleSpec,
    UnionSpec,
    members_of,
)
from envweave.codec.hints import Declared
from envweave.codec.pydantic_models import carries_outcome
from envweave.codec.records import StructSpec
from envweave.codec.scalars import (
    ArraySpec,
    BoolSpec,
    EnumSpec,
    FloatSpec,
    InstanceSpec,
    IntSpec,
    StrSpec,
)
from envweave.types import Action, Observation

_FEW = 6


@dataclass(frozen=True, slots=True)
class Field:
    """One field of an action or an observation.

    Attributes:
        path: Path of the field; empty if the whole value is one field.
        type: Short name of its type.
        allowed: Its bounds or values; empty if every value of the type is allowed.
    """

    path: str
    type: str
    allowed: str


def fields_of(spec: Spec) -> list[Field]:
    """Return the fields of a spec, without those that every action and observation has."""
    return list(_walk(spec, ""))


def same_for_all(spec: AgentsSpec) -> bool:
    """Whether every agent has the same spec."""
    return len({repr(one) for one in spec.agents.values()}) == 1


def _walk(spec: Spec, path: str) -> Iterator[Field]:
    named: Iterable[tuple[str, Spec]] = ()
    match spec:
        case Declared(spec=declared):
            named = [(path, declared)]
        case DataclassSpec() | PydanticSpec():
            is_ours = issubclass(spec.cls, Action | Observation) or carries_outcome(spec.cls)
            hidden = NOT_SHOWN if is_ours else frozenset()
            named = [(_join(path, n), s) for n, s in spec.fields.items() if n not in hidden]
        case DictSpec(fields=dict() as fields):
            named = [(_join(path, name), one) for name, one in fields.items()]
        case TupleSpec(items=items):
            named = [(f"{path}[{index}]", one) for index, one in enumerate(items)]
        case StructSpec(fields=fields):
            named = [(_join(path, name), one) for name, one in fields.items()]
        case UnionSpec() if len(members := members_of(spec)) > 1:
            yield Field(path, _type(spec), "one of them")
            for name, option in members.items():
                fields_inside = list(_walk(option, _within(path, name)))
                yield from fields_inside or [Field(_within(path, name), "no fields", "")]
        case AgentsSpec(agents=agents) if same_for_all(spec):
            named = [(path, next(iter(agents.values())))]
        case AgentsSpec(agents=agents):
            named = [(_join(path, name), one) for name, one in agents.items()]
        case _:
            yield Field(path, _type(spec), _allowed(spec))
    for name, one in named:
        yield from _walk(one, name)


def _within(path: str, member: str) -> str:
    """Return the path of a member of a union."""
    return f"{path}({member})" if path else member


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _type(spec: Spec) -> str:
    match spec:
        case IntSpec():
            return "int"
        case FloatSpec():
            return "float"
        case BoolSpec():
            return "bool"
        case StrSpec(binary=binary):
            return "bytes" if binary else "str"
        case EnumSpec(values=[None]):
            return "None"
        case EnumSpec():
            return "choice"
        case ArraySpec(shape=shape, dtype=dtype):
            size = "of any shape" if shape is None else "×".join(map(str, shape)) or "scalar"
            return f"array {size}" + ("" if dtype is None else f" {dtype}")
        case ListSpec(item=item):
            kind = spec.kind.__name__
            return kind if isinstance(item, AnySpec) else f"{kind} of {_type(item)}"
        case DictSpec(fields=None, item=item):
            return "dict" if isinstance(item, AnySpec) else f"dict of {_type(item)}"
        case UnionSpec(options=options):
            return " or ".join(dict.fromkeys(map(_type, options)))
        case DataclassSpec(cls=cls) | PydanticSpec(cls=cls) | StructSpec(cls=cls):
            return cls.__name__
        case RecursiveSpec(cls=cls) | InstanceSpec(cls=cls):
            return cls.__name__
        case DictSpec(name=name):
            return name
        case TupleSpec(items=items):
            return f"({', '.join(map(_type, items))})"
        case AnySpec():
            return "anything"
    return type(spec).__name__.lower()


def _allowed(spec: Spec) -> str:
    match spec:
        case IntSpec(multiple_of=unit) | FloatSpec(multiple_of=unit):
            multiples = "" if unit is None else f"multiples of {unit}"
            return ", ".join(filter(None, [_range(spec.low, spec.high), multiples]))
        case StrSpec(length=length, pattern=pattern):
            limit = "" if length.is_open else f"a length of {length}"
            return ", ".join(filter(None, [limit, "" if pattern is None else pattern.text]))
        case EnumSpec(values=values) if values != [None]:
            return ", ".join(repr(v.value if isinstance(v, enum.Enum) else v) for v in values)
        case ArraySpec():
            return _array_range(spec)
        case ListSpec(item=item) | DictSpec(fields=None, item=item):
            inside = _allowed(item)
            limit = "" if spec.length.is_open else f"a length of {spec.length}"
            return ", ".join(filter(None, [limit, f"each {inside}" if inside else ""]))
        case UnionSpec(options=options):
            return "; ".join(filter(None, map(_allowed, options)))
    return ""


def _array_range(spec: ArraySpec) -> str:
    if spec.low is None and spec.high is None:
        return ""
    low = np.ravel(-np.inf if spec.low is None else spec.low)
    high = np.ravel(np.inf if spec.high is None else spec.high)
    low, high = np.broadcast_arrays(low, high)
    each = [_range(*ends) or "any" for ends in zip(low.tolist(), high.tolist(), strict=True)]
    if len(set(each)) == 1:
        return "" if each[0] == "any" else each[0]
    if len(each) <= _FEW:
        return ", ".join(f"[{index}] {one}" for index, one in enumerate(each))
    return f"within {_range(low.min().item(), high.max().item()) or 'no bounds'}, by element"


def _range(low: Any, high: Any) -> str:
    has_low = low is not None and math.isfinite(low)
    has_high = high is not None and math.isfinite(high)
    if has_low and has_high:
        return f"{low:.4g} to {high:.4g}"
    if has_low:
        return f"at least {low:.4g}"
    return f"at most {high:.4g}" if has_high else ""

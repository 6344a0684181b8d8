"""Specs to Gymnasium spaces and back, and conversion of their values.

A `Bridge` is built once from a spec, so that a step does no type checks. Importing this module
raises `MissingExtraError` where Gymnasium is not installed.
"""

from __future__ import annotations

import copy
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from envweave.codec.containers import (
    DataclassSpec,
    DictSpec,
    ListSpec,
    TupleSpec,
    UnionSpec,
    shown_fields,
)
from envweave.codec.hints import Declared
from envweave.codec.pydantic_models import PydanticSpec
from envweave.codec.scalars import ArraySpec, BoolSpec, EnumSpec, FloatSpec, IntSpec, StrSpec
from envweave.codec.spec import AgentsSpec, Length, Mismatch, Spec, short_repr
from envweave.errors import MissingExtraError, SpecError, suggest
from envweave.types import Action

try:
    from gymnasium import spaces
except ImportError:
    raise MissingExtraError.for_extra("Gymnasium is not installed.", "gym") from None


@final
class SpaceSpec(Spec):
    """The values of a Gymnasium space, sampled and checked by the space itself.

    Attributes:
        space: The space. Its own random state is never touched.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.space = space
        self._drawn_from = copy.deepcopy(space)

    def read(self, value: Any) -> Any:
        """Take any value that the space contains."""
        try:
            fits = self.space.contains(value)
        except Exception as error:
            # A space may raise on a value of an unexpected type.
            raise Mismatch(f"{short_repr(value)} is not in {self.space!r}: {error}") from error
        if not fits:
            raise Mismatch(f"{short_repr(value)} is not in {self.space!r}")
        return value

    def sample(self, rng: np.random.Generator) -> Any:
        """Draw as the space does."""
        self._drawn_from.seed(int(rng.integers(2**31)))
        return self._drawn_from.sample()

    def json_schema(self) -> dict[str, Any]:
        """Describe strings by their length, anything else by its `repr`."""
        if isinstance(self.space, spaces.Text):
            lengths = {"minLength": self.space.min_length, "maxLength": self.space.max_length}
            return {"type": "string", **lengths}
        if self.space.dtype == np.dtype(str):  # MiniGrid's missions
            return {"type": "string"}
        return {"description": repr(self.space)}

    def __repr__(self) -> str:
        return f"SpaceSpec({self.space!r})"


@final
class AnyText(spaces.Text):
    """Every string, of any length and script. It samples short ASCII ones."""

    def __init__(self) -> None:
        letters = string.ascii_letters + string.digits + " "
        super().__init__(max_length=64, min_length=0, charset=letters)

    def contains(self, x: Any) -> bool:
        """Whether it is a string."""
        return isinstance(x, str)

    def __eq__(self, other: object, /) -> bool:
        return isinstance(other, AnyText)

    def __hash__(self) -> int:
        return hash(AnyText)

    def __repr__(self) -> str:
        return "AnyText()"


@final
class SpecText(spaces.Text):
    """The strings of a spec with limits, sampled and checked by the spec itself.

    Attributes:
        spec: The spec.
    """

    def __init__(self, spec: StrSpec) -> None:
        self.spec = spec
        letters = string.ascii_letters + string.digits + " "
        low, high = spec.length.low, spec.length.high
        super().__init__(
            max_length=low + 64 if high is None else high, min_length=low, charset=letters
        )

    def sample(self, mask: Any = None, probability: Any = None) -> str:  # noqa: ARG002 - Gymnasium's
        """Draw as the spec does; a mask has no effect."""
        drawn: str = self.spec.sample(self.np_random)
        return drawn

    def contains(self, x: Any) -> bool:
        """Whether the spec takes it."""
        return isinstance(x, str) and self.spec.contains(x)

    def __eq__(self, other: object, /) -> bool:
        return isinstance(other, SpecText) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"SpecText({self.spec!r})"


@final
class SizedSequence(spaces.Sequence):
    """A `Sequence` with length limits.

    Attributes:
        length: The limits.
    """

    def __init__(self, space: spaces.Space[Any], length: Length) -> None:
        super().__init__(space)
        self.length = length

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        """Draw a length within the limits, and that many values."""
        if mask is None and probability is None:
            mask = (self.length.draw(self.np_random, 4), None)
        return super().sample(mask, probability)

    def contains(self, x: Any) -> bool:
        """Whether it is a sequence whose length is within the limits."""
        if not super().contains(x):
            return False
        try:
            self.length.check(x)
        except Mismatch:
            return False
        return True

    def __eq__(self, other: object, /) -> bool:
        same = isinstance(other, SizedSequence) and self.length == other.length
        return same and bool(super().__eq__(other))

    def __hash__(self) -> int:
        return hash((SizedSequence, self.length))

    def __repr__(self) -> str:
        return f"SizedSequence({self.feature_space!r}, length={self.length})"


_INT64 = np.iinfo(np.int64)
_MAX_MULTIPLES = 10_000


@final
@dataclass(frozen=True, slots=True)
class Bridge:
    """A spec's Gymnasium space, and the conversion of values in both directions.

    Attributes:
        space: The space of the values that the spec allows.
        encode: Converts a value of the spec to one of the space, sharing nothing with it. Raises
            `Mismatch` if the value does not fit the spec.
        decode: Converts a value of the space to one of the spec. Raises `Mismatch` if the value
            does not fit.
    """

    space: spaces.Space[Any]
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def to_space(spec: Spec) -> Any:
    """Return the Gymnasium space of the values that `spec` allows.

    A choice and a bool become `Discrete` by index, a bounded int `Discrete` with a start, other
    numbers a `Box` of one item. Arrays become `MultiBinary` (bools, and int8 of 0 and 1),
    `MultiDiscrete` (int64 with both bounds) or `Box`. A list becomes a `Sequence`, a union
    `OneOf`. A dataclass becomes a `Dict` of the author's own fields, also where it has only one;
    but an `Action` of one field becomes that field's space, since few trainers act with a `Dict`.

    Raises:
        SpecError: Gymnasium has no space for a part of it, which is named.
    """
    return bridge(spec).space


def from_space(space: Any) -> Spec:
    """Return the spec of a Gymnasium space's values.

    Values of a float `Box` may lie beyond its bounds, as in Gymnasium, where the environment
    clips them. A space with no exact spec gets one that samples and checks with the space
    itself.

    Raises:
        SpecError: It is not a Gymnasium space.
    """
    match space:
        case spaces.Discrete():
            start = int(space.start)
            return IntSpec(start, start + int(space.n) - 1)
        case spaces.Box():
            low = space.low if space.bounded_below.any() else None
            high = space.high if space.bounded_above.any() else None
            return ArraySpec(space.shape, space.dtype, low, high, clips=space.dtype.kind == "f")
        case spaces.MultiBinary():
            return ArraySpec(space.shape, space.dtype, 0, 1)
        case spaces.MultiDiscrete():
            return ArraySpec(space.shape, space.dtype, space.start, space.start + (space.nvec - 1))
        case AnyText():
            return StrSpec()
        case SpecText():
            return space.spec
        case SizedSequence():
            return ListSpec(from_space(space.feature_space), kind=tuple, length=space.length)
        case spaces.Dict():
            return DictSpec(fields={key: from_space(one) for key, one in space.spaces.items()})
        case spaces.Tuple():
            return TupleSpec(from_space(one) for one in space.spaces)
        case spaces.Space():
            return SpaceSpec(space)
    raise SpecError(f"{space!r} is not a Gymnasium space.")


def bridge(spec: Spec, name: str = "value") -> Bridge:
    """Return the bridge of a spec, called `name` in messages.

    Raises:
        SpecError: Gymnasium has no space for a part of it, which is named.
    """
    match spec:
        case Declared(spec=declared):
            return bridge(declared, name)
        case SpaceSpec(space=space):
            return Bridge(space, spec.read, spec.read)
        case BoolSpec():
            return _by_index(spec, [False, True])
        case EnumSpec(values=values):
            return _by_index(spec, values)
        case IntSpec():
            return _integer(spec, name)
        case FloatSpec(multiple_of=None):
            return _real(spec)
        case StrSpec(binary=False):
            return Bridge(_text(spec), spec.read, spec.read)
        case ArraySpec(shape=shape, dtype=dtype) if shape is not None and dtype is not None:
            if dtype.kind in "biuf":
                return _array(spec, shape, dtype)
        case ListSpec(item=item, kind=kind) if kind in (list, tuple):
            return _listing(spec, bridge(item, f"{name}[…]"))
        case TupleSpec(items=items):
            return _fixed(spec, [bridge(one, f"{name}[{i}]") for i, one in enumerate(items)])
        case DictSpec(fields=fields, optional=optional) if fields is not None and not optional:
            return _keyed({key: bridge(one, f"{name}[{key!r}]") for key, one in fields.items()})
        case AgentsSpec(agents=agents):
            return _keyed({key: bridge(one, f"{name}[{key!r}]") for key, one in agents.items()})
        case DataclassSpec() | PydanticSpec():
            return _record(spec, name)
        case UnionSpec(options=options):
            return _either([bridge(option, name) for option in options])
    raise SpecError(
        f"{name}: {short_repr(spec)} has no Gymnasium space. Annotate it with a number, a bool, a "
        "Literal, text, or an array with Bounds(shape=…, dtype=…), or set the spec yourself."
    )


def _text(spec: StrSpec) -> spaces.Space[Any]:
    """Return the space of strings; with a pattern it checks values but cannot sample them."""
    return AnyText() if spec.exact is str else SpecText(spec)


def _by_index(spec: Spec, values: Sequence[Any]) -> Bridge:
    index = IntSpec(0, len(values) - 1)
    # 1 == True, so the key includes the type.
    index_of = {(type(value), value): np.int64(i) for i, value in enumerate(values)}

    def encode(value: Any) -> np.int64:
        value = spec.read(value)
        return index_of[type(value), value]

    return Bridge(spaces.Discrete(len(values)), encode, lambda i: values[index.read(i)])


def _integer(spec: IntSpec, name: str) -> Bridge:
    low, high = spec.low, spec.high
    if spec.multiple_of is not None:
        if low is None or high is None or (high - low) // spec.multiple_of > _MAX_MULTIPLES:
            raise SpecError(f"{name}: {spec!r} has no Gymnasium space. Give it both bounds.")
        return _by_index(spec, [one for one in range(low, high + 1) if spec.contains(one)])
    if min(low or 0, high or 0) < _INT64.min or max(low or 0, high or 0) > _INT64.max:
        raise SpecError(f"{name}: {spec!r} has no Gymnasium space; it reaches beyond int64.")
    if low is not None and high is not None and high - low < _INT64.max:
        discrete = spaces.Discrete(high - low + 1, start=low)
        return Bridge(discrete, lambda value: np.int64(spec.read(value)), spec.read)

    def encode(value: Any) -> np.ndarray[Any, Any]:
        read = spec.read(value)
        if not _INT64.min <= read <= _INT64.max:
            raise Mismatch(f"{read!r} does not fit into int64")
        return np.array([read], np.int64)

    box = _box(low, high, (1,), np.dtype(np.int64))
    return Bridge(box, encode, lambda value: spec.read(_only_item(value)))


def _real(spec: FloatSpec) -> Bridge:
    # One item rather than no dimension, which few trainers support.
    box = _box(spec.low, spec.high, (1,), np.dtype(np.float64))
    return Bridge(
        box,
        lambda value: np.array([spec.read(value)], np.float64),
        lambda value: spec.read(_only_item(value)),
    )


def _only_item(value: Any) -> Any:
    is_one = isinstance(value, np.ndarray) and value.shape == (1,)
    return value[0] if is_one else value


def _box(low: Any, high: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> spaces.Box[Any]:
    """Return a box; an end of `None` is open."""
    # Gymnasium samples near 0 towards an infinite end, and overflows at int64's own; for
    # unsigned dtypes it has no infinite end.
    open_low, open_high = (0, np.iinfo(dtype).max) if dtype.kind == "u" else (-np.inf, np.inf)
    return spaces.Box(
        open_low if low is None else np.full(shape, low, dtype),
        open_high if high is None else np.full(shape, high, dtype),
        shape,
        dtype.type,
    )


def _array(spec: ArraySpec, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Bridge:
    has_items = bool(shape) and all(shape)
    if dtype.kind == "b":
        bits = ArraySpec(shape, np.int8, 0, 1)
        return Bridge(
            _multi_binary(shape) if has_items else spaces.Box(0, 1, shape, np.int8),
            lambda value: np.array(spec.read(value), np.int8),
            lambda value: bits.read(value).astype(bool),
        )

    def encode(value: Any) -> np.ndarray[Any, Any]:
        return np.array(spec.read(value), dtype)

    # Bounds given as plain numbers: a `Box` of 0 and 1 has arrays, and stays one.
    bounds_are_plain = np.ndim(spec.low) == 0 and np.ndim(spec.high) == 0
    if has_items and dtype == np.int8 and bounds_are_plain and (spec.low, spec.high) == (0, 1):
        return Bridge(_multi_binary(shape), encode, spec.read)
    if has_items and dtype == np.int64 and spec.low is not None and spec.high is not None:
        low, high = (np.broadcast_to(end, shape).astype(np.int64) for end in (spec.low, spec.high))
        if np.all(high.astype(float) - low.astype(float) < 2.0**62):
            counts = spaces.MultiDiscrete(high - low + 1, start=low)
            return Bridge(counts, encode, spec.read)
    return Bridge(_box(spec.low, spec.high, shape, dtype), encode, spec.read)


def _multi_binary(shape: tuple[int, ...]) -> spaces.MultiBinary:
    # Gymnasium treats MultiBinary(4) and MultiBinary((4,)) as different spaces.
    return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)


def _listing(spec: ListSpec, item: Bridge) -> Bridge:
    def encode(value: Any) -> tuple[Any, ...]:
        return tuple(_each(spec.read(value), None, lambda _, one: item.encode(one)))

    def decode(value: Any) -> Any:
        return spec.read(_each(value, None, lambda _, one: item.decode(one)))

    if not spec.length.is_open:
        return Bridge(SizedSequence(item.space, spec.length), encode, decode)
    return Bridge(spaces.Sequence(item.space), encode, decode)


def _fixed(spec: TupleSpec, items: Sequence[Bridge]) -> Bridge:
    def encode(value: Any) -> tuple[Any, ...]:
        return tuple(_each(spec.read(value), len(items), lambda i, one: items[i].encode(one)))

    def decode(value: Any) -> Any:
        return spec.read(_each(value, len(items), lambda i, one: items[i].decode(one)))

    return Bridge(spaces.Tuple([item.space for item in items]), encode, decode)


def _each(values: Any, length: int | None, turn: Callable[[int, Any], Any]) -> list[Any]:
    if not isinstance(values, list | tuple) or length not in (None, len(values)):
        expected = "a list" if length is None else f"a tuple of {length}"
        raise Mismatch(f"{short_repr(values)} is not {expected}")
    turned = []
    for index, one in enumerate(values):
        try:
            turned.append(turn(index, one))
        except Mismatch as mismatch:
            raise mismatch.under(f"[{index}]") from None
    return turned


def _keyed(fields: Mapping[str, Bridge]) -> Bridge:
    def encode(value: Any) -> dict[str, Any]:
        return _turn_keys(value, fields, lambda key, one: fields[key].encode(one))

    def decode(value: Any) -> dict[str, Any]:
        return _turn_keys(value, fields, lambda key, one: fields[key].decode(one))

    return Bridge(spaces.Dict({key: one.space for key, one in fields.items()}), encode, decode)


def _turn_keys(value: Any, known: Iterable[str], turn: Callable[[str, Any], Any]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise Mismatch(f"{short_repr(value)} is not a dict")
    for key in value:
        if key not in known:
            raise Mismatch(f"unknown key.{suggest(str(key), known)}").under(f"[{key!r}]")
    turned = {}
    for key in known:
        if key not in value:
            raise Mismatch("this key is missing").under(f"[{key!r}]")
        try:
            turned[key] = turn(key, value[key])
        except Mismatch as mismatch:
            raise mismatch.under(f"[{key!r}]") from None
    return turned


def _record(spec: DataclassSpec | PydanticSpec, name: str) -> Bridge:
    fields = {
        field: bridge(one, f"{name}.{field}")
        for field, one in shown_fields(spec).items()
        # Optional fields that may hold anything are left out, such as `metadata`.
        if not (field in spec.optional and (one.exact is dict or not one.can_sample))
    }
    if issubclass(spec.cls, Action) and len(fields) == 1:
        return _only_field(spec, *fields.items())

    def encode(value: Any) -> dict[str, Any]:
        if not isinstance(value, spec.cls):
            value = spec.read(value)
        encoded = {}
        for field, one in fields.items():
            try:
                encoded[field] = one.encode(getattr(value, field))
            except Mismatch as mismatch:
                raise mismatch.under(f".{field}") from None
        return encoded

    def decode(value: Any) -> Any:
        return spec.read(_turn_keys(value, fields, lambda key, one: fields[key].decode(one)))

    return Bridge(spaces.Dict({key: one.space for key, one in fields.items()}), encode, decode)


def _only_field(spec: DataclassSpec | PydanticSpec, item: tuple[str, Bridge]) -> Bridge:
    field, one = item

    def encode(value: Any) -> Any:
        return one.encode(getattr(spec.read(value), field))

    def decode(value: Any) -> Any:
        try:
            decoded = one.decode(value)
        except Mismatch as mismatch:
            raise mismatch.under(f".{field}") from None
        return spec.read({field: decoded})

    return Bridge(one.space, encode, decode)


def _either(options: Sequence[Bridge]) -> Bridge:
    index = IntSpec(0, len(options) - 1)

    def encode(value: Any) -> tuple[np.int64, Any]:
        reasons = []
        for i, option in enumerate(options):
            try:
                return np.int64(i), option.encode(value)
            except Mismatch as mismatch:
                reasons.append(mismatch.describe("").lstrip(": "))
        raise Mismatch("; or ".join(dict.fromkeys(reasons)))

    def decode(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise Mismatch(f"{short_repr(value)} is not a pair of an option's number and its value")
        try:
            option = options[index.read(value[0])]
        except Mismatch as mismatch:
            raise mismatch.under("[0]") from None
        try:
            return option.decode(value[1])
        except Mismatch as mismatch:
            raise mismatch.under("[1]") from None

    return Bridge(spaces.OneOf([option.space for option in options]), encode, decode)

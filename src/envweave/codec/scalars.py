"""Specs of single values: numbers, strings, enumerations, and instances of a class."""

from __future__ import annotations

import base64
import binascii
import collections.abc as abc
import enum as enums
import inspect
import math
import numbers
import string
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, final

import msgspec
import numpy as np

from envweave.codec.arrays import ArraySpec as ArraySpec
from envweave.codec.spec import (
    ANY_LENGTH,
    Bounds,
    Length,
    Mismatch,
    Spec,
    between,
    bounded,
    ends,
    refuse_empty,
    short_repr,
)
from envweave.codec.strings import FORMATS, Pattern
from envweave.codec.to_builtins import to_plain
from envweave.errors import DefinitionError, SpecError

_pack = msgspec.msgpack.Encoder().encode
_ATTEMPTS = 100
_MAX_TESTED = 16  # with more values, looking one up is faster than comparing
_TEXT = string.ascii_letters + string.digits + " "


@final
class IntSpec(Spec):
    """An integer within bounds; not a bool."""

    def __init__(
        self, low: int | None = None, high: int | None = None, *, multiple_of: int | None = None
    ) -> None:
        refuse_empty(low, high)
        self.low, self.high = low, high
        self.multiple_of = multiple_of
        if multiple_of is not None:
            self._refuse_no_multiple(multiple_of)
        self._low = -math.inf if low is None else low
        self._high = math.inf if high is None else high
        is_open = low is None and high is None and multiple_of is None
        self.exact = int if is_open else None
        small = low is not None and high is not None and low >= -32 and high <= 127
        allowed = range(low, high + 1) if small else ()  # type: ignore[arg-type, operator]
        packed = b"".join(_pack(one) for one in allowed if not one % (multiple_of or 1))
        self._bytes = packed if small else None

    def _refuse_no_multiple(self, multiple_of: Any) -> None:
        if type(multiple_of) is not int or multiple_of < 1:
            raise DefinitionError(
                f"multiple_of of an int must be an integer >= 1, got {multiple_of!r}."
            )
        if self.low is not None and self.high is not None:
            lowest = -(-self.low // multiple_of) * multiple_of
            if lowest > self.high:
                raise DefinitionError(
                    f"No multiple of {multiple_of} is {between(self.low, self.high)}."
                )

    def read_all(self, values: Sequence[Any]) -> list[Any]:
        """Read many values, in two C passes if they are all plain ints of a small range."""
        if self._bytes is not None:
            count = len(values)
            try:
                # MessagePack writes a small int as one byte, and nothing else as the same byte.
                # For 256 values this costs a quarter of comparing sets of types and values.
                packed = _pack(values)[1 if count < 16 else 3 if count < 65536 else 5 :]
            except (TypeError, OverflowError, RecursionError):
                return super().read_all(values)
            if len(packed) == count and not packed.translate(None, self._bytes):
                return list(values)
        return super().read_all(values)

    def exact_test(self, value: str) -> str | None:
        """Test for an int within the bounds."""
        return None if self.multiple_of else _number_test(value, int, self.low, self.high)

    def read(self, value: Any) -> int:
        """Take an int or a numpy integer."""
        if type(value) is not int:
            value = _scalar(value)
            if not isinstance(value, np.integer | int) or isinstance(value, bool):
                raise Mismatch(f"{short_repr(value)} is not an int")
            value = int(value)
        if not self._low <= value <= self._high:
            raise Mismatch(f"{short_repr(value)} is not {between(self.low, self.high)}")
        if self.multiple_of is not None and value % self.multiple_of:
            raise Mismatch(f"{short_repr(value)} is not a multiple of {self.multiple_of}")
        return value  # type: ignore[no-any-return] # an int by now

    def sample(self, rng: np.random.Generator) -> int:
        """Draw evenly; an open end lies 1,000 beyond the other one, or beyond 0."""
        unit = self.multiple_of or 1
        low, high = (int(end) for end in ends(self.low, self.high, 1000 * unit))
        return unit * self._draw(rng, -(-low // unit), high // unit)

    def _draw(self, rng: np.random.Generator, low: int, high: int) -> int:
        if low >= -(2**63) and high < 2**63:
            return int(rng.integers(low, high, endpoint=True))
        count = high - low + 1
        bits = count.bit_length()
        while True:
            drawn = int.from_bytes(rng.bytes((bits + 7) // 8), "little") & ((1 << bits) - 1)
            if drawn < count:
                return low + drawn

    def json_schema(self) -> dict[str, Any]:
        """Describe an integer."""
        schema = bounded({"type": "integer"}, self.low, self.high)
        return schema if self.multiple_of is None else {**schema, "multipleOf": self.multiple_of}

    def __repr__(self) -> str:
        unit = "" if self.multiple_of is None else f", multiple_of={self.multiple_of}"
        return f"IntSpec({self.low}, {self.high}{unit})"


@final
class FloatSpec(Spec):
    """A number within bounds; an int counts, a bool does not. NaN is never within bounds."""

    def __init__(
        self,
        low: float | None = None,
        high: float | None = None,
        *,
        multiple_of: float | None = None,
    ) -> None:
        refuse_empty(low, high)
        self.low, self.high = low, high
        self.multiple_of = multiple_of
        self._bounded = low is not None or high is not None
        self.exact = None if self._bounded or multiple_of is not None else float
        if multiple_of is not None and not 0 < multiple_of < math.inf:
            raise DefinitionError(f"multiple_of must be a number above 0, got {multiple_of!r}.")
        if multiple_of is not None:
            lowest, highest = ends(low, high, 1000 * multiple_of)
            if math.ceil(lowest / multiple_of) > math.floor(highest / multiple_of):
                raise DefinitionError(f"No multiple of {multiple_of} is {between(low, high)}.")

    def exact_test(self, value: str) -> str | None:
        """Test for a float within the bounds."""
        return None if self.multiple_of else _number_test(value, float, self.low, self.high)

    def read(self, value: Any) -> float:
        """Take a float, an int or a numpy number."""
        if type(value) is not float:
            value = _scalar(value)
            if isinstance(value, bool) or not isinstance(
                value, float | int | np.floating | np.integer
            ):
                raise Mismatch(f"{short_repr(value)} is not a number")
            try:
                value = float(value)
            except OverflowError:
                raise Mismatch(f"{short_repr(value)} is too large for a float") from None
        if self._bounded and not (
            (self.low is None or self.low <= value) and (self.high is None or value <= self.high)
        ):
            raise Mismatch(f"{value!r} is not {between(self.low, self.high)}")
        unit = self.multiple_of
        # In floating point, 0.3 is not exactly a multiple of 0.1.
        if unit is not None and not (
            math.isfinite(value) and math.isclose(value, round(value / unit) * unit, abs_tol=1e-12)
        ):
            raise Mismatch(f"{value!r} is not a multiple of {unit}")
        return value  # type: ignore[no-any-return] # a float by now

    def sample(self, rng: np.random.Generator) -> float:
        """Draw evenly; an open end lies 1 beyond the other one, or beyond 0."""
        if (unit := self.multiple_of) is not None:
            low, high = ends(self.low, self.high, 1000 * unit)
            steps = int(rng.integers(math.ceil(low / unit), math.floor(high / unit), endpoint=True))
            return float(min(max(steps * unit, low), high))
        low, high = ends(self.low, self.high, 1.0)
        share = float(rng.random())
        # Not `low + (high - low) * share`: the width of the range may overflow.
        return float(min(max(low * (1 - share) + high * share, low), high))

    def json_schema(self) -> dict[str, Any]:
        """Describe a number."""
        schema = bounded({"type": "number"}, self.low, self.high)
        return schema if self.multiple_of is None else {**schema, "multipleOf": self.multiple_of}

    def __repr__(self) -> str:
        unit = "" if self.multiple_of is None else f", multiple_of={self.multiple_of}"
        return f"FloatSpec({self.low}, {self.high}{unit})"


@final
class BoolSpec(Spec):
    """A bool; numbers are refused."""

    exact = bool

    def read(self, value: Any) -> bool:
        """Take a bool or a numpy bool."""
        value = _scalar(value)
        if isinstance(value, bool | np.bool_):
            return bool(value)
        raise Mismatch(f"{short_repr(value)} is not a bool")

    def sample(self, rng: np.random.Generator) -> bool:
        """Draw evenly."""
        return bool(rng.integers(2))

    def json_schema(self) -> dict[str, Any]:
        """Describe a boolean."""
        return {"type": "boolean"}

    def __repr__(self) -> str:
        return "BoolSpec()"


@final
class StrSpec(Spec):
    """A string; with `binary`, bytes, which JSON writes in base64.

    Args:
        binary: Whether it is bytes.
        length: How long it may be.
        pattern: A regular expression that it must contain.
        examples: Sampled from if no string can be drawn for the pattern.
        format: One of JSON Schema's formats, such as `date`, for sampling. It is not checked.
        checks_pattern: Whether strings without the pattern are refused here. If another
            validator refuses them, the pattern is only for sampling.
    """

    def __init__(
        self,
        *,
        binary: bool = False,
        length: Length = ANY_LENGTH,
        pattern: Pattern | None = None,
        examples: Sequence[Any] = (),
        format: str | None = None,  # noqa: A002 - JSON Schema's word
        checks_pattern: bool = True,
    ) -> None:
        self.binary = binary
        self._checks_pattern = checks_pattern
        self.length = length
        self.pattern = pattern
        self._kind: type = bytes if binary else str
        self._is_open = length.is_open and pattern is None
        self.exact = self._kind if self._is_open else None
        self._examples = [one for one in examples if pattern is not None and self.contains(one)]
        self.format = format
        self.can_sample = pattern is None or pattern.can_sample or bool(self._examples)
        if pattern is None and format is not None:
            self.can_sample = format in FORMATS

    def read(self, value: Any) -> Any:
        """Take a string unchanged; bytes also as base64, as in the JSON Schema."""
        if isinstance(value, self._kind) and self._is_open:
            return value
        value = self._convert(value)
        self.length.check(value)
        if self.pattern is None or not self._checks_pattern:
            return value
        if not self.pattern.is_in(value):
            raise Mismatch(f"{short_repr(value)} does not match the pattern {self.pattern.text!r}")
        return value

    def _convert(self, value: Any) -> Any:
        if isinstance(value, self._kind):
            return value
        if not self.binary or not isinstance(value, str):
            raise Mismatch(f"{short_repr(value)} is not a {self._kind.__name__}")
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise Mismatch(f"{short_repr(value)} is neither bytes nor base64") from None

    def sample(self, rng: np.random.Generator) -> Any:
        """Draw up to 16 letters, digits and spaces, or a string that matches the pattern.

        Raises:
            SpecError: No string could be drawn for the pattern.
        """
        if self.pattern is not None:
            return self._draw_pattern(rng, self.pattern)
        if self.format is not None:
            return self._draw_format(rng, self.format)
        size = int(rng.integers(17)) if self.length.is_open else self.length.draw(rng, 16)
        letters = "".join(_TEXT[i] for i in rng.integers(len(_TEXT), size=size))
        return letters.encode() if self.binary else letters

    def _draw_format(self, rng: np.random.Generator, format: str) -> str:  # noqa: A002
        if format not in FORMATS:
            raise SpecError(f"No text could be drawn in the format {format!r}.")
        return FORMATS[format](rng)

    def _draw_pattern(self, rng: np.random.Generator, pattern: Pattern) -> Any:
        for _ in range(_ATTEMPTS if pattern.can_sample else 0):
            drawn = pattern.draw(rng)
            if self.contains(drawn):
                return drawn
        if self._examples:
            return self._examples[int(rng.integers(len(self._examples)))]
        raise SpecError(
            f"No text of length {self.length} that matches the pattern {pattern.text!r} could be "
            "generated. Add examples: Annotated[str, msgspec.Meta(pattern=…, examples=[…])]; or "
            "give the field a default."
        )

    def json_schema(self) -> dict[str, Any]:
        """Describe a string."""
        if self.binary:
            # JSON Schema would count base64 characters, so the length in bytes goes beside it.
            limits = self.length.schema("min", "max")
            lengths = {"x-bytes": limits} if limits else {}
            return {"type": "string", "contentEncoding": "base64", **lengths}
        schema = {"type": "string", **self.length.schema("minLength", "maxLength")}
        if self.format is not None:
            schema["format"] = self.format
        return schema if self.pattern is None else {**schema, "pattern": self.pattern.text}

    def __repr__(self) -> str:
        length = "" if self.length.is_open else f", length={self.length}"
        pattern = "" if self.pattern is None else f", pattern={self.pattern.text!r}"
        form = "" if self.format is None else f", format={self.format!r}"
        return f"StrSpec(binary={self.binary}{length}{pattern}{form})"


@final
class EnumSpec(Spec):
    """One of a few values: a `Literal`, an `Enum` by member or value, or `None`.

    With `stands_in` the values may belong to an `Enum` of another process; its members are taken
    too.
    """

    def __init__(
        self, values: Iterable[Any], *, enum: type | None = None, stands_in: bool = False
    ) -> None:
        self.values = list(values)
        self.stands_in = stands_in
        if not self.values:
            raise DefinitionError(f"{enum or 'A choice'} has no values to choose from.")
        # 1 == True, so the key includes the type.
        self._known: dict[tuple[type, Any], Any] = {}
        for value in self.values:
            self._remember(value, value)
        for value in self.values:
            if isinstance(value, enums.Enum):
                self._remember(value.value, value)

    def _remember(self, form: Any, value: Any) -> None:
        try:
            self._known.setdefault((type(form), form), value)
        except TypeError:
            return  # an unhashable Enum value; `read` finds it by its plain form

    def exact_test(self, value: str) -> str | None:
        """Test for one of the values, if they are a few strings or small ints."""
        kinds = set(map(type, self.values))
        small = kinds == {int} and all(abs(one) < 2**63 for one in self.values)
        if len(self.values) > _MAX_TESTED or not (small or kinds == {str}):
            return None
        return f"type({value}) is {kinds.pop().__name__} and {value} in {(*self.values,)!r}"

    def read(self, value: Any) -> Any:
        """Take exactly one of the values; for an Enum its plain value too."""
        try:
            return self._known[type(value), value]
        except (KeyError, TypeError):
            return self._look_closer(value)

    def _look_closer(self, value: Any) -> Any:
        if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
            return self.read(value.item())
        if self.stands_in and isinstance(value, enums.Enum):
            return self.read(to_plain(value))
        if isinstance(value, list | dict):
            for one in self.values:
                if to_plain(one) == value:
                    return one
        shown = ", ".join(map(_plainly, self.values))
        raise Mismatch(f"{short_repr(value)} is not one of {shown}") from None

    def sample(self, rng: np.random.Generator) -> Any:
        """Draw evenly."""
        return self.values[int(rng.integers(len(self.values)))]

    def json_schema(self) -> dict[str, Any]:
        """Describe an enumeration."""
        return {"enum": [to_plain(value) for value in self.values]}

    def __repr__(self) -> str:
        return f"EnumSpec({self.values!r})"


@final
class InstanceSpec(Spec):
    """An instance of a class that the codec does not know."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.can_sample = _takes_no_arguments(cls)

    def read(self, value: Any) -> Any:
        """Take an instance of the class."""
        if isinstance(value, self.cls):
            return value
        raise Mismatch(f"{short_repr(value)} is not a {self.cls.__name__}")

    def sample(self, rng: np.random.Generator) -> Any:  # noqa: ARG002 - the spec's signature
        """Instantiate the class without arguments.

        Raises:
            SpecError: The class needs arguments.
        """
        try:
            return self.cls()
        except Exception as error:
            raise SpecError(
                f"A {self.cls.__name__} cannot be sampled: it cannot be made without arguments "
                f"({error}). Give the field a default, or a type with fields."
            ) from error

    def json_schema(self) -> dict[str, Any]:
        """Describe by title alone."""
        return {"title": self.cls.__name__}

    def __repr__(self) -> str:
        return f"InstanceSpec({self.cls.__name__})"


def _number_test(value: str, kind: type, low: Any, high: Any) -> str | None:
    """Test for a number of this type within bounds, if these have literals."""
    for bound in (low, high):
        if bound is not None and (type(bound) not in (int, float) or not abs(bound) < 2**63):
            return None
    above = "" if low is None else f" and {low!r} <= {value}"
    below = "" if high is None else f" and {value} <= {high!r}"
    return f"type({value}) is {kind.__name__}{above}{below}"


def is_text(spec: Spec) -> bool:
    """Whether every value is a `str`: any string, or one of several."""
    if isinstance(spec, EnumSpec):
        return all(isinstance(value, str) for value in spec.values)
    return isinstance(spec, StrSpec) and not spec.binary


def _scalar(value: Any) -> Any:
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _plainly(value: Any) -> str:
    return repr(value.value if isinstance(value, enums.Enum) else value)


def _takes_no_arguments(cls: type) -> bool:
    if inspect.isabstract(cls):
        return False
    try:
        inspect.signature(cls).bind()
    except (TypeError, ValueError):  # it needs some, or is a builtin without a signature
        return False
    return True


_NUMBERS = ("low", "high", "above", "below", "multiple_of")
_LENGTHS = ("min_length", "max_length")
_WORDS = {"low": "ge", "high": "le", "above": "gt", "below": "lt"}
_NOTES = ("title", "description", "examples")
_OURS = frozenset({"type", "enum", "const", "properties", "required", "items", "default"})
"""JSON Schema keywords that define which values are allowed; notes must not change them."""


@dataclass(frozen=True, slots=True)
class AnnotatedLimits:
    """Limits as hints give them; `None` is an open end.

    Attributes:
        low: The lowest number that is allowed.
        high: The highest number that is allowed.
        above: An exclusive lower bound.
        below: An exclusive upper bound.
        multiple_of: The number that values must be a multiple of.
        shape: The shape of an array.
        dtype: The dtype of an array.
        min_length: The minimum length of a string, list or dict.
        max_length: The maximum length.
        pattern: A regular expression that a string must contain.
        notes: Further entries for the JSON Schema.
        are_ours: Whether some came from a `Bounds`, which must not be ignored.
    """

    low: Any = None
    high: Any = None
    above: Any = None
    below: Any = None
    multiple_of: Any = None
    shape: tuple[int, ...] | None = None
    dtype: Any = None
    min_length: Any = None
    max_length: Any = None
    pattern: Any = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    are_ours: bool = False

    def within(self, marks: Iterable[Any]) -> AnnotatedLimits:
        """Return these limits, narrowed by the annotations of an `Annotated`.

        Raises:
            DefinitionError: An annotation has a limit that cannot be enforced.
        """
        limits = self
        for mark in marks:
            if isinstance(mark, Bounds):
                limits = replace(
                    limits,
                    low=_pick(max, limits.low, mark.low),
                    high=_pick(min, limits.high, mark.high),
                    shape=limits.shape if mark.shape is None else mark.shape,
                    dtype=limits.dtype if mark.dtype is None else mark.dtype,
                    are_ours=True,
                )
            else:
                limits = limits.narrowed(mark)
        return limits

    def narrowed(self, mark: Any) -> AnnotatedLimits:
        """Return these limits with those of one annotation, also of msgspec or pydantic."""
        refuse_unkept(mark)
        inner = getattr(mark, "metadata", None)
        limits = self.within(inner) if isinstance(inner, list) else self
        # Grouped annotations of `annotated_types` iterate over their parts.
        if getattr(type(mark), "__is_annotated_types_grouped_metadata__", False):
            return limits.within(mark)
        given = {name: _limit_of(mark, name) for name in ("ge", "gt", "le", "lt", *_LENGTHS)}
        units = [
            one for one in (limits.multiple_of, _limit_of(mark, "multiple_of")) if one is not None
        ]
        patterns = [one for one in (limits.pattern, _limit_of(mark, "pattern")) if one is not None]
        for name, several in (("multiple_of", units), ("pattern", patterns)):
            if len(set(several)) > 1:
                raise DefinitionError(f"{name} is given twice: {several[0]!r} and {several[1]!r}.")
        return replace(
            limits,
            low=_pick(max, limits.low, given["ge"]),
            high=_pick(min, limits.high, given["le"]),
            above=_pick(max, limits.above, given["gt"]),
            below=_pick(min, limits.below, given["lt"]),
            min_length=_pick(max, limits.min_length, given["min_length"]),
            max_length=_pick(min, limits.max_length, given["max_length"]),
            multiple_of=units[0] if units else None,
            pattern=patterns[0] if patterns else None,
            notes={**limits.notes, **_notes(mark)},
        )

    def split(self, kind: Any) -> tuple[AnnotatedLimits, list[str]]:
        """Return the limits that apply to a type, and the names of the others."""
        kept = (*_names_for(kind), "notes", "are_ours")
        others = [
            one.name
            for one in fields(self)
            if one.name not in kept and getattr(self, one.name) is not None
        ]
        nothing: dict[str, Any] = dict.fromkeys(others)
        return replace(self, **nothing), others

    def describe(self, names: Iterable[str]) -> str:
        """Return some of these limits in the form that their author wrote."""
        return ", ".join(f"{_WORDS.get(name, name)}={getattr(self, name)!r}" for name in names)

    @property
    def length(self) -> Length:
        """The length limits of a string, list or dict."""
        return Length(0 if self.min_length is None else self.min_length, self.max_length)

    def text(self, *, binary: bool) -> StrSpec:
        """Return the spec of strings within these limits."""
        pattern = None if self.pattern is None else Pattern(self.pattern)
        examples = self.notes.get("examples") or ()
        return StrSpec(binary=binary, length=self.length, pattern=pattern, examples=examples)

    def integer(self, info: Any = None) -> IntSpec:
        """Return the spec of integers within these limits, and within those of a dtype."""
        self._refuse_array()
        low, high = self._whole()
        if info is not None:
            low, high = _pick(max, low, int(info.min)), _pick(min, high, int(info.max))
        return IntSpec(low, high, multiple_of=self.multiple_of)

    def real(self) -> FloatSpec:
        """Return the spec of numbers within these limits."""
        self._refuse_array()
        return FloatSpec(*self._real(float), multiple_of=self.multiple_of)

    def array(self, dtype: Any) -> ArraySpec:
        """Return the spec of arrays within these limits; `dtype` is the hint's own."""
        spec = ArraySpec(self.shape, dtype if self.dtype is None else self.dtype)
        if spec.dtype is not None and spec.dtype.kind in "iu":
            return ArraySpec(spec.shape, spec.dtype, *self._whole())
        kind = float if spec.dtype is None or spec.dtype.kind != "f" else spec.dtype.type
        return ArraySpec(spec.shape, spec.dtype, *self._real(kind))

    def _whole(self) -> tuple[int | None, int | None]:
        low = None if _open(self.low) else math.ceil(self.low)
        high = None if _open(self.high) else math.floor(self.high)
        above = None if _open(self.above) else math.floor(self.above) + 1
        below = None if _open(self.below) else math.ceil(self.below) - 1
        return _pick(max, low, above), _pick(min, high, below)

    def _real(self, kind: Any) -> tuple[Any, Any]:
        above = None if self.above is None else np.nextafter(kind(self.above), kind(np.inf))
        below = None if self.below is None else np.nextafter(kind(self.below), kind(-np.inf))
        low = _pick(max, self.low, None if above is None else above.item())
        high = _pick(min, self.high, None if below is None else below.item())
        return low, high

    def _refuse_array(self) -> None:
        if self.shape is not None or self.dtype is not None:
            raise DefinitionError("Bounds of a single number have neither shape nor dtype.")


def _open(bound: Any) -> bool:
    return bound is None or bound in (-math.inf, math.inf)


def _pick(choose: Any, one: Any, other: Any) -> Any:
    return choose(one, other) if one is not None and other is not None else _first(one, other)


def _first(one: Any, other: Any) -> Any:
    return other if one is None else one


def refuse_unkept(mark: Any) -> None:
    """Refuse an annotation whose limit cannot be enforced.

    Unknown annotations are documentation.

    Raises:
        DefinitionError: The limit cannot be enforced.
    """
    shown = f"{mark!r} in Annotated"
    if isinstance(mark, numbers.Number | range | slice):
        raise DefinitionError(f"{shown} is not a limit. Write Bounds(low, high).")
    if getattr(mark, "tz", None) is not None:
        raise DefinitionError(f"{shown} limits time zones, which is not supported.")
    names = {(one.__module__.partition(".")[0], one.__name__) for one in type(mark).__mro__}
    if names & _UNKEPT:
        raise DefinitionError(
            f"{shown} runs its own code, which can be neither sampled nor described. Check the "
            "value in step(), and raise ActionError there."
        )


_UNKEPT = frozenset(
    {("annotated_types", name) for name in ("Predicate", "Not")}
    | {("annotated_types", "Timezone")}
    | {("pydantic", f"{when}Validator") for when in ("Before", "After", "Plain", "Wrap")}
)


def _limit_of(mark: Any, name: str) -> Any:
    """The limit of this name on an annotation; a method is not a limit."""
    limit = getattr(mark, name, None)
    return None if callable(limit) else limit


def _notes(mark: Any) -> dict[str, Any]:
    given = {name: getattr(mark, name, None) for name in _NOTES}
    more = getattr(mark, "extra_json_schema", None)
    notes = {name: one for name, one in given.items() if isinstance(one, str | list) and one}
    if isinstance(more, dict):
        notes |= {
            word: one
            for word, one in more.items()
            if word not in _OURS and not word.startswith(("$", "x-"))
        }
    return notes


def _names_for(kind: Any) -> tuple[str, ...]:
    """The names of the limits that apply to a type."""
    if kind in (str, typing.LiteralString):
        return (*_LENGTHS, "pattern")
    if kind is bytes or kind in SIZED:
        return _LENGTHS
    if not isinstance(kind, type) or kind is bool:
        return ()
    if issubclass(kind, np.ndarray):
        return ("low", "high", "above", "below", "shape", "dtype")
    if issubclass(kind, int | float | np.integer | np.floating):
        return (*_NUMBERS, "shape", "dtype")  # the last two are refused by name
    return ()


def is_number(kind: Any) -> bool:
    """Whether a type is a number or an array, to which `Bounds` apply."""
    return "low" in _names_for(kind)


LISTS = (list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable)
SETS = {set: set, abc.Set: set, abc.MutableSet: set, frozenset: frozenset}
DICTS = (dict, abc.Mapping, abc.MutableMapping)
SIZED = (*LISTS, *SETS, *DICTS, tuple)
"""Types whose values have a length."""

NO_LIMITS = AnnotatedLimits()

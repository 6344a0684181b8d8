"""Specs of single values: numbers, strings, enumerations, and instances of a class."""

from __future__ import annotations

import base64
import binascii
import enum as enums
import inspect
import math
import string
from collections.abc import Iterable, Sequence
from typing import Any, final

import msgspec
import numpy as np

from envweave.codec.arrays import ArraySpec as ArraySpec
from envweave.codec.spec import (
    ANY_LENGTH,
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

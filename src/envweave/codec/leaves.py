"""Specs of single values: numbers, texts, choices, and instances of a class."""

from __future__ import annotations

import base64
import binascii
import enum as enums
import inspect
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import msgspec
import numpy as np

from envweave.codec.arrays import Array as Array
from envweave.codec.plain import to_plain
from envweave.codec.ranges import between, bounded, ends, refuse_empty
from envweave.codec.spec import Mismatch, Spec, short
from envweave.codec.texts import FORMATS, MAX_DRAWN, can_draw, draw_match, draw_text
from envweave.errors import DefinitionError, SpecError

_pack = msgspec.msgpack.Encoder().encode
_ATTEMPTS = 100


@final
class Integer(Spec):
    """A whole number within bounds. A bool is none."""

    def __init__(self, low: int | None = None, high: int | None = None) -> None:
        refuse_empty(low, high)
        self.low, self.high = low, high
        self._low = -math.inf if low is None else low
        self._high = math.inf if high is None else high
        self.exact = int if low is None and high is None else None
        small = low is not None and high is not None and low >= -32 and high <= 127
        self._bytes = b"".join(map(_pack, range(low, high + 1))) if small else None  # type: ignore[arg-type, operator]

    def read_all(self, values: Sequence[Any]) -> list[Any]:
        """Read many values, in two passes of C where they are all plain ints of a small range."""
        if self._bytes is not None:
            count = len(values)
            try:
                # MessagePack writes an int of a small range as one byte, and nothing else as
                # the same: for 256 of them a quarter of what sets of types and values cost.
                packed = _pack(values)[1 if count < 16 else 3 if count < 65536 else 5 :]
            except (TypeError, OverflowError, RecursionError):
                return super().read_all(values)
            if len(packed) == count and not packed.translate(None, self._bytes):
                return list(values)
        return super().read_all(values)

    def read(self, value: Any) -> int:
        """Take an int or a numpy integer."""
        if type(value) is not int:
            value = _scalar(value)
            if not isinstance(value, np.integer | int) or isinstance(value, bool):
                raise Mismatch(f"{short(value)} is not an int")
            value = int(value)
        if not self._low <= value <= self._high:
            raise Mismatch(f"{short(value)} is not {between(self.low, self.high)}")
        return value  # type: ignore[no-any-return] # an int by now

    def sample(self, rng: np.random.Generator) -> int:
        """Draw evenly; an open end lies 1,000 beyond the other one, or beyond 0."""
        low, high = (int(end) for end in ends(self.low, self.high, 1000))
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
        return bounded({"type": "integer"}, self.low, self.high)

    def __repr__(self) -> str:
        return f"Integer({self.low}, {self.high})"


@final
class Real(Spec):
    """A number within bounds. An int is one, a bool is none, and NaN is within no bounds."""

    def __init__(self, low: float | None = None, high: float | None = None) -> None:
        refuse_empty(low, high)
        self.low, self.high = low, high
        self._bounded = low is not None or high is not None
        self.exact = None if self._bounded else float

    def read(self, value: Any) -> float:
        """Take a float, an int or a numpy number."""
        if type(value) is not float:
            value = _scalar(value)
            if isinstance(value, bool) or not isinstance(
                value, float | int | np.floating | np.integer
            ):
                raise Mismatch(f"{short(value)} is not a number")
            try:
                value = float(value)
            except OverflowError:
                raise Mismatch(f"{short(value)} is too large for a float") from None
        if self._bounded and not (
            (self.low is None or self.low <= value) and (self.high is None or value <= self.high)
        ):
            raise Mismatch(f"{value!r} is not {between(self.low, self.high)}")
        return value  # type: ignore[no-any-return] # a float by now

    def sample(self, rng: np.random.Generator) -> float:
        """Draw evenly; an open end lies 1 beyond the other one, or beyond 0."""
        low, high = ends(self.low, self.high, 1.0)
        share = float(rng.random())
        # Not `low + (high - low) * share`: the width of a range may be no float.
        return float(min(max(low * (1 - share) + high * share, low), high))

    def json_schema(self) -> dict[str, Any]:
        """Describe a number."""
        return bounded({"type": "number"}, self.low, self.high)

    def __repr__(self) -> str:
        return f"Real({self.low}, {self.high})"


@final
class Boolean(Spec):
    """True or false, and no number in their place."""

    exact = bool

    def read(self, value: Any) -> bool:
        """Take a bool or a numpy bool."""
        value = _scalar(value)
        if isinstance(value, bool | np.bool_):
            return bool(value)
        raise Mismatch(f"{short(value)} is not a bool")

    def sample(self, rng: np.random.Generator) -> bool:
        """Draw evenly."""
        return bool(rng.integers(2))

    def json_schema(self) -> dict[str, Any]:
        """Describe a boolean."""
        return {"type": "boolean"}

    def __repr__(self) -> str:
        return "Boolean()"


@final
class Text(Spec):
    """A string, or with `binary` bytes, which JSON writes in base64.

    Args:
        binary: Whether it is bytes.
        min_length: How long it is at least.
        max_length: How long it is at most; `None` for no limit.
        pattern: What must be found in it, as `re.search` finds it.
        format: One of JSON Schema's formats, such as `date`. It is drawn so, and not checked.
        stands_in: Whether the spec is that of an author elsewhere. A pattern is not checked then:
            a stranger's may take for ever.
    """

    def __init__(
        self,
        *,
        binary: bool = False,
        min_length: int = 0,
        max_length: int | None = None,
        pattern: str | None = None,
        format: str | None = None,  # noqa: A002 - JSON Schema's word
        stands_in: bool = False,
    ) -> None:
        refuse_empty(min_length, max_length)
        self.binary = binary
        self.min_length, self.max_length = min_length, max_length
        self.pattern, self.format = pattern, format
        self._kind: type = bytes if binary else str
        self._is_free = min_length == 0 and max_length is None and pattern is None
        self._found = None if pattern is None or stands_in else _search(pattern)
        self.exact = self._kind if self._is_free else None
        if pattern is not None:
            self.can_sample = can_draw(pattern)
        elif format is not None:
            self.can_sample = format in FORMATS
        else:
            self.can_sample = min_length <= MAX_DRAWN

    def read(self, value: Any) -> Any:
        """Take a string as it is; bytes also as the base64 that the JSON Schema asks for."""
        if not isinstance(value, self._kind):
            value = self._decoded(value)
        if not self._is_free:
            self._check(value)
        return value

    def _decoded(self, value: Any) -> bytes:
        if not self.binary or not isinstance(value, str):
            raise Mismatch(f"{short(value)} is not a {self._kind.__name__}")
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise Mismatch(f"{short(value)} is neither bytes nor base64") from None

    def _check(self, value: Any) -> None:
        length = len(value)
        if length < self.min_length:
            raise Mismatch(f"{short(value)} is shorter than {self.min_length}")
        if self.max_length is not None and length > self.max_length:
            raise Mismatch(f"{short(value)} is longer than {self.max_length}")
        if self._found is not None and not self._found(value):
            raise Mismatch(f"{short(value)} does not match the pattern {self.pattern!r}")

    def sample(self, rng: np.random.Generator) -> Any:
        """Draw up to 16 letters, digits and blanks; or by pattern, format and length.

        Raises:
            SpecError: Nothing was drawn that fits.
        """
        for _ in range(_ATTEMPTS):
            drawn = self._draw(rng)
            if self._is_free or self.contains(drawn):
                return drawn
        raise SpecError(f"{self!r} refused {_ATTEMPTS} samples, the last of them {drawn!r}.")

    def _draw(self, rng: np.random.Generator) -> Any:
        if self.pattern is not None:
            return draw_match(self.pattern, rng)
        if self.format in FORMATS:
            return FORMATS[self.format](rng)
        drawn = draw_text(rng, self.min_length, self.max_length)
        return drawn.encode() if self.binary else drawn

    def json_schema(self) -> dict[str, Any]:
        """Describe a string."""
        said = {
            "contentEncoding": "base64" if self.binary else None,
            "minLength": self.min_length or None,
            "maxLength": self.max_length,
            "pattern": self.pattern,
            "format": self.format,
        }
        return {"type": "string", **{name: one for name, one in said.items() if one is not None}}

    def __repr__(self) -> str:
        said = {**self.json_schema(), "type": None, "contentEncoding": None}
        limits = "".join(f", {name}={one!r}" for name, one in said.items() if one is not None)
        return f"Text(binary={self.binary}{limits})"


@final
class Choice(Spec):
    """One of a few values: a `Literal`, an `Enum` by member or value, or `None`.

    With `stands_in` the values may be those of an `Enum` elsewhere, whose members are taken too.
    """

    def __init__(
        self, values: Iterable[Any], *, enum: type | None = None, stands_in: bool = False
    ) -> None:
        self.values = list(values)
        self.stands_in = stands_in
        if not self.values:
            raise DefinitionError(f"{enum or 'A choice'} has no values to choose from.")
        # 1 == True, so a choice is known by its type as well.
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
            return  # a list as an Enum's value; `read` finds it by its plain form

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
        raise Mismatch(f"{short(value)} is not one of {shown}") from None

    def sample(self, rng: np.random.Generator) -> Any:
        """Draw evenly."""
        return self.values[int(rng.integers(len(self.values)))]

    def json_schema(self) -> dict[str, Any]:
        """Describe an enumeration."""
        return {"enum": [to_plain(value) for value in self.values]}

    def __repr__(self) -> str:
        return f"Choice({self.values!r})"


@final
class Instance(Spec):
    """An object of a class the codec knows nothing more about."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.can_sample = _takes_no_arguments(cls)

    def read(self, value: Any) -> Any:
        """Take an instance of the class."""
        if isinstance(value, self.cls):
            return value
        raise Mismatch(f"{short(value)} is not a {self.cls.__name__}")

    def sample(self, rng: np.random.Generator) -> Any:  # noqa: ARG002 - the spec's signature
        """Make one without arguments.

        Raises:
            SpecError: The class cannot be made so.
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
        return f"Instance({self.cls.__name__})"


def _search(pattern: str) -> Callable[[str], Any]:
    try:
        return re.compile(pattern).search
    except re.error as error:
        raise DefinitionError(f"{pattern!r} is not a pattern that Python reads: {error}.") from None


def _scalar(value: Any) -> Any:
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _plainly(value: Any) -> str:
    return repr(value.value if isinstance(value, enums.Enum) else value)


def _takes_no_arguments(cls: type) -> bool:
    if inspect.isabstract(cls):
        return False
    try:
        inspect.signature(cls).bind()
    except (TypeError, ValueError):  # it takes some, or is a builtin that does not say
        return False
    return True

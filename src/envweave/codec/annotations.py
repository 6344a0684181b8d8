"""Limits and notes that a hint gives in `Annotated`: bounds, lengths, patterns, documentation."""

from __future__ import annotations

import collections.abc as abc
import math
import numbers
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from envweave.codec.arrays import ArraySpec
from envweave.codec.scalars import FloatSpec, IntSpec, StrSpec
from envweave.codec.spec import Bounds, Length
from envweave.codec.strings import Pattern
from envweave.errors import DefinitionError

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

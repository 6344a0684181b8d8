"""From type hints to specs."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from typing import Any

import numpy as np

from envweave.codec.branches import Dictionary, Either, Fixed, Listing, Record
from envweave.codec.leaves import Array, Boolean, Choice, Instance, Integer, Real, Text
from envweave.codec.spec import AnySpec, Bounds, Spec
from envweave.errors import DefinitionError


def spec_from_hint(hint: Any) -> Spec:
    """Return the spec that a type hint describes.

    Understands numbers, text, `Literal`, `Enum`, dataclasses, `list`, `tuple`, `dict`, unions,
    `np.ndarray` and `Annotated[..., Bounds(...)]`. Any other class accepts its instances.

    Raises:
        DefinitionError: A dataclass has hints that cannot be evaluated.
    """
    return _spec(hint, ())


def _spec(hint: Any, enclosing: tuple[type, ...]) -> Spec:
    bounds = Bounds()
    while typing.get_origin(hint) is typing.Annotated:
        hint, *marks = typing.get_args(hint)
        bounds = _merge(bounds, marks)
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is typing.Literal:
        return Choice(arguments)
    if origin in (typing.Union, types.UnionType):
        return Either(_spec(argument, enclosing) for argument in arguments)
    if origin in (list, set, frozenset) or hint is list:
        return Listing(_spec(arguments[0], enclosing) if arguments else AnySpec())
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return Listing(_spec(arguments[0], enclosing))
        return Fixed(_spec(argument, enclosing) for argument in arguments)
    if origin is dict or hint is dict or origin is Mapping:
        return Dictionary(_spec(arguments[1], enclosing) if arguments else None)
    return _class(origin or hint, bounds, enclosing)


def _class(cls: Any, bounds: Bounds, enclosing: tuple[type, ...]) -> Spec:
    if cls is Any or cls is object:
        return AnySpec()
    if cls is int:
        low = None if bounds.low is None else int(bounds.low)
        return Integer(low, None if bounds.high is None else int(bounds.high))
    if cls is float:
        return Real(bounds.low, bounds.high)
    if cls is bool:
        return Boolean()
    if cls in (str, bytes):
        return Text(binary=cls is bytes)
    if cls is None or cls is type(None):
        return Choice([None])
    if cls is np.ndarray:
        return Array(bounds.shape, bounds.dtype, bounds.low, bounds.high)
    if isinstance(cls, type):
        if issubclass(cls, enum.Enum):
            return Choice(cls, enum=cls)
        if dataclasses.is_dataclass(cls):
            return Instance(cls) if cls in enclosing else _record(cls, (*enclosing, cls))
        return Instance(cls)
    return AnySpec()


def _record(cls: type, enclosing: tuple[type, ...]) -> Spec:
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise DefinitionError(
            f"The type hints of {cls.__qualname__} cannot be read: {error}. "
            "Define the class at the top level of a module, or import the name it uses there."
        ) from error
    fields = [field for field in dataclasses.fields(cls) if field.init]
    optional = [
        field.name
        for field in fields
        if field.default is not dataclasses.MISSING
        or field.default_factory is not dataclasses.MISSING
    ]
    # The author's own fields come before those of the base classes, as in the constructor.
    ordered = sorted(fields, key=lambda field: bool(field.kw_only))
    return Record(
        cls, {field.name: _spec(hints[field.name], enclosing) for field in ordered}, optional
    )


def _merge(bounds: Bounds, marks: list[Any]) -> Bounds:
    for mark in marks:
        if isinstance(mark, Bounds):
            bounds = mark
        else:
            # msgspec.Meta, annotated_types and pydantic all spell inclusive bounds ge and le.
            low, high = getattr(mark, "ge", None), getattr(mark, "le", None)
            if low is not None or high is not None:
                bounds = dataclasses.replace(
                    bounds,
                    low=bounds.low if low is None else low,
                    high=bounds.high if high is None else high,
                )
    return bounds

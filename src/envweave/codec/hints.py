"""From type hints to specs."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

import msgspec
import numpy as np

from envweave.codec.annotations import (
    DICTS,
    LISTS,
    NO_LIMITS,
    SETS,
    AnnotatedLimits,
    is_number,
)
from envweave.codec.containers import (
    DataclassSpec,
    DictSpec,
    ListSpec,
    RecursiveSpec,
    TupleSpec,
    UnionSpec,
)
from envweave.codec.pydantic_models import PydanticSpec, is_model, model_hints
from envweave.codec.records import StructSpec, definition
from envweave.codec.scalars import BoolSpec, EnumSpec, InstanceSpec, StrSpec
from envweave.codec.spec import AnySpec, Mismatch, Spec
from envweave.errors import DefinitionError


def field_hints(cls: type, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Return the hints of a class by field, for `cls[arguments]` where it is generic.

    Raises:
        DefinitionError: They cannot be evaluated.
    """
    hints = _evaluated(cls)
    filled = _filled(cls, arguments)
    for name in hints:
        owner = next((base for base in cls.__mro__ if name in inspect.get_annotations(base)), cls)
        hints[name] = substitute(hints[name], filled.get(owner, {}))
    return hints


def _evaluated(cls: type) -> dict[str, Any]:
    try:
        try:
            return typing.get_type_hints(cls, include_extras=True)
        except NameError as error:
            # A class within a function may still name itself.
            if error.name != cls.__name__:
                raise
            return typing.get_type_hints(cls, None, {cls.__name__: cls}, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise DefinitionError(
            f"The type hints of {cls.__qualname__} cannot be read: {error}. "
            "Define the class at the top level of a module, or import the name it uses there."
        ) from error


def _filled(cls: Any, arguments: tuple[Any, ...]) -> dict[Any, dict[Any, Any]]:
    """The type arguments of each class in a generic hierarchy, by type variable."""
    own = dict(zip(getattr(cls, "__parameters__", ()), arguments, strict=False))
    filled = {cls: own}
    for base in getattr(cls, "__orig_bases__", ()):
        origin = typing.get_origin(base)
        if isinstance(origin, type) and origin is not typing.Generic:
            given = tuple(substitute(one, own) for one in typing.get_args(base))
            filled = {**_filled(origin, given), **filled}
    for base in cls.__bases__:
        if base not in filled:
            filled = {**_filled(base, ()), **filled}
    return filled


def substitute(hint: Any, filled: Mapping[Any, Any]) -> Any:
    """Return the hint with its type variables filled in, as far as they are known."""
    if isinstance(hint, typing.TypeVar):
        return filled.get(hint, hint)
    variables = () if isinstance(hint, type) else getattr(hint, "__parameters__", ())
    if not variables or not filled:
        return hint
    return hint[tuple(filled.get(one, one) for one in variables)]


_QUALIFIERS = (typing.ClassVar, typing.Final, typing.Required, typing.NotRequired)


def is_typed_dict(hint: Any) -> bool:
    """Whether it is the class of a `TypedDict`."""
    if typing.is_typeddict(hint):
        return True
    # The one of `typing_extensions` differs, and exists only if that was imported.
    extensions = sys.modules.get("typing_extensions")
    return extensions is not None and bool(extensions.is_typeddict(hint))


def is_qualifier(origin: Any) -> bool:
    """Whether it is a qualifier around a type: `Final`, `NotRequired`, …."""
    return origin in _QUALIFIERS or getattr(origin, "_name", None) == "ReadOnly"


def typed_dict_hints(cls: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Return the hints of its keys, for `cls[arguments]` where it is generic."""
    return field_hints(cls, arguments)


def is_required(cls: Any, name: str, hint: Any) -> bool:
    """Whether a key is required. `NotRequired` may be nested in another qualifier."""
    while is_qualifier(origin := typing.get_origin(hint)) or origin is typing.Annotated:
        if origin in (typing.Required, typing.NotRequired):
            return bool(origin is typing.Required)
        hint = typing.get_args(hint)[0]
    return name in cls.__required_keys__


_ALIAS: Any = getattr(typing, "TypeAliasType", ())  # `type X = …`, from Python 3.12 on

Enclosing: typing.TypeAlias = Mapping[Any, list[RecursiveSpec]]
"""The enclosing hints, and the recursive references to them."""


def spec_from_hint(hint: Any) -> Spec:
    """Return the spec that a type hint describes.

    Understands numbers (numpy's are read as Python's), text, `Literal`, `Enum`, dataclasses,
    `msgspec.Struct`, pydantic's models, `NamedTuple`, `TypedDict`, lists, tuples, sets and dicts,
    unions, `np.ndarray`, `NDArray`, and `Annotated[..., Bounds(...)]`. Annotations of msgspec and
    annotated_types, and pydantic's `Field`, limit numbers (`ge`, `gt`, `le`, `lt`,
    `multiple_of`), strings (`min_length`, `max_length`, `pattern`), lists, sets and dicts
    (`min_length`, `max_length`). Their titles, descriptions and examples go into the JSON Schema.
    Any other class accepts its instances.

    Raises:
        DefinitionError: A hint cannot be evaluated, or its limits make no sense or cannot be
            enforced.
    """
    return _spec(hint, {}, NO_LIMITS)


def _spec(hint: Any, within: Enclosing, limits: AnnotatedLimits) -> Spec:
    hint, limits = _unwrap(hint, limits)
    spec = _limited(hint, within, limits)
    if limits.notes and not spec.notes:
        spec.notes = limits.notes
    return spec


def _limited(hint: Any, within: Enclosing, limits: AnnotatedLimits) -> Spec:
    if isinstance(hint, str | typing.ForwardRef):
        raise DefinitionError(f"The type hint {hint!r} is a string that was not evaluated.")
    if (meant := _alias(hint)) is not None:
        return AnySpec() if hint in within else _spec(meant, {**within, hint: []}, limits)
    if isinstance(hint, typing.TypeVar):
        return _spec(_bound(hint), within, limits)
    if hint is typing.Self and within:
        hint = next(reversed(list(within)))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _union(arguments, within, limits)
    kind = hint if origin is None else origin
    _refuse_useless(hint, kind, limits)
    if kind is typing.Literal:
        return EnumSpec(arguments)
    if kind is tuple:
        return _tuple(hint, arguments, within, limits)
    if kind in LISTS or kind in SETS:
        item = _spec(arguments[0], within, NO_LIMITS) if arguments else AnySpec()
        return ListSpec(item, kind=SETS.get(kind, list), length=limits.length)
    if kind in DICTS:
        if not arguments:
            return DictSpec(length=limits.length)
        key, item = (_spec(argument, within, NO_LIMITS) for argument in arguments)
        is_text = isinstance(key, StrSpec) and key.exact is str
        return DictSpec(item, key=None if is_text else key, length=limits.length)
    if kind is np.ndarray:
        return limits.array(_dtype_in(arguments))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _record(hint, kind, arguments, within)
    return _class(hint, kind, arguments, within, limits)


def _refuse_useless(hint: Any, kind: Any, limits: AnnotatedLimits) -> None:
    """Refuse limits that do not apply to a type: they would be ignored."""
    _, others = limits.split(kind)
    if limits.are_ours and not is_number(kind):
        raise DefinitionError(f"Bounds do not apply to {hint!r}. Put them on its items or fields.")
    if others:
        raise DefinitionError(f"{limits.describe(others)} in Annotated does not apply to {hint!r}.")


def _unwrap(hint: Any, limits: AnnotatedLimits) -> tuple[Any, AnnotatedLimits]:
    """Remove qualifiers around a hint, but keep its annotations."""
    while True:
        origin = typing.get_origin(hint)
        if origin is typing.Annotated:
            hint, *marks = typing.get_args(hint)
            limits = limits.within(marks)
        elif is_qualifier(origin):
            (hint,) = typing.get_args(hint)
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif isinstance(hint, dataclasses.InitVar):
            hint = hint.type
        else:
            return hint, limits


def _alias(hint: Any) -> Any:
    """The value of a `type X = …` alias, or `None` if the hint is not one."""
    origin = typing.get_origin(hint)
    alias = hint if origin is None else origin
    if not isinstance(alias, _ALIAS):
        return None
    filled = dict(zip(alias.__type_params__, typing.get_args(hint), strict=False))
    return substitute(alias.__value__, filled)


def _bound(variable: typing.TypeVar) -> Any:
    if variable.__constraints__:
        return typing.Union[variable.__constraints__]  # noqa: UP007 - of a tuple
    return Any if variable.__bound__ is None else variable.__bound__


def _union(options: tuple[Any, ...], within: Enclosing, limits: AnnotatedLimits) -> Spec:
    """A union; limits around it apply to those options that they fit."""
    bare = [_unwrap(option, NO_LIMITS)[0] for option in options]
    bare = [one if (meant := _alias(one)) is None else _unwrap(meant, NO_LIMITS)[0] for one in bare]
    kinds = [typing.get_origin(one) or one for one in bare]
    split = [replace(limits, notes={}).split(kind) for kind in kinds]
    useless = set.intersection(*(set(others) for _, others in split))
    takes_bounds = [is_number(kind) for kind in kinds]
    if limits.are_ours and not any(takes_bounds):
        raise DefinitionError(f"Bounds do not apply to {' | '.join(map(repr, options))}.")
    if useless:
        raise DefinitionError(
            f"{limits.describe(sorted(useless))} in Annotated does not apply to "
            f"{' | '.join(map(repr, options))}."
        )
    return UnionSpec(
        _spec(option, within, replace(own, are_ours=limits.are_ours and is_bounded))
        for option, (own, _), is_bounded in zip(options, split, takes_bounds, strict=True)
    )


def _tuple(
    hint: Any, arguments: tuple[Any, ...], within: Enclosing, limits: AnnotatedLimits
) -> Spec:
    if not hasattr(hint, "__args__"):  # `tuple` alone; `tuple[()]` has an empty one
        return ListSpec(AnySpec(), kind=tuple, length=limits.length)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        item = _spec(arguments[0], within, NO_LIMITS)
        return ListSpec(item, kind=tuple, length=limits.length)
    if not limits.length.is_open:
        raise DefinitionError(f"{hint!r} has a fixed length. Remove the one in Annotated.")
    return TupleSpec(_spec(argument, within, NO_LIMITS) for argument in arguments)


def _class(
    hint: Any, cls: Any, arguments: tuple[Any, ...], within: Enclosing, limits: AnnotatedLimits
) -> Spec:
    if cls is int:
        return limits.integer()
    if cls is float:
        return limits.real()
    if cls is bool or cls is np.bool_:
        return BoolSpec()
    if cls in (str, bytes, typing.LiteralString):
        return limits.text(binary=cls is bytes)
    if cls is None or cls is type(None):
        return EnumSpec([None])
    if not isinstance(cls, type) or cls in (Any, object) or _is_bare_protocol(cls):
        return AnySpec()
    if is_typed_dict(cls):
        return _typed_dict(hint, cls, arguments, within)
    if is_model(cls):
        return _model(cls, within)
    if issubclass(cls, msgspec.Struct) and not cls.__struct_config__.array_like:
        return _struct(hint, cls, arguments, within)
    if issubclass(cls, enum.Enum):
        return EnumSpec(cls, enum=cls)
    if issubclass(cls, tuple) and hasattr(cls, "_make"):
        return _named_tuple(cls, within)
    if issubclass(cls, np.integer) and cls.__subclasses__() == []:
        return limits.integer(np.iinfo(cls))
    if issubclass(cls, np.floating):
        return limits.real()
    return InstanceSpec(cls)


def _record(hint: Any, cls: type, arguments: tuple[Any, ...], within: Enclosing) -> Spec:
    if hint in within:
        recursion = RecursiveSpec(cls)
        within[hint].append(recursion)
        return recursion
    returns: list[RecursiveSpec] = []
    inside = {**within, hint: returns}
    hints = field_hints(cls, arguments)
    # `fields()` omits those that only the constructor takes.
    known: dict[str, dataclasses.Field[Any]] = cls.__dataclass_fields__  # type: ignore[attr-defined]
    lasting = {field.name for field in dataclasses.fields(cls)}
    specs = {
        name: _field(field, _spec(hints[name], inside, NO_LIMITS))
        for name, field in known.items()
        if name in lasting or isinstance(hints[name], dataclasses.InitVar)
    }
    # The author's own fields come before those of the base classes, as in the constructor.
    ordered = sorted(specs, key=lambda name: bool(known[name].kw_only))
    record = DataclassSpec(
        cls,
        {name: specs[name] for name in ordered if name in lasting and known[name].init},
        [name for name in ordered if _default(known[name]) is not dataclasses.MISSING],
        init_only={name: specs[name] for name in ordered if name not in lasting},
        derived={name: specs[name] for name in ordered if not known[name].init},
    )
    record.is_recursive = bool(returns)
    for recursion in returns:
        recursion.record = record
    return record


def _field(field: dataclasses.Field[Any], spec: Spec) -> Spec:
    """The spec of a field: the author's default always fits."""
    if field.default is None and not spec.contains(None):
        return UnionSpec([spec, EnumSpec([None])])
    return spec


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory if field.default is dataclasses.MISSING else field.default


def _named_tuple(cls: Any, within: Enclosing) -> Spec:
    hints = field_hints(cls, ())
    return TupleSpec(
        [_spec(hints.get(name, Any), {**within, cls: []}, NO_LIMITS) for name in cls._fields],
        names=cls._fields,
        optional=cls._field_defaults,
        make=cls._make,
        kind=cls,
    )


def _typed_dict(hint: Any, cls: Any, arguments: tuple[Any, ...], within: Enclosing) -> Spec:
    if hint in within:
        recursion = RecursiveSpec(cls)
        within[hint].append(recursion)
        return recursion
    returns: list[RecursiveSpec] = []
    hints = typed_dict_hints(cls, arguments)
    fields = {name: _spec(one, {**within, hint: returns}, NO_LIMITS) for name, one in hints.items()}
    spec = DictSpec(
        fields=fields,
        optional=[name for name, one in hints.items() if not is_required(cls, name, one)],
        definition=definition(cls) if returns else None,
        name=cls.__name__,
    )
    for recursion in returns:
        recursion.record = spec
    return spec


def _model(cls: Any, within: Enclosing) -> Spec:
    if cls in within:
        recursion = RecursiveSpec(cls)
        within[cls].append(recursion)
        return recursion
    returns: list[RecursiveSpec] = []
    inside = {**within, cls: returns}
    fields = {name: _model_field(hint, inside) for name, hint in model_hints(cls).items()}
    model = PydanticSpec(cls, fields)
    model.is_recursive = bool(returns)
    for recursion in returns:
        recursion.record = model
    return model


def _model_field(hint: Any, within: Enclosing) -> Spec:
    """The spec of a model's field. Limits that we don't understand are left to pydantic."""
    try:
        return _spec(hint, within, NO_LIMITS)
    except DefinitionError:
        bare = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
        return AnySpec() if bare is hint else _model_field(bare, within)


def _struct(hint: Any, cls: Any, arguments: tuple[Any, ...], within: Enclosing) -> Spec:
    if hint in within:
        recursion = RecursiveSpec(cls)
        within[hint].append(recursion)
        return recursion
    returns: list[RecursiveSpec] = []
    hints = field_hints(cls, arguments)
    fields = {
        name: _spec(hints[name], {**within, hint: returns}, NO_LIMITS)
        for name in cls.__struct_fields__
    }
    needed = {field.name for field in msgspec.structs.fields(cls) if field.required}
    spec = StructSpec(cls, fields, [name for name in fields if name not in needed])
    spec.is_recursive = bool(returns)
    for recursion in returns:
        recursion.record = spec
    return spec


def _is_bare_protocol(cls: type) -> bool:
    return getattr(cls, "_is_protocol", False) and not getattr(cls, "_is_runtime_protocol", False)


def _dtype_in(arguments: tuple[Any, ...]) -> Any:
    """The dtype of an `NDArray[np.float32]`, if it names one and not a family of them."""
    kinds = typing.get_args(arguments[1]) if len(arguments) == 2 else ()
    if kinds and isinstance(kinds[0], type) and kinds[0].__subclasses__() == []:
        return np.dtype(kinds[0])
    return None


@final
class Declared(Spec):
    """Values declared by a schema; a value that does not fit is taken unchanged.

    Attributes:
        spec: The declared spec, as far as it is known.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.can_sample = spec.can_sample

    def read(self, value: Any) -> Any:
        """Take any value, converted to the declared form if it fits."""
        try:
            return self.spec.read(value)
        except Mismatch:
            return value

    def sample(self, rng: np.random.Generator) -> Any:
        """Draw from the declared spec."""
        return self.spec.sample(rng)

    def json_schema(self) -> dict[str, Any]:
        """Describe the declared spec."""
        return self.spec.json_schema()

    def __repr__(self) -> str:
        return f"Declared({self.spec!r})"

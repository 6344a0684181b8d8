"""Specs of dataclasses, of msgspec structs, and of classes that contain themselves."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

import msgspec
import numpy as np

from envweave.codec.spec import Mismatch, Spec, described, gathered, short_repr
from envweave.errors import SpecError, format_error, suggest

_ATTEMPTS = 100


def docstring(cls: type) -> str:
    """Return what the author of a class wrote about it, and not what `dataclass` generates."""
    text = inspect.cleandoc(cls.__doc__ or "")
    return "" if text.startswith(f"{cls.__name__}(") else text


@final
class DataclassSpec(Spec):
    """A dataclass, given as an instance or as a dict of its fields.

    Values that fit unchanged are found by one compiled test of all fields, if each has one (see
    `exact_test`); otherwise, and where it fails, fields are read one by one. A dict is checked
    before the class is made from it, so that `__post_init__` sees only values of the declared
    types, and runs once.

    Attributes:
        cls: The dataclass.
        fields: The fields that its constructor takes and its instances hold.
        optional: The names of those with a default.
        init_only: The fields that only its constructor takes (`InitVar`).
        derived: The fields that the class computes itself.
        is_recursive: Whether a `RecursiveSpec` within it refers back to it.
        stands_in: Whether the class replaces an author's class from another process. Then
            instances of another class are taken too, if it has the same name and fields.
    """

    def __init__(
        self,
        cls: type,
        fields: Mapping[str, Spec],
        optional: Iterable[str],
        *,
        init_only: Mapping[str, Spec] | None = None,
        derived: Mapping[str, Spec] | None = None,
        stands_in: bool = False,
    ) -> None:
        self.cls = cls
        self.stands_in = stands_in
        self.fields = dict(fields)
        self.optional = frozenset(optional)
        self.is_recursive = False
        self.init_only = dict(init_only or {})
        self.derived = dict(derived or {})
        self._taken = {**self.fields, **self.init_only}
        self._known = {**self._taken, **self.derived}
        self._required = [name for name in self._taken if name not in self.optional]
        self.can_sample = all(self._taken[name].can_sample for name in self._required)
        test = self.fields_test("value")
        self._unsure = _unsure_defaults(cls, self.fields)
        simple = test is not None and not init_only and not self._unsure
        self._tests = test, _items_test(self.fields) if simple else None
        self._compile()

    def _compile(self) -> None:
        of_fields, of_items = self._tests
        self._is_exact = _never if of_fields is None else _fields_check(of_fields)
        self._is_exact_dict = _never if of_items is None else _items_check(of_items)

    def __getstate__(self) -> dict[str, Any]:
        compiled = ("_is_exact", "_is_exact_dict")
        return {name: one for name, one in vars(self).items() if name not in compiled}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._compile()

    def fields_test(self, value: str) -> str | None:
        """Return Python source that is true only where every field of an instance is unchanged.

        See `exact_test`; here the class of the value is not tested.
        """
        tests = [spec.exact_test(f"{value}.{name}") for name, spec in self.fields.items()]
        return " and ".join(map(str, tests)) if tests and None not in tests else None

    def read(self, value: Any) -> Any:
        """Take an instance, or a dict with exactly its fields."""
        if type(value) is dict:
            if not self._is_exact_dict(value):
                return self._build(value)
            try:
                return self.cls(**value)
            except Exception as error:
                raise self._refusal(value, error) from error
        if type(value) is not self.cls and not isinstance(value, self.cls):
            return self._foreign(value)
        try:
            if self._is_exact(value):
                return value
        except AttributeError:
            pass  # a field was deleted; `_read_fields` says which
        return self._read_fields(value, self.fields, {})

    def columns_of(self, values: Sequence[Any]) -> dict[str, list[Any]] | None:
        """Return many values as columns, if each fits unchanged and making it runs no own code.

        Args:
            values: Dicts with the same fields, or instances.

        Returns:
            A column for each field that is given; `None` if `read` must see to each value.
        """
        if not values or not self._is_plain:
            return None
        kinds, first = set(map(type, values)), values[0]
        try:
            if kinds == {dict}:
                if set(map(len, values)) != {len(first)}:
                    return None
                columns = {name: [value[name] for value in values] for name in first}
            elif kinds == {self.cls}:
                columns = {name: [getattr(one, name) for one in values] for name in self.fields}
                for name in self.optional & columns.keys():
                    if self.fields[name].exact is dict and not any(columns[name]):
                        del columns[name]  # an empty dict is its default
            else:
                return None
        except (AttributeError, KeyError):
            return None
        return columns if self._are_exact(columns) else None

    def read_columns(self, columns: Mapping[str, Sequence[Any]]) -> list[Any] | None:
        """Return the instances with these columns of fields; `None` if one may not fit."""
        if not self._are_exact(columns):
            return None
        made: list[Any] = _rows_maker(tuple(columns))(self.cls, *columns.values())
        return made

    def _are_exact(self, columns: Mapping[str, Sequence[Any]]) -> bool:
        """Whether columns are fields whose values fit unchanged, and none is missing."""
        if self._tests[1] is None or self.derived or not columns:
            return False
        if not (self.fields.keys() >= columns.keys() >= set(self._required)):
            return False
        if len(set(map(len, columns.values()))) != 1:
            return False
        return all(
            _column_check(str(self.fields[name].exact_test("value")))(column)
            for name, column in columns.items()
        )

    @functools.cached_property
    def _is_plain(self) -> bool:
        """Whether making an instance runs no code of an author."""
        own = ("__post_init__", "__new__", "__setattr__")
        params = getattr(self.cls, "__dataclass_params__", None)
        is_generated = params is not None and params.init and "__init__" in vars(self.cls)
        return is_generated and not any(
            name in vars(base) for base in self.cls.__mro__[:-1] for name in own
        )

    def _foreign(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self._build(dict(value))
        if self.stands_in and type(value).__name__ == self.cls.__name__:
            names = [name for name in self._known if hasattr(value, name)]
            return self._build({name: getattr(value, name) for name in names})
        raise Mismatch(
            f"{type(value).__name__} {short_repr(value)} is neither {self.cls.__name__} "
            f"nor a dict of its fields ({', '.join(self.fields)})"
        )

    def _build(self, given: dict[str, Any]) -> Any:
        read = {}
        for name, one in given.items():
            spec = self._known.get(name)
            if spec is None:
                known = f"Known: {', '.join(self._known)}." if self._known else "It has none."
                hint = suggest(str(name), self._known) or f" {known}"
                raise Mismatch(f"unknown field.{hint}").under(f".{name}")
            try:
                read[name] = spec.read(one)
            except Mismatch as mismatch:
                raise mismatch.under(f".{name}") from None
        derived = self.derived and {n: read.pop(n) for n in self.derived if n in read}
        try:
            made = self.cls(**read)
        except Exception as error:
            raise self._refusal(given, error) from error
        if not self._unsure and not derived:
            return made
        omitted = {name: spec for name, spec in self._unsure.items() if name not in given}
        return self._read_fields(made, omitted, dict(derived))

    def _refusal(self, given: Mapping[str, Any], error: Exception) -> Mismatch:
        for name in self._required:
            if name not in given:
                return Mismatch("this field is missing").under(f".{name}")
        return Mismatch(f"{self.cls.__name__} refuses it: {format_error(error)}")

    def _read_fields(self, value: Any, fields: Mapping[str, Spec], changed: dict[str, Any]) -> Any:
        for name, spec in fields.items():
            try:
                before = getattr(value, name)
            except AttributeError:
                raise Mismatch("this field is missing").under(f".{name}") from None
            try:
                after = spec.read(before)
            except Mismatch as mismatch:
                raise mismatch.under(f".{name}") from None
            if after is not before:
                changed[name] = after
        if not changed:
            return value
        # Not `dataclasses.replace`: a second `__post_init__` may have side effects.
        copied = copy.copy(value)
        for name, one in changed.items():
            object.__setattr__(copied, name, one)  # works for frozen dataclasses too
        return copied

    def overlap(self, value: Mapping[Any, Any]) -> int:
        """Return how many keys of a dict are fields here."""
        return sum(key in self._known for key in value)

    def sample(self, rng: np.random.Generator) -> Any:
        """Draw every field except those whose default is good enough (dicts of anything).

        Raises:
            SpecError: A field cannot be drawn, or the class refuses what is drawn.
        """
        drawable = {n: s for n, s in self._taken.items() if not self._default_says_enough(n, s)}
        for _ in range(_ATTEMPTS):
            drawn = {name: spec.sample(rng) for name, spec in drawable.items()}
            try:
                return self.cls(**drawn)
            except Exception as error:  # noqa: BLE001 - the author's __post_init__
                reason = error
        raise SpecError(
            f"{self.cls.__name__} refused {_ATTEMPTS} samples; the last error was: "
            f"{format_error(reason)}. "
            "Put its constraints into the type hints, as a Literal or as Bounds."
        ) from reason

    def _default_says_enough(self, name: str, spec: Spec) -> bool:
        return name in self.optional and (not spec.can_sample or spec.exact is dict)

    def json_schema(self) -> dict[str, Any]:
        """Describe an object with these properties and no others."""
        schema = gathered(
            {
                "title": self.cls.__name__,
                "type": "object",
                "properties": {name: described(spec) for name, spec in self._known.items()},
                "required": list(self._required),
                "additionalProperties": False,
            }
        )
        if not self.is_recursive:
            return schema
        definitions = schema.pop("$defs", {})
        name = definition(self.cls)
        return {"$ref": f"#/$defs/{name}", "$defs": {name: schema, **definitions}}

    def __repr__(self) -> str:
        return f"DataclassSpec({self.cls.__name__}, {self.fields!r})"


@final
class RecursiveSpec(Spec):
    """A reference to an enclosing dataclass or `TypedDict`, whose spec is set once complete."""

    can_sample = False

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.record: Spec | None = None

    def read(self, value: Any) -> Any:
        """Take what the referenced spec takes."""
        if self.record is None:
            raise Mismatch(f"{self.cls.__name__} is not complete yet")
        try:
            return self.record.read(value)
        except RecursionError:
            raise Mismatch("nested too deeply, or contains itself") from None

    def sample(self, rng: np.random.Generator) -> Any:  # noqa: ARG002 - the spec's signature
        """Refuse, since it would never end; lists, unions and defaults stop before it."""
        raise SpecError(
            f"{self.cls.__name__} contains another {self.cls.__name__} endlessly, so it cannot be "
            "sampled. Make the field optional, or give it a default."
        )

    def json_schema(self) -> dict[str, Any]:
        """Refer to the referenced spec's schema."""
        return {"$ref": f"#/$defs/{definition(self.cls)}"}

    def __repr__(self) -> str:
        return f"RecursiveSpec({self.cls.__name__})"


def definition(cls: type) -> str:
    """Return the name of a recursive class in a schema."""
    return re.sub(r"[^\w.]", "", f"{cls.__module__}.{cls.__qualname__}")


def _unsure_defaults(cls: type, specs: Mapping[str, Spec]) -> dict[str, Spec]:
    """The fields whose default is not known to fit unchanged."""
    unsure = {}
    for field in dataclasses.fields(cls):
        spec = specs.get(field.name)
        if spec is None:
            continue
        if field.default is dataclasses.MISSING:
            fits = field.default_factory in (dataclasses.MISSING, spec.exact)
        else:
            fits = spec.contains(field.default) and spec.read(field.default) is field.default
        if not fits:
            unsure[field.name] = spec
    return unsure


def _items_test(fields: Mapping[str, Spec]) -> str:
    """Return Python source that is true where an item of a dict is a field that fits unchanged."""
    tests = (f"name == {name!r} and {one.exact_test('value')}" for name, one in fields.items())
    return " or ".join(tests)


@functools.lru_cache(maxsize=1024)
def _fields_check(test: str) -> Callable[[Any], bool]:
    """Compile a test of an instance, as a dataclass makes its `__eq__`.

    A loop over the fields takes four times as long, on every action passed as an object.
    """
    made: Callable[[Any], bool] = eval(f"lambda value: {test}")  # noqa: S307 - names and literals
    return made


@functools.lru_cache(maxsize=1024)
def _items_check(test: str) -> Callable[[dict[Any, Any]], bool]:
    """Compile a test of all items of a dict."""
    source = f"""
def check(given):
    for name, value in given.items():
        if not ({test}):
            return False
    return True
"""
    scope: dict[str, Any] = {}
    exec(source, scope)  # noqa: S102 - names of fields, and literals of specs
    made: Callable[[dict[Any, Any]], bool] = scope["check"]
    return made


@functools.lru_cache(maxsize=1024)
def _column_check(test: str) -> Callable[[Sequence[Any]], bool]:
    """Compile a test of all values of a column."""
    made: Callable[[Sequence[Any]], bool] = eval(  # noqa: S307 - literals of specs
        f"lambda column: all([{test} for value in column])"
    )
    return made


@functools.lru_cache(maxsize=256)
def _rows_maker(names: tuple[str, ...]) -> Callable[..., list[Any]]:
    """Compile a function that makes instances from columns."""
    places = [f"value{i}" for i in range(len(names))]
    given = ", ".join(f"{name}={place}" for name, place in zip(names, places, strict=True))
    columns = ", ".join(f"column{i}" for i in range(len(names)))
    source = f"lambda cls, {columns}: [cls({given}) for {', '.join(places)}, in zip({columns})]"
    made: Callable[..., list[Any]] = eval(source)  # noqa: S307 - names of fields
    return made


def _never(value: Any) -> bool:  # noqa: ARG001 - stands in for a test
    return False


@final
class StructSpec(Spec):
    """A `msgspec.Struct`, given as an instance or as a dict of its fields.

    A dict may contain the tag, as in MessagePack and JSON; a wrong tag is refused.

    Attributes:
        cls: The class.
        fields: Its fields, by their names in Python.
        optional: The names of those with a default.
        is_recursive: Whether it holds itself.
    """

    def __init__(self, cls: Any, fields: Mapping[str, Spec], optional: Iterable[str]) -> None:
        self.cls = cls
        self.fields = dict(fields)
        self.optional = frozenset(optional)
        self.is_recursive = False
        self.can_sample = all(
            spec.can_sample for name, spec in self.fields.items() if name not in self.optional
        )
        names = zip(cls.__struct_encode_fields__, cls.__struct_fields__, strict=True)
        self._names = {**dict(names), **{name: name for name in self.fields}}
        self._tag_field: str | None = cls.__struct_config__.tag_field
        self._tag = cls.__struct_config__.tag

    def read(self, value: Any) -> Any:
        """Take an instance, or a dict with exactly its fields."""
        if isinstance(value, self.cls):
            return self._read_fields(value)
        if not isinstance(value, Mapping):
            raise Mismatch(
                f"{type(value).__name__} {short_repr(value)} is neither {self.cls.__name__} "
                "nor a dict "
                f"of its fields ({', '.join(self.fields)})"
            )
        given = dict(value)
        if self._tag_field is not None and given.pop(self._tag_field, self._tag) != self._tag:
            shown = short_repr(value[self._tag_field])
            raise Mismatch(f"{shown} is not {self._tag!r}").under(f".{self._tag_field}")
        read = {}
        for key, one in given.items():
            name = self._names.get(key)
            if name is None:
                hint = suggest(str(key), self.fields) or f" Known: {', '.join(self.fields)}."
                raise Mismatch(f"unknown field.{hint}").under(f".{key}")
            read[name] = self._part(name, one)
        for name in self.fields:
            if name not in read and name not in self.optional:
                raise Mismatch("this field is missing").under(f".{name}")
        try:
            return self.cls(**read)
        except Exception as error:  # an author's __post_init__
            raise Mismatch(f"{self.cls.__name__} refuses it: {format_error(error)}") from error

    def _part(self, name: str, value: Any) -> Any:
        try:
            return self.fields[name].read(value)
        except Mismatch as mismatch:
            raise mismatch.under(f".{name}") from None

    def _read_fields(self, value: Any) -> Any:
        changed = {}
        for name in self.fields:
            before = getattr(value, name)
            after = self._part(name, before)
            if after is not before:
                changed[name] = after
        if not changed:
            return value
        copied = copy.copy(value)
        for name, one in changed.items():
            msgspec.structs.force_setattr(copied, name, one)  # works for frozen structs too
        return copied

    def overlap(self, value: Mapping[Any, Any]) -> int:
        """Return how many keys of a dict are fields here; the right tag outweighs all of them."""
        named = self._tag_field is not None and value.get(self._tag_field) == self._tag
        return sum(key in self._names for key in value) + named * (len(value) + 1)

    def sample(self, rng: np.random.Generator) -> Any:
        """Draw every field that can be sampled.

        Raises:
            SpecError: A field cannot be drawn, or the class refuses what is drawn.
        """
        drawable = {
            name: spec
            for name, spec in self.fields.items()
            if spec.can_sample or name not in self.optional
        }
        for _ in range(_ATTEMPTS):
            drawn = {name: spec.sample(rng) for name, spec in drawable.items()}
            try:
                return self.cls(**drawn)
            except Exception as error:  # noqa: BLE001 - the author's __post_init__
                reason = error
        raise SpecError(
            f"{self.cls.__name__} refused {_ATTEMPTS} samples; the last error was: "
            f"{format_error(reason)}. "
            "Put its constraints into the type hints, as a Literal or as Bounds."
        ) from reason

    def json_schema(self) -> dict[str, Any]:
        """Describe an object with these properties, its tag and no others."""
        properties = {name: described(spec) for name, spec in self.fields.items()}
        if self._tag_field is not None:
            tag = {"enum": [self._tag], "default": self._tag}
            properties = {self._tag_field: tag, **properties}
        schema = gathered(
            {
                "title": self.cls.__name__,
                "type": "object",
                "properties": properties,
                "required": [name for name in self.fields if name not in self.optional],
                "additionalProperties": False,
            }
        )
        if not self.is_recursive:
            return schema
        others, name = schema.pop("$defs", {}), definition(self.cls)
        return {"$ref": f"#/$defs/{name}", "$defs": {name: schema, **others}}

    def __repr__(self) -> str:
        return f"StructSpec({self.cls.__name__}, {self.fields!r})"

"""The spec of a pydantic model: pydantic checks and builds, and is never imported here.

A model can only exist if pydantic was already imported, so nothing else pays for the import.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, final

import numpy as np

from envweave.codec.scalars import StrSpec
from envweave.codec.spec import AnySpec, Mismatch, Spec, described, gathered, short_repr
from envweave.codec.strings import FORMATS
from envweave.errors import DefinitionError, SpecError, format_error, suggest

_ATTEMPTS = 100
_OUTCOME = frozenset({"reward", "done"})


def is_model(cls: Any) -> bool:
    """Whether a class is a pydantic model."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)


def carries_outcome(cls: Any) -> bool:
    """Whether a class is a model with `reward` and `done`, like OpenEnv's observations."""
    return is_model(cls) and cls.model_fields.keys() >= _OUTCOME


def model_hints(cls: Any) -> dict[str, Any]:
    """Return the hint of each field, with the limits that pydantic enforces.

    Raises:
        DefinitionError: A hint names a class that cannot be found.
    """
    try:
        cls.model_rebuild()
    except Exception as error:
        raise DefinitionError(
            f"The type hints of {cls.__qualname__} cannot be read: {format_error(error)}. "
            "Define the class at the top level of a module, or import the name it uses there."
        ) from error
    return {
        name: Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        for name, field in cls.model_fields.items()
    }


def validate(cls: Any, given: dict[str, Any]) -> Any:
    """Let a model validate a dict of its fields, by name or by alias.

    Raises:
        pydantic.ValidationError: It does not fit. Errors of the author's validators pass through.
    """
    # We send field names. Before 2.11 pydantic accepts a field with an alias only by the alias.
    version = sys.modules["pydantic"].VERSION.split(".")
    names = {"by_alias": True, "by_name": True} if (*map(int, version[:2]),) >= (2, 11) else {}
    return cls.model_validate(given, **names)


@final
class PydanticSpec(Spec):
    """A pydantic model, given as an instance or as a dict that it validates.

    Pydantic alone decides whether a value fits and what it is converted to. But a field that it
    would ignore is refused, as everywhere else.

    Attributes:
        cls: The model.
        fields: Its fields, as far as we understand their hints.
        optional: The names of those with a default.
        derived: The computed fields of its instances.
        is_recursive: Whether it holds itself.
    """

    def __init__(self, cls: Any, fields: Mapping[str, Spec]) -> None:
        self.cls = cls
        self.fields = dict(fields)
        known = cls.model_fields
        self.optional = frozenset(name for name in fields if not known[name].is_required())
        self.derived: dict[str, Spec] = {name: AnySpec() for name in cls.model_computed_fields}
        self.init_only: dict[str, Spec] = {}
        self.is_recursive = False
        self._schema = _json_schema(cls)
        self._drawn = self._drawable()
        self.can_sample = all(name in self._drawn for name in fields if name not in self.optional)

    def read(self, value: Any) -> Any:
        """Take an instance, or a dict that the model validates."""
        if isinstance(value, self.cls):
            return value
        if not isinstance(value, Mapping):
            raise Mismatch(
                f"{type(value).__name__} {short_repr(value)} is neither {self.cls.__name__} "
                "nor a dict "
                f"of its fields ({', '.join(self.fields)})"
            )
        _refuse_unknown(self.cls, value)
        pydantic = sys.modules["pydantic"]
        try:
            made = validate(self.cls, dict(value))
        except pydantic.ValidationError as error:
            raise _mismatch(error.errors(include_url=False), self.cls, value) from None
        except Exception as error:  # a validator of the author's
            raise Mismatch(f"{self.cls.__name__} refuses it: {format_error(error)}") from error
        _refuse_ignored(made, value)
        return made

    def overlap(self, value: Mapping[Any, Any]) -> int:
        """Return how many keys of a dict are fields here."""
        return sum(key in self.fields for key in value)

    def _drawable(self) -> dict[str, Spec]:
        """The fields to sample: those whose hint or schema says how."""
        drawn: dict[str, Spec] = {}
        properties = _properties(self._schema)
        for name, spec in self.fields.items():
            if name in self.optional and spec.exact is dict:
                continue  # the default is good enough
            schema = properties.get(self.cls.model_fields[name].alias or name, {})
            form = schema.get("format")
            if form in FORMATS:
                drawn[name] = StrSpec(format=form)
            elif spec.can_sample:
                drawn[name] = spec
        return drawn

    def sample(self, rng: np.random.Generator) -> Any:
        """Draw every field that can be sampled, and let the model validate them.

        Raises:
            SpecError: A field cannot be drawn, or the model refuses what is drawn.
        """
        for name, spec in self.fields.items():
            if name not in self._drawn and name not in self.optional:
                raise SpecError(
                    f"{self.cls.__name__}.{name} cannot be sampled: {short_repr(spec)}."
                )
        for _ in range(_ATTEMPTS):
            drawn = {name: spec.sample(rng) for name, spec in self._drawn.items()}
            try:
                return validate(self.cls, drawn)
            except Exception as error:  # noqa: BLE001 - pydantic's, or of the author's validator
                reason = error
        raise SpecError(
            f"{self.cls.__name__} refused {_ATTEMPTS} samples; the last error was: "
            f"{format_error(reason)}. "
            "Put its constraints into the type hints, as a Literal or as limits."
        ) from reason

    def json_schema(self) -> dict[str, Any]:
        """Describe the model as pydantic does; what it cannot describe, by the hints."""
        if self._schema is not None:
            return copy.deepcopy(self._schema)
        properties = {name: described(spec) for name, spec in self.fields.items()}
        return gathered(
            {
                "title": self.cls.__name__,
                "type": "object",
                "properties": properties,
                "required": [name for name in self.fields if name not in self.optional],
            }
        )

    def __repr__(self) -> str:
        return f"PydanticSpec({self.cls.__name__}, {self.fields!r})"


def _json_schema(cls: Any) -> dict[str, Any] | None:
    """The schema of a model; `None` if a field has a class that pydantic cannot describe."""
    try:
        schema: dict[str, Any] = cls.model_json_schema()
    except Exception:  # noqa: BLE001 - of pydantic's own, or of an author's class
        return None
    if "properties" in schema and not _takes_more(cls):
        schema["additionalProperties"] = False
    return schema


def _properties(schema: dict[str, Any] | None) -> dict[str, Any]:
    if schema is None:
        return {}
    if "$ref" in schema:
        schema = schema["$defs"][schema["$ref"].rpartition("/")[2]]
    return schema.get("properties", {})  # type: ignore[no-any-return] # a schema's


def _takes_more(cls: Any) -> bool:
    """Whether a dict may have extra keys: kept by the model, or read by a validator."""
    validators = cls.__pydantic_decorators__.model_validators.values()
    return cls.model_config.get("extra") == "allow" or any(
        one.info.mode in ("before", "wrap") for one in validators
    )


def _names(cls: Any) -> Iterator[str]:
    """The keys that a dict may have."""
    for name, field in cls.model_fields.items():
        yield name
        for alias in (field.validation_alias, field.alias):
            for one in getattr(alias, "choices", [alias]):  # of an `AliasChoices`
                if isinstance(first := getattr(one, "path", [one])[0], str):  # of an `AliasPath`
                    yield first


def _refuse_unknown(cls: Any, given: Mapping[Any, Any]) -> None:
    if given.keys() <= cls.model_fields.keys() or _takes_more(cls):
        return
    names = list(_names(cls))
    for key in given:
        if key not in names:
            known = f"Known: {', '.join(cls.model_fields)}." if names else "It has none."
            hint = suggest(str(key), names) or f" {known}"
            raise Mismatch(f"unknown field.{hint}").under(f".{key}")


def _refuse_ignored(made: Any, given: Any) -> None:
    """Refuse a dict anywhere in the input if the model made from it ignored a key."""
    if isinstance(made, Mapping) and isinstance(given, Mapping):
        pairs = [(f"[{key!r}]", one, given[key]) for key, one in made.items() if key in given]
    elif isinstance(made, list | tuple) and isinstance(given, list | tuple):
        pairs = [(f"[{i}]", *both) for i, both in enumerate(zip(made, given, strict=False))]
    elif is_model(type(made)) and isinstance(given, Mapping):
        _refuse_unknown(type(made), given)
        pairs = [(f".{key}", getattr(made, key, None), one) for key, one in given.items()]
    else:
        return
    for step, one, was in pairs:
        try:
            _refuse_ignored(one, was)
        except Mismatch as mismatch:
            raise mismatch.under(step) from None


def _mismatch(errors: Sequence[Mapping[str, Any]], cls: Any, given: Any) -> Mismatch:
    """The most helpful of pydantic's errors, as a mismatch with its path."""
    # An unknown field is usually a missing one, misspelled.
    unknown = [one for one in errors if one["type"] == "extra_forbidden"]
    error = (unknown or errors)[0]
    path, owner, parent = _path(error, cls, given)
    if error["type"] == "missing":
        message = "this field is missing"
        if misspelled := [key for key in parent if suggest(str(key), [path[-1][1:]])]:
            message = f"unknown field.{suggest(str(misspelled[0]), [path[-1][1:]])}"
            path[-1] = f".{misspelled[0]}"
    elif error["type"] == "extra_forbidden":
        names = [] if owner is None else list(_names(owner))
        message = f"unknown field.{suggest(path[-1][1:], names)}"
    else:
        message = f"{short_repr(error['input'])} is refused: {error['msg']}"
    mismatch = Mismatch(message)
    for step in reversed(path):
        mismatch = mismatch.under(step)
    return mismatch


def _path(
    error: Mapping[str, Any], cls: Any, given: Any
) -> tuple[list[str], Any, Mapping[Any, Any]]:
    """The path of an error, the model there if known, and the dict it was made from."""
    path: list[str] = []
    parent: Mapping[Any, Any] = {}
    owner, last = cls, len(error["loc"]) - 1
    at_end = error["type"] in ("missing", "extra_forbidden")
    for index, part in enumerate(error["loc"]):
        if isinstance(given, Mapping) and (part in given or (at_end and index == last)):
            parent, given = given, given.get(part)
            path.append(f".{part}")
            owner = owner if index == last else _model_of(owner, part)
        elif isinstance(given, list | tuple) and isinstance(part, int):
            given = given[part] if part < len(given) else None
            path.append(f"[{part}]")
        # Anything else names an option of a union, not a place in the input.
    return path, owner, parent


def _model_of(owner: Any, part: Any) -> Any:
    """The model within a field, if there is exactly one."""
    field = owner.model_fields.get(part) if is_model(owner) else None
    found = {one for one in _classes(getattr(field, "annotation", None)) if is_model(one)}
    return found.pop() if len(found) == 1 else None


def _classes(hint: Any) -> Iterator[Any]:
    yield hint
    for argument in getattr(hint, "__args__", ()):
        yield from _classes(argument)

"""The arguments of a tool, and how those of a call are bound and checked by codec specs."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from envweave.codec import Mismatch, Spec
from envweave.errors import suggest

EMPTY: Any = inspect.Parameter.empty
"""A missing hint or default."""

Parameter = inspect.Parameter

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def is_usable(name: str) -> bool:
    """Whether Python code can use the name for a variable."""
    return name.isidentifier() and not keyword.iskeyword(name)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of a tool.

    Attributes:
        name: Its name.
        kind: How it is passed. An argument whose name is not an identifier can only be passed by
            `**`, and is `KEYWORD_ONLY`.
        hint: Its type, or `EMPTY`.
        default: Its default; `EMPTY` if it is required.
        schema: Its JSON Schema; empty if unknown.
        spec: Checks it; `None` accepts everything.
        description: Its description.
        none_is_absent: Whether `None` means that it is omitted.
    """

    name: str
    kind: inspect._ParameterKind = Parameter.POSITIONAL_OR_KEYWORD
    hint: Any = EMPTY
    default: Any = EMPTY
    schema: dict[str, Any] = field(default_factory=dict)
    spec: Spec | None = None
    description: str = ""
    none_is_absent: bool = False

    @property
    def is_required(self) -> bool:
        """Whether a call without it is refused."""
        variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        return self.default is EMPTY and self.kind not in variable

    def read(self, value: Any) -> Any:
        """Return a value converted for the function.

        Raises:
            Mismatch: It does not match the spec.
        """
        return value if self.spec is None else self.spec.read(value)


@final
class Arguments:
    """The arguments of a tool.

    Args:
        tool: The tool's name, for errors.
        each: The arguments, in positional order.
        returns: The hint of the return value, or `EMPTY`.
        known: Whether the signature is known. If not, everything is accepted.
    """

    def __init__(
        self,
        tool: str,
        each: Iterable[Argument],
        *,
        returns: Any = EMPTY,
        known: bool = True,
    ) -> None:
        self.tool = tool
        self.each = tuple(each)
        self.returns = returns
        self.known = known
        self._by_name = {one.name: one for one in self.each}
        self._first = [one for one in self.each if one.kind is Parameter.POSITIONAL_ONLY]
        self._rest = next((one for one in self.each if one.kind is Parameter.VAR_KEYWORD), None)
        # A name that is not an identifier cannot be in a signature; it is bound through `**`.
        self.odd = [one for one in self.each if not is_usable(one.name)]
        bound = [
            Parameter(one.name, one.kind, default=one.default)
            for one in self.each
            if is_usable(one.name)
        ]
        if self.odd and self._rest is None:
            bound.append(Parameter("__others", Parameter.VAR_KEYWORD))
        self._signature = inspect.Signature(bound)
        self._plain = self._by_position()
        self._least = sum(one.is_required for one in self._plain)

    def _by_position(self) -> list[Argument]:
        """Return the arguments for the fast path: positional only, with no special cases."""
        if any(one.none_is_absent for one in self.each):
            return []
        if any(one.is_required and one.kind is Parameter.KEYWORD_ONLY for one in self.each):
            return []
        return [one for one in self.each if one.kind in _POSITIONAL]

    def names(self) -> list[str]:
        """Return the names of the arguments that can be positional, in order."""
        return [one.name for one in self.each if one.kind in _POSITIONAL]

    def hints(self) -> dict[str, Any]:
        """Return the hints by name, as a function has them in its `__annotations__`."""
        return {one.name: one.hint for one in self.each if one.hint is not EMPTY}

    def read(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the arguments of a call, converted for the function.

        Raises:
            TypeError: They do not match; the message says which argument, and why.
        """
        plain = self._plain
        if plain and not kwargs and self._least <= len(args) <= len(plain):
            # `Signature.bind` would cost more than the rest of the call.
            return [
                value if one.spec is None else self._read(one.name, one.name, value)
                for one, value in zip(plain, args, strict=False)
            ], kwargs
        if not self.known:
            return args, kwargs
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(self._reason(error, kwargs)) from None
        for name, value in list(bound.arguments.items()):
            kind = self._signature.parameters[name].kind
            if kind is Parameter.VAR_POSITIONAL:
                bound.arguments[name] = tuple(self._read(name, name, one) for one in value)
            elif kind is Parameter.VAR_KEYWORD:
                bound.arguments[name] = self._read_others(value)
            elif value is None and self._by_name[name].none_is_absent:
                del bound.arguments[name]
            else:
                bound.arguments[name] = self._read(name, name, value)
        self._refuse_missing(kwargs)
        return bound.args, bound.kwargs

    def read_named(self, given: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the arguments of a call that passes all by name, as `read` does."""
        if not self.known:
            return (), given
        left = dict(given)
        first: list[Any] = []
        for one in self._first:
            if one.name not in left:
                break
            first.append(left.pop(one.name))
        return self.read(first, left)

    def _read(self, name: str, shown: str, value: Any) -> Any:
        try:
            return self._by_name[name].read(value)
        except Mismatch as mismatch:
            raise TypeError(f"{self.tool}() argument {mismatch.describe(shown)}") from None

    def _read_others(self, given: Mapping[str, Any]) -> dict[str, Any]:
        read = {}
        for name, value in given.items():
            if name in self._by_name and not is_usable(name):
                if value is not None or not self._by_name[name].none_is_absent:
                    read[name] = self._read(name, name, value)
            elif self._rest is not None:
                read[name] = self._read(self._rest.name, name, value)
            else:
                raise TypeError(self._unexpected(name))
        return read

    def _refuse_missing(self, given: Mapping[str, Any]) -> None:
        for one in self.odd:
            if one.is_required and one.name not in given:
                raise TypeError(
                    f"{self.tool}() missing a required argument: {one.name!r}. "
                    f"Pass it as **{{{one.name!r}: …}}."
                )

    def _reason(self, error: TypeError, given: Mapping[str, Any]) -> str:
        text = str(error)
        if self._rest is None:  # a misspelled name explains a missing one
            for name in given:
                if name not in self._by_name:
                    return self._unexpected(name)
        fits = text.startswith(("missing", "got", "too"))
        return f"{self.tool}() {text}" if fits else f"{self.tool}() was called incorrectly: {text}"

    def _unexpected(self, name: str) -> str:
        hint = suggest(name, self._by_name)
        return f"{self.tool}() got an unexpected keyword argument {name!r}{hint and '.'}{hint}"

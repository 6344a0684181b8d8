"""Lists variables with types and reprs.

Also runs inside sessions, so it imports only the standard library.

The values are the agent's: their classes and reprs may do anything.
"""

import re
import reprlib
import types
from collections.abc import Iterable, Mapping
from typing import Any

MOST_NAMES = 200
NAME_CHARACTERS = 100
REPR_CHARACTERS = 80

_SIMPLE = (type(None), bool, int, float, str, bytes)
_SHORTENED = ("builtins", "collections", "array")
_ADDRESS = re.compile(" at 0x[0-9a-fA-F]+>")
_name_of = type.__dict__["__name__"].__get__
_bases_of = type.__dict__["__mro__"].__get__


def show(namespace: Mapping[str, Any], own: Iterable[str], *, call_repr: bool) -> list[list[str]]:
    """Return name, type and repr of the first 200 variables that the code has bound.

    Args:
        namespace: All names that are bound.
        own: Names that were bound for the code, not by it.
        call_repr: Whether to call the `__repr__` of every value, or of numbers and strings only.
    """
    skipped = frozenset(own)
    shown: list[list[str]] = []
    for name, value in list(namespace.items()):
        kind = type(value)
        if type(name) is not str or name.startswith("_") or name in skipped:
            continue
        if types.ModuleType in _bases_of(kind):
            continue
        text = _repr(value) if call_repr or kind in _SIMPLE else _describe(kind)
        name, text = map(_whole, (name[:NAME_CHARACTERS], text))
        shown.append([name, _name_of(kind)[:NAME_CHARACTERS], text])
        if len(shown) == MOST_NAMES:
            break
    return shown


def _repr(value: Any) -> str:
    try:
        text = str.__str__(_short.repr(value))
    except KeyboardInterrupt:  # the time limit
        raise
    except BaseException as error:  # noqa: BLE001 - the agent's code may raise anything
        return f"<{_name_of(type(value))[:40]} object, whose repr raised {_name_of(type(error))}>"
    if type(value) not in _SIMPLE:
        text = _ADDRESS.sub(">", text)  # different every time
    return text[:REPR_CHARACTERS]


def _whole(text: str) -> str:
    """Return the text with lone surrogates escaped, which UTF-8 cannot encode."""
    return text.encode(errors="backslashreplace").decode()


def _describe(kind: type) -> str:
    return f"<{_name_of(kind)[:40]} object>"


class _Repr(reprlib.Repr):
    """Shortens builtin types only: `reprlib` goes by class names, which the code may choose."""

    def __init__(self) -> None:
        super().__init__()
        self.maxtuple = self.maxlist = self.maxarray = self.maxdict = 6
        self.maxset = self.maxfrozenset = 6
        self.maxstring = self.maxlong = self.maxother = REPR_CHARACTERS

    def repr1(self, x: Any, level: int) -> str:
        if type(x).__module__ in _SHORTENED:
            return super().repr1(x, level)
        return self.repr_instance(x, level)


_short = _Repr()

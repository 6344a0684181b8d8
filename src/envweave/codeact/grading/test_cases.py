"""The cases of `HiddenTests`: what goes into a session, and what must come out of it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from envweave.codeact.answers import check_tolerance
from envweave.codeact.grading.asserts import read_asserts, refuse_guessable, sendable
from envweave.codeact.grading.checks import Check
from envweave.errors import OptionError, PlainDataError, suggest
from envweave.sandbox.plain import pack

INPUTS = "__case__"
"""The variable that holds the inputs of a case."""

_KEYS = ("call", "args", "kwargs", "expected", "tolerance", "stdin", "stdout")
_SHAPES = (
    'Write {"call": "f(1)", "expected": 2}, {"args": [1], "expected": 2} with entry="f", '
    '{"stdin": "1", "stdout": "2"}, or text with asserts.'
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One test. What is expected is in `check`, and nothing else of it goes into a session.

    Attributes:
        check: What must be true of the value that comes out, or of what was printed.
        call: An expression that is run after the program; its value comes out in a list. Without
            one the program itself is the test, and what it prints comes out.
        inputs: What the expression finds in the variable `INPUTS`.
        stdin: What the program can read.
    """

    check: Check = field(repr=False)
    call: str | None = None
    inputs: Any = None
    stdin: str | None = None


def read_cases(given: Any, name: str, entry: str | None) -> list[Case]:
    """Return cases that were given as dicts, or as text with asserts, or as a list of those.

    Raises:
        OptionError: One is neither. The message says which and why, and quotes none of it.
    """
    if isinstance(given, str | Mapping):
        given = [given]
    if not isinstance(given, Iterable):
        raise OptionError(f"{name}: expected a list, got {type(given).__name__}. {_SHAPES}")
    cases: list[Case] = []
    for number, one in enumerate(given, start=1):
        try:
            cases += _read(one, entry)
        except OptionError as error:
            raise OptionError(f"{name}: case {number}: {error}") from None
    if not cases:
        raise OptionError(f"{name}: there is no case. {_SHAPES}")
    return cases


def read_entry(entry: Any) -> str | None:
    """Return what cases with arguments call.

    Raises:
        OptionError: It is not an expression.
    """
    if entry is None:
        return None
    if not isinstance(entry, str):
        raise OptionError(f"HiddenTests(entry={entry!r}): expected the name of a function.")
    try:
        sendable(entry)
    except OptionError as error:
        raise OptionError(f"HiddenTests(entry={entry!r}): {error}") from None
    return entry


def _read(one: Any, entry: str | None) -> list[Case]:
    if isinstance(one, str):
        return [
            Case(call=f"[{asserted.expression}]", check=asserted.check)
            for asserted in read_asserts(one)
        ]
    if not isinstance(one, Mapping):
        raise OptionError(f"expected a dict or text, got {type(one).__name__}. {_SHAPES}")
    for key in one:
        if key not in _KEYS:
            raise OptionError(f"there is no key {key!r}.{suggest(str(key), _KEYS)} {_SHAPES}")
    if "stdout" in one or "stdin" in one:
        return [_program_case(one)]
    if "expected" not in one or ("call" in one) == ("args" in one or "kwargs" in one):
        raise OptionError(f"the keys {', '.join(map(repr, one))} make no case. {_SHAPES}")
    check = _check(one)
    if "call" in one:
        return [Case(call=f"[{_call(one['call'], check.expected)}]", check=check)]
    if entry is None:
        raise OptionError('it has arguments: tell what to call by entry="f".')
    args, kwargs = one.get("args", []), one.get("kwargs", {})
    if not isinstance(args, list | tuple) or not isinstance(kwargs, Mapping):
        raise OptionError("args are a list, and kwargs a dict.")
    if not all(isinstance(name, str) for name in kwargs):
        raise OptionError("the keys of kwargs are names.")
    inputs = _plain({"args": list(args), "kwargs": dict(kwargs)})
    call = f"[({entry})(*{INPUTS}['args'], **{INPUTS}['kwargs'])]"
    return [Case(call=call, inputs=inputs, check=check)]


def _program_case(one: Mapping[str, Any]) -> Case:
    if not set(one) <= {"stdin", "stdout"} or "stdout" not in one:
        raise OptionError(f"the keys {', '.join(map(repr, one))} make no case. {_SHAPES}")
    stdin, stdout = one.get("stdin", ""), one["stdout"]
    if not isinstance(stdin, str) or not isinstance(stdout, str):
        raise OptionError("stdin and stdout are text.")
    return Case(stdin=_plain(stdin), check=Check("printed", stdout))


def _call(expression: Any, expected: Any) -> str:
    if not isinstance(expression, str):
        raise OptionError("call is an expression, as text.")
    node = sendable(expression)
    refuse_guessable(node, expected)
    return ast.unparse(node)


def _plain(inputs: Any) -> Any:
    try:
        pack(inputs, name="inputs")
    except PlainDataError as error:
        raise OptionError(str(error)) from None
    return inputs


def _check(one: Mapping[str, Any]) -> Check:
    tolerance = one.get("tolerance", 0.0)
    check_tolerance("tolerance", tolerance)
    return Check("equal", one["expected"], absolute=float(tolerance))

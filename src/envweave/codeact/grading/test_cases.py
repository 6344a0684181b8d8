"""The cases of `HiddenTests`: their inputs, and the checks of their outputs."""

from __future__ import annotations

import ast
import builtins
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, final

import numpy as np

from envweave.codeact.grading.comparison import check_tolerance, is_same, read_expected
from envweave.errors import OptionError, PlainDataError, suggest
from envweave.sandbox.protocol.encoding import pack

Kind = Literal[
    "equal",
    "unequal",
    "among",
    "not among",
    "holding",
    "not holding",
    "true",
    "close",
    "closer",
    "printed",
]

_MOST_ITEMS = 100_000
"""How many items of an answer are searched."""


@final
@dataclass(frozen=True, slots=True)
class TestCheck:
    """A check of a value. Its `repr` does not show what is expected.

    Attributes:
        kind: How the value must relate to the expected one.
        expected: The expected value: plain data.
        absolute: The absolute tolerance of numbers.
        relative: The relative tolerance, of the larger number; for `"close"`.

    Raises:
        OptionError: No value can pass.
    """

    kind: Kind
    expected: Any = field(repr=False)
    absolute: float = 0.0
    relative: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "expected", read_expected(self.expected, "expected"))
        if self.kind in ("among", "not among") and not isinstance(
            self.expected, str | list | tuple | set | frozenset | dict
        ):
            raise OptionError(
                "`in` needs text, a list, a tuple, a set or a dict on its right side."
            )

    def holds(self, value: Any) -> bool:
        """Whether plain data passes. Never raises."""
        return _DECIDE[self.kind](self, value)


def _is_equal(check: TestCheck, value: Any) -> bool:
    return is_same(value, check.expected, absolute=check.absolute)


def _is_among(check: TestCheck, value: Any) -> bool:
    if isinstance(check.expected, str):
        return isinstance(value, str) and value in check.expected
    return any(is_same(value, one) for one in check.expected)


def _holds(check: TestCheck, value: Any) -> bool:
    if isinstance(value, str):
        return isinstance(check.expected, str) and check.expected in value
    return _can_hold(value) and any(is_same(one, check.expected) for one in value)


def _lacks(check: TestCheck, value: Any) -> bool:
    return _can_hold(value) and not _holds(check, value)


def _can_hold(value: Any) -> bool:
    if not isinstance(value, str | list | tuple | set | frozenset | dict):
        return False
    return isinstance(value, str) or len(value) <= _MOST_ITEMS


def _is_true(check: TestCheck, value: Any) -> bool:
    if isinstance(value, np.ndarray):  # neither true nor false
        return False
    return bool(value) is check.expected


def _is_close(check: TestCheck, value: Any) -> bool:
    if type(value) not in (int, float):
        return False
    try:
        return math.isclose(value, check.expected, rel_tol=check.relative, abs_tol=check.absolute)
    except OverflowError:  # an int larger than every float
        return bool(value == check.expected)


def _is_closer(check: TestCheck, value: Any) -> bool:
    if type(value) not in (int, float):
        return False
    try:
        return bool(abs(value - check.expected) < check.absolute)
    except OverflowError:
        return False


def _is_printed(check: TestCheck, value: Any) -> bool:
    return isinstance(value, str) and _lines(value) == _lines(check.expected)


def _lines(text: str) -> list[str]:
    """Return the lines of a text, without trailing blanks."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


_DECIDE: dict[Kind, Callable[[TestCheck, Any], bool]] = {
    "equal": _is_equal,
    "unequal": lambda check, value: not _is_equal(check, value),
    "among": _is_among,
    "not among": lambda check, value: not _is_among(check, value),
    "holding": _holds,
    "not holding": _lacks,
    "true": _is_true,
    "close": _is_close,
    "closer": _is_closer,
    "printed": _is_printed,
}


_HOW = (
    "Write `assert f(1) == 2` with a literal on one side; also `!=`, `in`, `not in`, `is None`, "
    "`assert f(1)`, `assert not f(1)`, `abs(f(1) - 2) < 0.1` and `math.isclose(f(1), 2)`."
)
_CONSTRUCTORS = {one.__name__: one for one in (dict, float, frozenset, list, set, sorted, tuple)}
_OPERATORS: dict[type[ast.cmpop], Kind] = {
    ast.Eq: "equal",
    ast.NotEq: "unequal",
    ast.Is: "equal",
    ast.IsNot: "unequal",
    ast.In: "among",
    ast.NotIn: "not among",
}
_SWAPPED: dict[Kind, Kind] = {"among": "holding", "not among": "not holding"}


class Asserted(NamedTuple):
    """One assert: an expression to run, and the check of its value."""

    expression: str
    check: TestCheck


class _NotLiteralError(Exception):
    """A node is not a literal."""


def read_asserts(text: str) -> list[Asserted]:
    """Return the asserts of a text, in order.

    Raises:
        OptionError: It contains anything else. The message names the line, and quotes nothing.
    """
    try:
        tree = ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        raise OptionError(f"line {line} is not Python. {_HOW}") from None
    return [_read_assert(statement) for statement in tree.body]


def parse_sendable(expression: str) -> ast.expr:
    """Parse an expression that may run in the agent's session.

    Raises:
        OptionError: It is not an expression, or it contains a comparison: the agent's code could
            read the expected value.
    """
    try:
        node = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise OptionError("it is not a Python expression.") from None
    _refuse_comparison(node)
    return node


def refuse_guessable(node: ast.expr, expected: Any) -> None:
    """Refuse an expression that the agent's code could satisfy by replacing a builtin.

    Raises:
        OptionError: It is a call of a builtin, and the expected value is a bool or `None`.
    """
    if not _is_none_or_bool(expected):
        return
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        node = node.operand
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and hasattr(builtins, node.func.id)
    ):
        raise OptionError(
            f"{node.func.id}() would run in the agent's session, which can replace it, and its "
            "value is easy to guess. Compare the value itself: assert f(1) == 2."
        )


def _read_assert(statement: ast.stmt) -> Asserted:
    try:
        if not isinstance(statement, ast.Assert):
            raise OptionError(f"{type(statement).__name__} is not an assert. {_HOW}")
        node, check = _split_test(statement.test)
        _refuse_comparison(node)
        refuse_guessable(node, check.expected)
    except OptionError as error:
        raise OptionError(f"line {statement.lineno}: {error}") from None
    return Asserted(ast.unparse(node), check)


def _split_test(test: ast.expr) -> tuple[ast.expr, TestCheck]:
    if isinstance(test, ast.Compare):
        if len(test.ops) != 1:
            raise OptionError(f"it compares more than once. {_HOW}")
        return _split_comparison(test.left, test.ops[0], test.comparators[0])
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand, TestCheck("true", expected=False)
    if isinstance(test, ast.BoolOp):
        raise OptionError("it asserts several things at once. Write an assert for each.")
    if _is_call_of(test, "math.isclose", "isclose"):
        return _split_isclose(test)  # type: ignore[arg-type]
    return test, TestCheck("true", expected=True)


def _split_comparison(
    left: ast.expr, operator: ast.cmpop, right: ast.expr
) -> tuple[ast.expr, TestCheck]:
    if isinstance(operator, ast.Lt | ast.LtE) and _is_call_of(left, "abs"):
        return _split_abs(left, operator, right)  # type: ignore[arg-type]
    kind = _OPERATORS.get(type(operator))
    if kind is None:
        raise OptionError(f"{type(operator).__name__} is not a supported comparison. {_HOW}")
    try:
        node, expected = left, _literal(right)
    except _NotLiteralError:
        node, expected = right, _require_literal(left)
        kind = _SWAPPED.get(kind, kind)
    if isinstance(operator, ast.Is | ast.IsNot) and not _is_none_or_bool(expected):
        raise OptionError("`is` is for None, True and False. Write == instead.")
    return node, TestCheck(kind, expected=expected)


def _split_abs(left: ast.Call, operator: ast.cmpop, right: ast.expr) -> tuple[ast.expr, TestCheck]:
    """Split `abs(f(1) - 2) < 0.1`."""
    inner = left.args[0] if len(left.args) == 1 and not left.keywords else None
    if not (isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub)):
        raise OptionError(f"abs() must be of a difference. {_HOW}")
    try:
        node, expected = inner.left, _literal(inner.right)
    except _NotLiteralError:
        node, expected = inner.right, _require_literal(inner.left)
    kind: Kind = "closer" if isinstance(operator, ast.Lt) else "equal"
    return node, TestCheck(kind, _number(expected), absolute=_tolerance(_require_literal(right)))


def _split_isclose(call: ast.Call) -> tuple[ast.expr, TestCheck]:
    """Split `math.isclose(f(1), 2, rel_tol=…, abs_tol=…)`."""
    given = {one.arg: _tolerance(_require_literal(one.value)) for one in call.keywords}
    if len(call.args) != 2 or not given.keys() <= {"rel_tol", "abs_tol"}:
        raise OptionError(f"isclose() takes two numbers, rel_tol and abs_tol. {_HOW}")
    try:
        node, expected = call.args[0], _literal(call.args[1])
    except _NotLiteralError:
        node, expected = call.args[1], _require_literal(call.args[0])
    relative, absolute = given.get("rel_tol", 1e-9), given.get("abs_tol", 0.0)
    return node, TestCheck("close", _number(expected), absolute=absolute, relative=relative)


def _is_none_or_bool(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _require_literal(node: ast.expr) -> Any:
    try:
        return _literal(node)
    except _NotLiteralError:
        raise OptionError(f"neither side is a literal. {_HOW}") from None


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal, or of `set([1, 2])` and similar.

    Raises:
        _NotLiteralError: It is something else.
    """
    try:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in _CONSTRUCTORS
            and len(node.args) <= 1
            and not node.keywords
        ):
            make: Any = _CONSTRUCTORS[node.func.id]
            return make(*map(_literal, node.args))
        return ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError):
        raise _NotLiteralError from None


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError("a tolerance and the compared value must be numbers.")
    return value


def _tolerance(value: Any) -> float:
    check_tolerance("tolerance", value)
    return float(value)


def _is_call_of(node: ast.expr, *names: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in names


def _refuse_comparison(node: ast.expr) -> None:
    if any(isinstance(part, ast.Compare) for part in _outside_of_lambdas(node)):
        raise OptionError(
            "it compares within an expression, which would run in the agent's session. Compare "
            "the value itself: assert f(1) == 2."
        )


def _outside_of_lambdas(node: ast.AST) -> Iterator[ast.AST]:
    """Walk an expression, but not into functions that are passed as inputs."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.Lambda):
            yield from _outside_of_lambdas(child)


INPUTS = "__case__"
"""The variable that holds the inputs of a case."""

_KEYS = ("call", "args", "kwargs", "expected", "tolerance", "stdin", "stdout")
_SHAPES = (
    'Write {"call": "f(1)", "expected": 2}, {"args": [1], "expected": 2} with entry="f", '
    '{"stdin": "1", "stdout": "2"}, or text with asserts.'
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TestCase:
    """One test. The expected value is in `check` only, which never enters a session.

    Attributes:
        check: The check of the value, or of the output.
        call: An expression that runs after the program and returns its value in a list. `None`
            checks what the program prints.
        inputs: The value of the variable `INPUTS`.
        stdin: The stdin of the program.
    """

    check: TestCheck = field(repr=False)
    call: str | None = None
    inputs: Any = None
    stdin: str | None = None


def read_cases(given: Any, name: str, entry: str | None) -> list[TestCase]:
    """Parse cases: dicts, or text with asserts, or a list of those.

    Raises:
        OptionError: One is invalid. The message says which and why, and quotes none of it.
    """
    if isinstance(given, str | Mapping):
        given = [given]
    if not isinstance(given, Iterable):
        raise OptionError(f"{name}: expected a list, got {type(given).__name__}. {_SHAPES}")
    cases: list[TestCase] = []
    for number, one in enumerate(given, start=1):
        try:
            cases += _read_case(one, entry)
        except OptionError as error:
            raise OptionError(f"{name}: case {number}: {error}") from None
    if not cases:
        raise OptionError(f"{name}: expected at least one case. {_SHAPES}")
    return cases


def read_entry(entry: Any) -> str | None:
    """Check `entry`, the expression that cases with arguments call.

    Raises:
        OptionError: It is not an expression.
    """
    if entry is None:
        return None
    if not isinstance(entry, str):
        raise OptionError(f"HiddenTests(entry={entry!r}): expected the name of a function.")
    try:
        parse_sendable(entry)
    except OptionError as error:
        raise OptionError(f"HiddenTests(entry={entry!r}): {error}") from None
    return entry


def _read_case(one: Any, entry: str | None) -> list[TestCase]:
    if isinstance(one, str):
        return [
            TestCase(call=f"[{asserted.expression}]", check=asserted.check)
            for asserted in read_asserts(one)
        ]
    if not isinstance(one, Mapping):
        raise OptionError(f"expected a dict or text, got {type(one).__name__}. {_SHAPES}")
    for key in one:
        if key not in _KEYS:
            raise OptionError(f"unknown key {key!r}.{suggest(str(key), _KEYS)} {_SHAPES}")
    if "stdout" in one or "stdin" in one:
        return [_read_program_case(one)]
    if "expected" not in one or ("call" in one) == ("args" in one or "kwargs" in one):
        raise OptionError(
            f"the keys {', '.join(map(repr, one))} are not a valid combination. {_SHAPES}"
        )
    check = _read_check(one)
    if "call" in one:
        return [TestCase(call=f"[{_read_call(one['call'], check.expected)}]", check=check)]
    if entry is None:
        raise OptionError('it has arguments: name the function to call with entry="f".')
    args, kwargs = one.get("args", []), one.get("kwargs", {})
    if not isinstance(args, list | tuple) or not isinstance(kwargs, Mapping):
        raise OptionError("args must be a list, and kwargs a dict.")
    if not all(isinstance(name, str) for name in kwargs):
        raise OptionError("the keys of kwargs must be identifiers.")
    inputs = _check_plain({"args": list(args), "kwargs": dict(kwargs)})
    call = f"[({entry})(*{INPUTS}['args'], **{INPUTS}['kwargs'])]"
    return [TestCase(call=call, inputs=inputs, check=check)]


def _read_program_case(one: Mapping[str, Any]) -> TestCase:
    if not set(one) <= {"stdin", "stdout"} or "stdout" not in one:
        raise OptionError(
            f"the keys {', '.join(map(repr, one))} are not a valid combination. {_SHAPES}"
        )
    stdin, stdout = one.get("stdin", ""), one["stdout"]
    if not isinstance(stdin, str) or not isinstance(stdout, str):
        raise OptionError("stdin and stdout must be text.")
    return TestCase(stdin=_check_plain(stdin), check=TestCheck("printed", stdout))


def _read_call(expression: Any, expected: Any) -> str:
    if not isinstance(expression, str):
        raise OptionError("call must be an expression, as text.")
    node = parse_sendable(expression)
    refuse_guessable(node, expected)
    return ast.unparse(node)


def _check_plain(inputs: Any) -> Any:
    try:
        pack(inputs, name="inputs")
    except PlainDataError as error:
        raise OptionError(str(error)) from None
    return inputs


def _read_check(one: Mapping[str, Any]) -> TestCheck:
    tolerance = one.get("tolerance", 0.0)
    check_tolerance("tolerance", tolerance)
    return TestCheck("equal", one["expected"], absolute=float(tolerance))

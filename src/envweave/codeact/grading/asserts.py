"""Tests written as `assert` statements, taken apart: what runs, and what it is compared with.

The left side runs among the agent's code. The right side never does: it is a literal, which stays
on the host. So an assert that compares inside of an expression is refused.
"""

from __future__ import annotations

import ast
import builtins
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

from envweave.codeact.answers import check_tolerance
from envweave.codeact.grading.checks import Check, Kind
from envweave.errors import OptionError

_HOW = (
    "Write `assert f(1) == 2` with a literal on one side; also `!=`, `in`, `not in`, `is None`, "
    "`assert f(1)`, `assert not f(1)`, `abs(f(1) - 2) < 0.1` and `math.isclose(f(1), 2)`."
)
_MAKERS = {one.__name__: one for one in (dict, float, frozenset, list, set, sorted, tuple)}
_OPERATORS: dict[type[ast.cmpop], Kind] = {
    ast.Eq: "equal",
    ast.NotEq: "unequal",
    ast.Is: "equal",
    ast.IsNot: "unequal",
    ast.In: "among",
    ast.NotIn: "not among",
}
_TURNED: dict[Kind, Kind] = {"among": "holding", "not among": "not holding"}


class Asserted(NamedTuple):
    """One assert: an expression to be run, and what must be true of its value."""

    expression: str
    check: Check


class _NotLiteralError(Exception):
    """A node is no literal."""


def read_asserts(text: str) -> list[Asserted]:
    """Return the asserts of a text, in order.

    Raises:
        OptionError: There is something else in it. The message names the line, and quotes nothing.
    """
    try:
        tree = ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        raise OptionError(f"line {line} is not Python. {_HOW}") from None
    return [_read_assert(statement) for statement in tree.body]


def sendable(expression: str) -> ast.expr:
    """Return an expression that may run among the agent's code.

    Raises:
        OptionError: It is none, or it compares: what it compares with would be there to be read.
    """
    try:
        node = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise OptionError("it is no Python expression.") from None
    _refuse_comparison(node)
    return node


def refuse_guessable(node: ast.expr, expected: Any) -> None:
    """Refuse an expression whose outcome a replaced builtin would make right, without the agent's.

    Raises:
        OptionError: It is a call of a builtin, and only true, false or `None` is expected of it.
    """
    if not _is_single(expected):
        return
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        node = node.operand
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and hasattr(builtins, node.func.id)
    ):
        raise OptionError(
            f"{node.func.id}() would run among the agent's code, which can replace it, and its "
            "outcome is easy to guess. Compare the value itself: assert f(1) == 2."
        )


def _read_assert(statement: ast.stmt) -> Asserted:
    try:
        if not isinstance(statement, ast.Assert):
            raise OptionError(f"{type(statement).__name__} is no assert. {_HOW}")
        node, check = _taken_apart(statement.test)
        _refuse_comparison(node)
        refuse_guessable(node, check.expected)
    except OptionError as error:
        raise OptionError(f"line {statement.lineno}: {error}") from None
    return Asserted(ast.unparse(node), check)


def _taken_apart(test: ast.expr) -> tuple[ast.expr, Check]:
    if isinstance(test, ast.Compare):
        if len(test.ops) != 1:
            raise OptionError(f"it compares more than once. {_HOW}")
        return _compared(test.left, test.ops[0], test.comparators[0])
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand, Check("true", expected=False)
    if isinstance(test, ast.BoolOp):
        raise OptionError("it asserts several things at once. Write an assert for each.")
    if _is_call_of(test, "math.isclose", "isclose"):
        return _close(test)  # type: ignore[arg-type]
    return test, Check("true", expected=True)


def _compared(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> tuple[ast.expr, Check]:
    if isinstance(operator, ast.Lt | ast.LtE) and _is_call_of(left, "abs"):
        return _near(left, operator, right)  # type: ignore[arg-type]
    kind = _OPERATORS.get(type(operator))
    if kind is None:
        raise OptionError(f"{type(operator).__name__} is no comparison that is known. {_HOW}")
    try:
        node, expected = left, _literal(right)
    except _NotLiteralError:
        node, expected = right, _one_literal(left)
        kind = _TURNED.get(kind, kind)
    if isinstance(operator, ast.Is | ast.IsNot) and not _is_single(expected):
        raise OptionError("`is` is for None, True and False. Write == instead.")
    return node, Check(kind, expected=expected)


def _near(left: ast.Call, operator: ast.cmpop, right: ast.expr) -> tuple[ast.expr, Check]:
    """Take `abs(f(1) - 2) < 0.1` apart."""
    inner = left.args[0] if len(left.args) == 1 and not left.keywords else None
    if not (isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub)):
        raise OptionError(f"abs() must be of a difference. {_HOW}")
    try:
        node, expected = inner.left, _literal(inner.right)
    except _NotLiteralError:
        node, expected = inner.right, _one_literal(inner.left)
    kind: Kind = "closer" if isinstance(operator, ast.Lt) else "equal"
    return node, Check(kind, _number(expected), absolute=_tolerance(_one_literal(right)))


def _close(call: ast.Call) -> tuple[ast.expr, Check]:
    """Take `math.isclose(f(1), 2, rel_tol=…, abs_tol=…)` apart."""
    given = {one.arg: _tolerance(_one_literal(one.value)) for one in call.keywords}
    if len(call.args) != 2 or not given.keys() <= {"rel_tol", "abs_tol"}:
        raise OptionError(f"isclose() takes two numbers, rel_tol and abs_tol. {_HOW}")
    try:
        node, expected = call.args[0], _literal(call.args[1])
    except _NotLiteralError:
        node, expected = call.args[1], _one_literal(call.args[0])
    relative, absolute = given.get("rel_tol", 1e-9), given.get("abs_tol", 0.0)
    return node, Check("close", _number(expected), absolute=absolute, relative=relative)


def _is_single(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _one_literal(node: ast.expr) -> Any:
    try:
        return _literal(node)
    except _NotLiteralError:
        raise OptionError(f"neither side is a literal. {_HOW}") from None


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal, or of `set([1, 2])` and its kind.

    Raises:
        _NotLiteralError: It is something else.
    """
    try:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in _MAKERS
            and len(node.args) <= 1
            and not node.keywords
        ):
            make: Any = _MAKERS[node.func.id]
            return make(*map(_literal, node.args))
        return ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError):
        raise _NotLiteralError from None


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError("a tolerance, and what it is for, are numbers.")
    return value


def _tolerance(value: Any) -> float:
    check_tolerance("tolerance", value)
    return float(value)


def _is_call_of(node: ast.expr, *names: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in names


def _refuse_comparison(node: ast.expr) -> None:
    if any(isinstance(part, ast.Compare) for part in _outside_of_lambdas(node)):
        raise OptionError(
            "it compares within an expression, which would run among the agent's code. Let it "
            "come to the value itself, and compare that: assert f(1) == 2."
        )


def _outside_of_lambdas(node: ast.AST) -> Iterator[ast.AST]:
    """Go through an expression, but not into functions that are handed in as inputs."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.Lambda):
            yield from _outside_of_lambdas(child)

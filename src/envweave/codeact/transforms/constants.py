"""Works out what text an expression comes to, where that can be told without running it."""

from __future__ import annotations

import ast
from typing import Any

LONGEST = 1000
"""How long a text is that is worked out, and each of those that it is made of."""

_DEEPEST = 40
_METHODS = frozenset({"join", "lower", "lstrip", "replace", "rstrip", "strip", "upper"})


class _UnknownError(Exception):
    """It cannot be told."""


def text_of(node: ast.expr) -> str | None:
    """Return the text that an expression comes to, or `None` if that is not known.

    Known are literals, their sums, products, slices and items, f-strings, `%s`, and a few methods
    of text. What depends on a name is not.

    >>> text_of(ast.parse("'__ssalc__'[::-1].replace('x', 'y')", mode="eval").body)
    '__class__'
    """
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    try:
        value = _value(node, 0)
    except (_UnknownError, ValueError, TypeError, LookupError, OverflowError, ArithmeticError):
        return None
    return value if isinstance(value, str) else None


def _value(node: ast.expr, depth: int) -> Any:
    if depth > _DEEPEST:
        raise _UnknownError
    read = _READERS.get(type(node))
    if read is None:
        raise _UnknownError
    value = read(node, depth + 1)
    too_long = isinstance(value, str | bytes | list | tuple) and len(value) > LONGEST
    if too_long or (isinstance(value, int) and abs(value) > 1 << 32):
        raise _UnknownError
    return value


def _constant(node: ast.Constant, _depth: int) -> Any:
    return node.value


def _sequence(node: ast.List | ast.Tuple, depth: int) -> list[Any]:
    if len(node.elts) > LONGEST:
        raise _UnknownError
    return [_value(item, depth) for item in node.elts]


def _sign(node: ast.UnaryOp, depth: int) -> Any:
    if not isinstance(node.op, ast.USub):
        raise _UnknownError
    return -_value(node.operand, depth)


def _operation(node: ast.BinOp, depth: int) -> Any:
    left, right = _value(node.left, depth), _value(node.right, depth)
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Mult) and isinstance(left, str) and isinstance(right, int):
        return left * min(right, LONGEST + 1)
    if isinstance(node.op, ast.Mod) and isinstance(left, str):
        return _formatted(left, right)
    raise _UnknownError


def _formatted(pattern: str, given: Any) -> str:
    """Fill a pattern in, of which only `%s` and `%c` are known."""
    if pattern.replace("%s", "").replace("%c", "").count("%"):
        raise _UnknownError
    return pattern % (tuple(given) if isinstance(given, list) else given)


def _joined(node: ast.JoinedStr, depth: int) -> str:
    return "".join(str(_value(part, depth)) for part in node.values)


def _filled(node: ast.FormattedValue, depth: int) -> str:
    if node.format_spec is not None or node.conversion not in (-1, ord("s")):
        raise _UnknownError
    return str(_value(node.value, depth))


def _part(node: ast.Subscript, depth: int) -> Any:
    whole = _value(node.value, depth)
    if isinstance(node.slice, ast.Slice):
        bounds = (node.slice.lower, node.slice.upper, node.slice.step)
        return whole[slice(*(None if one is None else _value(one, depth) for one in bounds))]
    return whole[_value(node.slice, depth)]


def _call(node: ast.Call, depth: int) -> Any:
    if node.keywords or len(node.args) > LONGEST:
        raise _UnknownError
    if not isinstance(node.func, ast.Attribute):
        raise _UnknownError  # a name may be bound to anything, also to another `chr`
    whole = _value(node.func.value, depth)
    given = [_value(one, depth) for one in node.args]
    if isinstance(whole, bytes) and node.func.attr == "decode" and not given:
        return whole.decode()
    if isinstance(whole, str) and node.func.attr in _METHODS:
        return getattr(whole, node.func.attr)(*given)
    raise _UnknownError


_READERS: dict[type[ast.expr], Any] = {
    ast.Constant: _constant,
    ast.List: _sequence,
    ast.Tuple: _sequence,
    ast.UnaryOp: _sign,
    ast.BinOp: _operation,
    ast.JoinedStr: _joined,
    ast.FormattedValue: _filled,
    ast.Subscript: _part,
    ast.Call: _call,
}

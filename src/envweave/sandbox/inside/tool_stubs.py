"""Functions in the session's namespace that call tools on the host."""

from __future__ import annotations

import ast
import inspect
from functools import lru_cache
from types import FunctionType
from typing import TYPE_CHECKING, Any

from envweave.errors import PlainDataError
from envweave.sandbox.inside.channel import TooLargeError
from envweave.sandbox.protocol.encoding import OWN, pack

if TYPE_CHECKING:
    from envweave.sandbox.inside.channel import SessionChannel
    from envweave.sandbox.inside.interrupts import Interrupts
    from envweave.sandbox.protocol.messages import ToolSignature

__builtins__ = OWN

_pack = pack


class ToolError(Exception):
    """A tool failed. The message is the tool's own."""


ToolError.__module__ = "__main__"  # where code finds it


def make_tool(
    signature: ToolSignature, channel: SessionChannel, interrupts: Interrupts
) -> FunctionType:
    """Return a function that calls the tool on the host and waits for its result.

    It raises `ToolError` if the tool fails, and `TypeError`, before anything is sent, for
    arguments that are not plain data.
    """
    name = signature.name

    def tool(*args: Any, **kwargs: Any) -> Any:
        if not interrupts.running:
            raise ToolError(f"{name}() can be called only while the session runs code.")
        try:
            sent = [_pack(one, name=f"{name}() argument {i}") for i, one in enumerate(args, 1)]
            named = {
                _pack(key): _pack(one, name=f"{name}() argument {key!r}")
                for key, one in kwargs.items()
            }
        except PlainDataError as error:
            raise TypeError(str(error)) from None
        try:
            answer = channel.call_tool(name, sent, named)
        except TooLargeError as error:
            raise ValueError(f"{name}(): the arguments are too large: {error}") from None
        if answer.ok:
            return answer.value
        raise ToolError(answer.value if isinstance(answer.value, str) else repr(answer.value))

    tool.__name__ = tool.__qualname__ = name
    tool.__doc__ = signature.doc or None
    tool.__module__ = "__main__"
    tool.__annotations__ = {}
    parsed = parse_signature(signature.signature)
    if parsed is not None:
        tool.__signature__ = parsed  # type: ignore[attr-defined]
    return tool  # type: ignore[return-value]


class _StubSource:
    """An annotation or a default, displayed as it is written on the host."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


@lru_cache(maxsize=256)
def parse_signature(text: str) -> inspect.Signature | None:
    """Return the signature in the text; `None` if it is not valid.

    Cached, so that a template parses it once for all its sessions.
    """
    source = f"def tool{text}: ..."
    try:
        function = ast.parse(source).body[0]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(function, ast.FunctionDef):
        return None
    arguments, kinds = function.args, inspect.Parameter
    lines = source.encode().splitlines()
    parameters = []

    def shown(node: ast.expr | None) -> Any:
        if node is None:
            return inspect.Signature.empty
        if node.lineno != node.end_lineno:
            return _StubSource(ast.unparse(node))
        return _StubSource(lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode())

    def add(one: ast.arg, kind: Any, default: ast.expr | None) -> None:
        annotation = shown(one.annotation)
        parameters.append(kinds(one.arg, kind, default=shown(default), annotation=annotation))

    plain: list[tuple[ast.arg, Any]]
    plain = [(one, kinds.POSITIONAL_ONLY) for one in arguments.posonlyargs]
    plain += [(one, kinds.POSITIONAL_OR_KEYWORD) for one in arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    defaults += arguments.defaults
    for (one, kind), default in zip(plain, defaults, strict=True):
        add(one, kind, default)
    if arguments.vararg is not None:
        add(arguments.vararg, kinds.VAR_POSITIONAL, None)
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        add(one, kinds.KEYWORD_ONLY, default)
    if arguments.kwarg is not None:
        add(arguments.kwarg, kinds.VAR_KEYWORD, None)
    try:
        return inspect.Signature(parameters, return_annotation=shown(function.returns))
    except ValueError:  # a duplicate name
        return None

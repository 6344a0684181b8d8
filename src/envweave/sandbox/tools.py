"""The host functions that code in a session may call: looked up by name, with checked arguments.

Calls come from hostile code. A call can only name a function of this table, its arguments are plain
data that fit the signature, and an error on the host is returned as one line of text, never as a
traceback.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import keyword
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from envweave.codec import AnySpec, Mismatch, Spec, spec_from_hint
from envweave.codec.containers import can_be_plain
from envweave.errors import DefinitionError, OptionError, suggest
from envweave.sandbox.processes.async_bridge import ToolLoop
from envweave.sandbox.protocol.messages import ToolSignature

TEXT_LIMIT = 4096
"""How many characters of an error are returned to the code."""

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class ArgumentsError(Exception):
    """Arguments do not fit a tool. The text is for the calling code."""


@final
class SandboxTool:
    """One function that code may call.

    Attributes:
        name: Its name in the code.
        function: The function on the host.
        is_async: Whether it must be awaited.
        signature: How the code sees it.
    """

    __slots__ = (
        "_min_args",
        "_parameters",
        "_specs",
        "function",
        "is_async",
        "name",
        "signature",
    )

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.function = function
        self.is_async = _is_async(function)
        self._parameters = _signature(function)
        self.signature = ToolSignature(
            name, _shown(self._parameters), inspect.getdoc(function) or ""
        )
        self._specs: tuple[tuple[str, Spec | None], ...] | None = None
        self._min_args = 0
        if self._parameters is not None:
            self._prepare(self._parameters, _hints(function))

    def _prepare(self, signature: inspect.Signature, hints: Mapping[str, Any]) -> None:
        """Prepare the fast path for calls with positional arguments only."""
        parameters = signature.parameters.values()
        specs = {each.name: _spec(hints[each.name]) for each in parameters if each.name in hints}
        self._parameters = signature.replace(
            parameters=[each.replace(annotation=specs.get(each.name)) for each in parameters],
        )
        plain = [each for each in parameters if each.kind in _POSITIONAL]
        needs_keyword = any(
            each.kind is each.KEYWORD_ONLY and each.default is each.empty for each in parameters
        )
        if needs_keyword or not plain:
            return
        self._min_args = sum(each.default is each.empty for each in plain)
        self._specs = tuple((each.name, specs.get(each.name)) for each in plain)

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the arguments, converted as the type hints ask.

        Raises:
            ArgumentsError: They do not fit its signature or its type hints.
        """
        specs = self._specs
        if specs is not None and not kwargs and self._min_args <= len(args) <= len(specs):
            return [
                value if spec is None else self._read(name, spec, value)
                for value, (name, spec) in zip(args, specs, strict=False)
            ], kwargs
        if self._parameters is None:
            return args, kwargs
        try:
            bound = self._parameters.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentsError(f"TypeError: {self.name}() {_reason(error)}") from None
        parameters = self._parameters.parameters
        for name, value in bound.arguments.items():
            parameter = parameters[name]
            spec = parameter.annotation
            if spec is None:
                continue
            if parameter.kind is parameter.VAR_POSITIONAL:
                read: Any = tuple(self._read(name, spec, each) for each in value)
            elif parameter.kind is parameter.VAR_KEYWORD:
                read = {key: self._read(key, spec, each) for key, each in value.items()}
            else:
                read = self._read(name, spec, value)
            bound.arguments[name] = read
        return bound.args, bound.kwargs

    def _read(self, parameter: str, spec: Spec, value: Any) -> Any:
        try:
            return spec.read(value)
        except Mismatch as mismatch:
            reason = mismatch.describe(parameter)
            raise ArgumentsError(f"TypeError: {self.name}() argument {reason}") from None
        except Exception as error:  # noqa: BLE001 - a constructor may raise anything
            text = describe_error(error)
            raise ArgumentsError(f"{text} (in argument {parameter} of {self.name}())") from None


@final
class SandboxTools:
    """The tools of a session, by name.

    Args:
        functions: Each is called with plain data and returns plain data. Supported type hints are
            checked, and a dict is converted where a dataclass is expected. An `async` function is
            awaited.

    Raises:
        OptionError: A name is not a usable identifier, or a value is not callable.
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]] | None = None) -> None:
        self._tools: dict[str, SandboxTool] = {}
        self._loop = ToolLoop()
        if functions is not None and not isinstance(functions, Mapping):
            raise OptionError(f"tools={functions!r}: expected a dict of functions by name.")
        for name, function in (functions or {}).items():
            _check(name, function)
            self._tools[name] = SandboxTool(name, function)

    def __repr__(self) -> str:
        return f"<SandboxTools: {', '.join(self._tools) or 'none'}>"

    def __len__(self) -> int:
        return len(self._tools)

    def signatures(self) -> list[ToolSignature]:
        """Return how the code sees each tool."""
        return [tool.signature for tool in self._tools.values()]

    def names(self) -> list[str]:
        """Return their names."""
        return list(self._tools)

    def find(self, name: str) -> SandboxTool | None:
        """Return the tool of this name, or `None`."""
        return self._tools.get(name)

    def missing(self, name: str) -> str:
        """Return the error text for an unknown tool, with the nearest name."""
        shown = name[:100]
        known = f" Known: {', '.join(self._tools)}." if self._tools else ""
        return f"NameError: There is no tool {shown!r}.{suggest(shown, self._tools)}{known}"

    def await_result(self, tool: SandboxTool, bound: Callable[[], Any], left_s: float) -> Any:
        """Run an `async` tool on the thread that these tools share; return its result.

        Raises:
            DeadlineError: It took longer than `left_s`, and was cancelled.
        """
        return self._loop.run(tool.name, bound, left_s)

    def close(self) -> None:
        """End the thread on which `async` tools run. Harmless twice."""
        self._loop.close()


def describe_error(error: BaseException) -> str:
    """Return an exception as text for the code: its class and message, without traceback."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an author's __str__ may do anything
        text = "its message cannot be shown"
    return f"{name}: {text}"[:TEXT_LIMIT] if text else name


def _check(name: object, function: object) -> None:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise OptionError(
            f"tools={{{name!r}: …}}: the name of a tool must be a Python identifier and not a "
            "keyword."
        )
    if name.startswith("__") and (name.endswith("__") or hasattr(builtins, name)):
        raise OptionError(f"tools={{{name!r}: …}}: names like __this__ are reserved for Python.")
    if not callable(function):
        raise OptionError(
            f"tools={{{name!r}: {function!r}}}: a tool must be a function or another callable."
        )


def _is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return inspect.iscoroutinefunction(function)
    return inspect.iscoroutinefunction(type(function).__call__)


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C have none
        return None


def _shown(signature: inspect.Signature | None) -> str:
    return "(*args, **kwargs)" if signature is None else str(signature)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the type hints; empty if they cannot be evaluated."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and not inspect.isclass(function):
        function = type(function).__call__
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:  # noqa: BLE001 - evaluating an author's annotations may do anything
        return {}


def _spec(hint: Any) -> Spec | None:
    """Return the spec of a hint; `None` if it has none, or no plain data can match it."""
    try:
        spec = spec_from_hint(hint)
    except (DefinitionError, RecursionError):
        return None
    return None if isinstance(spec, AnySpec) or not can_be_plain(spec) else spec


def _reason(error: TypeError) -> str:
    text = str(error)
    return text if text.startswith(("missing", "got", "too")) else f"was called incorrectly: {text}"

"""`Tool`: one function that an agent may call, and all that is told of it."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import enum
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

from envweave.errors import OptionError
from envweave.tools.arguments import Arguments, is_usable
from envweave.tools.functions import arguments_of, is_async, own_docstring, read_docstring
from envweave.tools.json_schema import arguments_from_schema, object_schema
from envweave.tools.signatures import docstring_of, shown_signature, types_part

_LEAVES = frozenset([str, int, float, bool, bytes, type(None)])


def as_data(value: Any) -> Any:
    """Return a value with dicts in the place of dataclasses, and values in that of enum members.

    Everything else stays as it is.

    Raises:
        TypeError: It is a coroutine that nobody awaited.
    """
    if type(value) in _LEAVES:
        return value
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError("it returned a coroutine. Register the `async` function itself.")
    try:
        return _converted(value)
    except RecursionError:  # it holds itself; whoever takes it says so
        return value


def _converted(value: Any) -> Any:
    kind = type(value)
    if kind in _LEAVES:
        return value
    if kind in (list, set, frozenset):
        return kind([_converted(one) for one in value]) if _has_more(value) else value
    if kind is tuple:
        return tuple([_converted(one) for one in value]) if _has_more(value) else value
    if kind is dict:
        if not _has_more(value.values()) and not _has_more(value):
            return value
        return {_converted(key): _converted(one) for key, one in value.items()}
    if isinstance(value, enum.Enum):
        return _converted(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {one.name: _converted(getattr(value, one.name)) for one in fields}
    return value


def _has_more(values: Any) -> bool:
    """Whether any of them is more than a number or a text."""
    return not _LEAVES.issuperset(map(type, values))


@final
class Tool:
    """A function of the host that an agent may call.

    `Tool.of` makes one from a plain function. The constructor is for a tool whose arguments a
    JSON Schema describes, such as an MCP server's: its function is called with keyword arguments
    alone, and with those only that were given.

    Args:
        name: What it is called: a Python identifier.
        function: What runs on the host; sync or async.
        description: What it does.
        parameters: The JSON Schema of an object with the arguments as its properties.
        max_calls: How often it may be called in an episode; `None` for any number.

    Attributes:
        name: What it is called.
        function: What runs on the host, with keyword arguments or by position.
        description: What it does, for a model.
        parameters: The JSON Schema of its arguments, as an object.
        signature: The signature as code sees it: `(city: str, days: int = 1) -> str`.
        docstring: The docstring as code sees it.
        max_calls: How often it may be called in an episode.
        is_async: Whether it is awaited.
        arguments: What checks the arguments of a call.
        shown: The signature whose text is `signature`.

    Raises:
        OptionError: A name that code cannot use, a function that cannot be called, or a limit or
            a schema that is none.
    """

    name: str
    function: Callable[..., Any]
    description: str
    parameters: dict[str, Any]
    signature: str
    docstring: str
    max_calls: int | None
    is_async: bool
    arguments: Arguments
    shown: inspect.Signature
    _made: tuple[Callable[..., Tool], tuple[Any, ...]]

    def __init__(
        self,
        *,
        name: str,
        function: Callable[..., Any],
        description: str = "",
        parameters: Mapping[str, Any] | None = None,
        max_calls: int | None = None,
    ) -> None:
        _check(name, function, max_calls)
        schema = _checked_schema(name, parameters)
        arguments = arguments_from_schema(name, schema)
        docstring = docstring_of(description, arguments.each)
        _fill(self, name, _by_name(function, arguments), arguments, docstring, max_calls)
        self.description = description
        self.parameters = schema
        self._made = (_from_schema, (name, function, description, schema, max_calls))

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        name: str | None = None,
        description: str | None = None,
        max_calls: int | None = None,
    ) -> Tool:
        """Return the tool that a plain function is, by its hints and its docstring.

        Args:
            function: What runs on the host; sync or async. Arguments with hints are checked, and
                a dataclass is made where one is asked for. A hint that cannot be evaluated, or
                that plain data cannot fulfil, checks nothing.
            name: What it is called; the function's own name unless given.
            description: What it does; what the docstring says unless given.
            max_calls: How often it may be called in an episode.
        """
        name = _own_name(function) if name is None else name
        _check(name, function, max_calls)
        said = own_docstring(function)
        documentation = read_docstring(said)
        arguments = arguments_of(name, function, documentation)
        docstring = said if description is None else docstring_of(description, arguments.each)
        given = (function, name, description, max_calls)
        made = cls.__new__(cls)
        _fill(made, name, function, arguments, docstring, max_calls)
        made.description = documentation.text if description is None else description
        made.parameters = object_schema(arguments)
        made._made = (cls.of, given)  # noqa: SLF001 - it is being made
        return made

    def __repr__(self) -> str:
        return f"<Tool {self.name}{self.signature}>"

    def __reduce__(self) -> tuple[Callable[..., Tool], tuple[Any, ...]]:
        return self._made

    def schema(self) -> dict[str, Any]:
        """Return the tool as an OpenAI-compatible model is told of it."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": copy.deepcopy(self.parameters),
            },
        }

    def made_for(self, admit: Callable[[Tool], None]) -> Callable[..., Any]:
        """Return the function that the code of one episode calls.

        It checks its arguments, asks `admit`, which may raise, and runs. It has this tool's name,
        signature and docstring, and is `async` if the tool is. A tool that calls `sys.exit` has
        failed: code must not be able to end the host's process by it.
        """
        read, function = self.arguments.read, self.function

        async def await_it(*args: Any, **kwargs: Any) -> Any:
            taken, named = read(args, kwargs)
            admit(self)
            try:
                return as_data(await function(*taken, **named))
            except SystemExit as error:
                raise _exited(self.name, error) from None

        def call_it(*args: Any, **kwargs: Any) -> Any:
            taken, named = read(args, kwargs)
            admit(self)
            try:
                return as_data(function(*taken, **named))
            except SystemExit as error:
                raise _exited(self.name, error) from None

        call: Any = await_it if self.is_async else call_it
        call.__name__ = call.__qualname__ = self.name
        call.__doc__ = self.docstring
        call.__annotations__ = self.arguments.hints()
        call.__signature__ = self.shown
        made: Callable[..., Any] = call
        return made


def _exited(name: str, error: SystemExit) -> RuntimeError:
    return RuntimeError(f"{name}() wanted to exit, with status {error.code!r}.")


def _from_schema(
    name: str,
    function: Callable[..., Any],
    description: str,
    parameters: Mapping[str, Any],
    max_calls: int | None,
) -> Tool:
    return Tool(
        name=name,
        function=function,
        description=description,
        parameters=parameters,
        max_calls=max_calls,
    )


def _by_name(function: Callable[..., Any], arguments: Arguments) -> Callable[..., Any]:
    """Return a function that takes arguments by position, too, and passes them on by name."""
    names = arguments.names()

    async def await_it(*args: Any, **kwargs: Any) -> Any:
        return await function(**dict(zip(names, args, strict=False)), **kwargs)

    def call_it(*args: Any, **kwargs: Any) -> Any:
        return function(**dict(zip(names, args, strict=False)), **kwargs)

    return await_it if is_async(function) else call_it


def _fill(
    tool: Tool,
    name: str,
    function: Callable[..., Any],
    arguments: Arguments,
    docstring: str,
    max_calls: int | None,
) -> None:
    tool.name = name
    tool.function = function
    tool.arguments = arguments
    tool.shown = shown_signature(arguments)
    tool.signature = str(tool.shown)
    tool.docstring = "\n\n".join(part for part in (docstring, types_part(arguments)) if part)
    tool.max_calls = max_calls
    tool.is_async = is_async(function)


def _check(name: Any, function: Any, max_calls: Any) -> None:
    if not isinstance(name, str) or not is_usable(name):
        raise OptionError(
            f"A tool cannot be called {name!r}: code calls it by its name, so that must be a "
            "Python identifier and no keyword."
        )
    if name.startswith("__"):
        raise OptionError(f"A tool cannot be called {name!r}: names like this belong to Python.")
    if name == "ToolError":
        raise OptionError("A tool cannot be called 'ToolError': code needs that to catch errors.")
    if not callable(function):
        raise OptionError(
            f"The tool {name!r} is {function!r}, which cannot be called. Give a function."
        )
    check_limit(f"The tool {name!r}: ", max_calls)


def check_limit(whose: str, max_calls: Any) -> None:
    """Refuse a number of calls that is none.

    Raises:
        OptionError: It is no whole number above 0, and not `None`.
    """
    if max_calls is None:
        return
    if isinstance(max_calls, bool) or not isinstance(max_calls, int) or max_calls < 1:
        raise OptionError(
            f"{whose}max_calls={max_calls!r} is no whole number above 0. "
            "Leave it out for any number of calls."
        )


def _checked_schema(name: str, parameters: Any) -> dict[str, Any]:
    if parameters is None:
        parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise OptionError(
            f"The tool {name!r}: parameters={parameters!r} is no JSON Schema of an object."
        )
    return {"type": "object", "properties": {}, **copy.deepcopy(dict(parameters))}


def _own_name(function: Any) -> str:
    name = getattr(function, "__name__", None)
    if isinstance(name, str) and is_usable(name):
        return name
    shown = name if isinstance(name, str) else repr(function)
    raise OptionError(
        f"{shown} has no name that code could call it by. Give one: register('name', function)."
    )


_TEXT_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What came of a call.

    Attributes:
        value: What the tool returned, with dicts in the place of dataclasses; if it failed, why,
            on one line.
        is_error: Whether it failed.
    """

    value: Any = None
    is_error: bool = False


def failed(error: BaseException) -> ToolOutcome:
    """Return the outcome of a call that ended with this exception."""
    name = type(error).__name__
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - an author's __str__ may do anything
        text = "its message cannot be shown"
    return ToolOutcome(f"{name}: {text}"[:_TEXT_LIMIT] if text else name, is_error=True)


async def call_tool(tool: Tool, arguments: Any, admit: Callable[[Tool], None]) -> ToolOutcome:
    """Run a tool with arguments as JSON has them: here if it is `async`, else in a thread.

    It raises nothing but what cancels the caller.
    """
    try:
        if not isinstance(arguments, Mapping) or not all(isinstance(one, str) for one in arguments):
            raise TypeError(f"{tool.name}() takes its arguments by name, as an object.")
        args, kwargs = tool.arguments.read_named(arguments)
        admit(tool)
        if tool.is_async:
            return ToolOutcome(as_data(await tool.function(*args, **kwargs)))
        return await asyncio.to_thread(_run, tool, args, kwargs)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return failed(error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool may do anything
        return failed(error)


def _run(tool: Tool, args: Any, kwargs: Any) -> ToolOutcome:
    """Run a tool. Some exceptions would do more to a thread's caller than to be raised there."""
    try:
        return ToolOutcome(as_data(tool.function(*args, **kwargs)))
    except BaseException as error:  # noqa: BLE001 - a tool may do anything
        return failed(error)

"""`Tool`: a function that an agent may call, with its schema, and how it is called."""

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
from envweave.tools.episode import ToolEpisode, in_episode
from envweave.tools.functions import arguments_of, is_async, own_docstring, read_docstring
from envweave.tools.json_schema import arguments_from_schema, object_schema
from envweave.tools.signatures import docstring_of, shown_signature, types_part

_LEAVES = frozenset([str, int, float, bool, bytes, type(None)])


def as_data(value: Any) -> Any:
    """Return a value with dataclasses replaced by dicts, and enum members by their values.

    Everything else is unchanged.

    Raises:
        TypeError: It is a coroutine that was not awaited.
    """
    if type(value) in _LEAVES:
        return value
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError("it returned a coroutine. Register the `async` function itself.")
    try:
        return _convert(value)
    except RecursionError:  # it contains itself, which the encoder reports
        return value


def _convert(value: Any) -> Any:
    kind = type(value)
    if kind in _LEAVES:
        return value
    if kind in (list, set, frozenset):
        return kind([_convert(one) for one in value]) if _has_more(value) else value
    if kind is tuple:
        return tuple([_convert(one) for one in value]) if _has_more(value) else value
    if kind is dict:
        if not _has_more(value.values()) and not _has_more(value):
            return value
        return {_convert(key): _convert(one) for key, one in value.items()}
    if isinstance(value, enum.Enum):
        return _convert(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {one.name: _convert(getattr(value, one.name)) for one in fields}
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
        name: Its name: a Python identifier.
        function: Runs on the host; sync or async.
        description: What it does.
        parameters: The JSON Schema of an object with the arguments as its properties.
        max_calls: The limit on its calls in an episode; `None` for no limit.

    Attributes:
        name: Its name.
        function: Runs on the host, with keyword or positional arguments.
        description: What it does, for a model.
        parameters: The JSON Schema of its arguments, as an object.
        signature: The signature as code sees it: `(city: str, days: int = 1) -> str`.
        docstring: The docstring as code sees it.
        max_calls: The limit on its calls in an episode.
        is_async: Whether it is awaited.
        arguments: Checks the arguments of a call.
        shown: The signature whose text is `signature`.

    Raises:
        OptionError: The name is not an identifier, the function is not callable, or the limit or
            the schema is invalid.
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
        """Return a tool made from a plain function, its type hints and its docstring.

        Args:
            function: Runs on the host; sync or async. Arguments with hints are checked, and
                converted to a dataclass if the hint is one. A hint that cannot be evaluated, or
                that no plain data can satisfy, checks nothing.
            name: The name; default: the function's own.
            description: What it does; default: the docstring.
            max_calls: The limit on its calls in an episode.
        """
        name = _own_name(function) if name is None else name
        _check(name, function, max_calls)
        own = own_docstring(function)
        documentation = read_docstring(own)
        arguments = arguments_of(name, function, documentation)
        docstring = own if description is None else docstring_of(description, arguments.each)
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
        """Return the tool in the format of OpenAI-compatible models."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": copy.deepcopy(self.parameters),
            },
        }

    def made_for(
        self, admit: Callable[[Tool], None], episode: ToolEpisode | None = None
    ) -> Callable[..., Any]:
        """Return the function that the code of one episode calls.

        It checks its arguments, calls `admit`, which may raise, and runs in the episode. It has
        this tool's name, signature and docstring, and is `async` if the tool is. A tool that calls
        `sys.exit` has failed: code must not be able to end the host's process through it.
        """
        read, function = self.arguments.read, self.function

        async def await_it(*args: Any, **kwargs: Any) -> Any:
            taken, named = read(args, kwargs)
            admit(self)
            with in_episode(episode):
                try:
                    return as_data(await function(*taken, **named))
                except SystemExit as error:
                    raise _exit_error(self.name, error) from None

        def call_it(*args: Any, **kwargs: Any) -> Any:
            taken, named = read(args, kwargs)
            admit(self)
            with in_episode(episode):
                try:
                    return as_data(function(*taken, **named))
                except SystemExit as error:
                    raise _exit_error(self.name, error) from None

        call: Any = await_it if self.is_async else call_it
        call.__name__ = call.__qualname__ = self.name
        call.__doc__ = self.docstring
        call.__annotations__ = self.arguments.hints()
        call.__signature__ = self.shown
        made: Callable[..., Any] = call
        return made


def _exit_error(name: str, error: SystemExit) -> RuntimeError:
    return RuntimeError(f"{name}() called sys.exit() with status {error.code!r}.")


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
    """Return a function that also takes positional arguments, and passes all on by name."""
    names = tuple(arguments.names())

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
            f"Invalid tool name {name!r}: it must be a Python identifier, and not a keyword."
        )
    if name.startswith("__"):
        raise OptionError(
            f"Invalid tool name {name!r}: names that start with '__' belong to Python."
        )
    if name == "ToolError":
        raise OptionError("Invalid tool name 'ToolError': code uses it to catch errors.")
    if not callable(function):
        raise OptionError(
            f"The tool {name!r} must be a function or another callable, got {function!r}."
        )
    check_limit(f"The tool {name!r}: ", max_calls)


def check_limit(whose: str, max_calls: Any) -> None:
    """Check a limit on calls.

    Raises:
        OptionError: It is neither an integer >= 1 nor `None`.
    """
    if max_calls is None:
        return
    if isinstance(max_calls, bool) or not isinstance(max_calls, int) or max_calls < 1:
        raise OptionError(
            f"{whose}max_calls must be an integer >= 1, or None for no limit, got {max_calls!r}."
        )


def _checked_schema(name: str, parameters: Any) -> dict[str, Any]:
    if parameters is None:
        parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise OptionError(
            f"The tool {name!r}: parameters must be the JSON Schema of an object, got "
            f"{parameters!r}."
        )
    return {"type": "object", "properties": {}, **copy.deepcopy(dict(parameters))}


def _own_name(function: Any) -> str:
    name = getattr(function, "__name__", None)
    if isinstance(name, str) and is_usable(name):
        return name
    shown = name if isinstance(name, str) else repr(function)
    raise OptionError(
        f"{shown} has no name that is an identifier. Pass one: register('name', function)."
    )


_TEXT_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The outcome of a tool call.

    Attributes:
        value: What the tool returned, with dataclasses as dicts; if it failed, the error on one
            line.
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


async def call_tool(
    tool: Tool,
    arguments: Any,
    admit: Callable[[Tool], None],
    episode: ToolEpisode | None = None,
) -> ToolOutcome:
    """Run a tool with JSON arguments: on this loop if it is `async`, else in a thread.

    Raises nothing, except a cancellation of the caller.
    """
    try:
        if not isinstance(arguments, Mapping) or not all(isinstance(one, str) for one in arguments):
            raise TypeError(f"{tool.name}() takes its arguments as an object, by name.")
        args, kwargs = tool.arguments.read_named(arguments)
        admit(tool)
        with in_episode(episode):
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
    """Run a tool. Exceptions are returned: some would do more than be raised in the caller."""
    try:
        return ToolOutcome(as_data(tool.function(*args, **kwargs)))
    except BaseException as error:  # noqa: BLE001 - a tool may do anything
        return failed(error)

import dataclasses
import enum
import functools
from collections.abc import Callable
from typing import Annotated, Any, Literal, Optional, TypedDict

import msgspec
import pytest

from envweave.errors import DeadlineError, OptionError
from envweave.sandbox.protocol.messages import ToolSignature
from envweave.sandbox.tools import ArgumentsError, SandboxTool, SandboxTools, describe_error


def lookup(query: str, limit: int = 10, *, exact: bool = False) -> list[str]:
    """Find what matches."""
    return [query] * limit


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass
class Line:
    ends: list[Point]
    name: Optional[str] = None  # noqa: UP045 - the older spelling is supported too


class Options(TypedDict, total=False):
    depth: int


class Colour(enum.Enum):
    RED = "red"


def bound(hint: Any, value: Any) -> Any:
    def tool(argument):
        return argument

    tool.__annotations__ = {"argument": hint}
    args, _ = SandboxTool("tool", tool).bind([value], {})
    return args[0]


def test_a_tool_is_shown_to_code_with_its_signature_and_docstring():
    tools = SandboxTools({"lookup": lookup})

    signatures = tools.signatures()

    assert signatures == [
        ToolSignature(
            "lookup",
            "(query: str, limit: int = 10, *, exact: bool = False) -> list[str]",
            "Find what matches.",
        )
    ]


def test_a_function_without_a_signature_takes_anything():
    tool = SandboxTool("largest", max)

    args, kwargs = tool.bind([1, 2], {})

    assert tool.signature.signature == "(*args, **kwargs)"
    assert tool.function(*args, **kwargs) == 2


@pytest.mark.parametrize("name", ["", "two words", "class", "1st", "__import__", "__doc__", 3])
def test_a_name_that_code_cannot_call_is_refused(name):
    with pytest.raises(OptionError, match="tools="):
        SandboxTools({name: lookup})


def test_a_non_callable_is_refused_as_a_tool():
    with pytest.raises(OptionError, match="'lookup': 3"):
        SandboxTools({"lookup": 3})


def test_the_error_for_an_unknown_tool_names_the_nearest():
    tools = SandboxTools({"lookup": lookup})

    assert tools.find("lookpu") is None
    assert "Did you mean 'lookup'?" in tools.missing("lookpu")


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        (["a"], {}, (["a"], {})),
        (["a", 3], {}, (["a", 3], {})),
        (["a"], {"exact": True}, (("a",), {"exact": True})),
        ([], {"limit": 2, "query": "b"}, (("b", 2), {})),
    ],
)
def test_arguments_are_bound_as_python_binds_them(args, kwargs, expected):
    bound_args, bound_kwargs = SandboxTool("lookup", lookup).bind(args, kwargs)

    assert (type(expected[0])(bound_args), bound_kwargs) == expected


@pytest.mark.parametrize(
    ("args", "kwargs", "reason"),
    [
        ([], {}, "TypeError: lookup() missing a required argument: 'query'"),
        (["a", 1, 2], {}, "TypeError: lookup() too many positional arguments"),
        (["a"], {"excat": True}, "TypeError: lookup() got an unexpected keyword argument 'excat'"),
        (["a", "ten"], {}, "TypeError: lookup() argument limit: 'ten' is not an int"),
        (["a"], {"limit": 1.5}, "TypeError: lookup() argument limit: 1.5 is not an int"),
        (["a", True], {}, "TypeError: lookup() argument limit: True is not an int"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_the_parameter_name(args, kwargs, reason):
    with pytest.raises(ArgumentsError) as caught:
        SandboxTool("lookup", lookup).bind(args, kwargs)

    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (float, 3, 3.0),
        (Optional[int], None, None),  # noqa: UP045 - as some authors write it
        (int | str | None, "a", "a"),
        (list[int], (1, 2), [1, 2]),
        (tuple[int, ...], [1, 2], (1, 2)),
        (dict[str, list[float]], {"a": [1]}, {"a": [1.0]}),
        (set[int], {1}, {1}),
        (Literal["a", "b"], "b", "b"),
        (Annotated[int, "how many"], 2, 2),
        (Colour, "red", Colour.RED),
        (Point, {"x": 1}, Point(1)),
        (Line, {"ends": [{"x": 1}, {"x": 2, "y": 3}]}, Line([Point(1), Point(2, 3)])),
        (Options, {"depth": 2}, {"depth": 2}),
        (Any, [object], [object]),
        (bytes, b"a", b"a"),
        (bytes, "YQ==", b"a"),
        (Point | Line, {"x": 1}, Point(1)),
        (int, 1 << 100, 1 << 100),
    ],
)
def test_an_argument_is_converted_to_its_type_hint(hint, value, expected):
    made = bound(hint, value)

    assert made == expected
    assert type(made) is type(expected)


@pytest.mark.parametrize(
    ("hint", "value", "reason"),
    [
        (list[int], [1, "b"], "argument[1]: 'b' is not an int"),
        (dict[str, int], {"a": "b"}, "argument['a']: 'b' is not an int"),
        (Literal["a"], "b", "argument: 'b' is not one of 'a'"),
        (Annotated[int, msgspec.Meta(ge=1)], 0, "argument: 0 is not at least 1"),
        (bytes, "hello", "argument: 'hello' is neither bytes nor base64"),
        (Point, {"y": 1}, "argument.x: this field is missing"),
        (Point, {"x": 1, "z": 2}, "argument.z: unknown field. Known: x, y."),
        (Line, {"ends": [{"x": 1, "z": 2}]}, "argument.ends[0].z: unknown field. Known: x, y."),
        (Point | None, {"x": 1, "z": 2}, "argument.z: unknown field. Known: x, y."),
        (dict[str, Point], {"a": {"x": 1, "z": 2}}, "argument['a'].z: unknown field. Known: x, y."),
        (Options, {"deep": 2}, "argument['deep']: unknown key. Did you mean 'depth'?"),
    ],
)
def test_an_argument_that_does_not_fit_its_type_hint_is_refused_with_its_path(hint, value, reason):
    with pytest.raises(ArgumentsError) as caught:
        bound(hint, value)

    assert str(caught.value) == f"TypeError: tool() argument {reason}"


@pytest.mark.parametrize("hint", [Callable[[], int], "Unknown", type, SandboxTool])
def test_an_unsupported_type_hint_checks_nothing(hint):
    assert bound(hint, [1]) == [1]


def test_variadic_arguments_are_checked_one_by_one():
    def tool(*args: int, **kwargs: str) -> None:
        pass

    with pytest.raises(ArgumentsError, match=r"argument args: 'a' is not an int"):
        SandboxTool("tool", tool).bind([1, "a"], {})
    with pytest.raises(ArgumentsError, match=r"argument b: 1 is not a str"):
        SandboxTool("tool", tool).bind([], {"a": "a", "b": 1})


def test_an_error_in_a_dataclass_constructor_is_returned_as_text():
    @dataclasses.dataclass
    class Positive:
        value: int

        def __post_init__(self) -> None:
            if self.value < 0:
                raise ArithmeticError("too small")

    with pytest.raises(ArgumentsError, match="too small"):
        bound(Positive, {"value": -1})


class AsyncCallable:
    async def __call__(self) -> int:
        return 1


async def slow(seconds: float = 0.0) -> float:
    return seconds


@pytest.mark.parametrize(
    ("function", "is_async"),
    [
        (slow, True),
        (functools.partial(slow, 1.0), True),
        (AsyncCallable(), True),
        (AsyncCallable().__call__, True),
        (lookup, False),
        (AsyncCallable, False),
        (max, False),
    ],
)
def test_async_tools_are_recognized(function, is_async):
    assert SandboxTool("tool", function).is_async is is_async


def test_an_error_is_described_without_a_traceback_and_truncated():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    assert describe_error(ValueError("no such thing")) == "ValueError: no such thing"
    assert describe_error(KeyError()) == "KeyError"
    assert describe_error(Mute()) == "Mute: its message cannot be shown"
    assert len(describe_error(ValueError("a" * 100_000))) < 5000


def test_async_tools_run_on_one_thread_that_close_ends():
    import threading

    async def where() -> int:
        return threading.get_ident()

    tools = SandboxTools({"where": where})
    tool = tools.find("where")

    first = tools.await_result(tool, where, 5.0)
    second = tools.await_result(tool, where, 5.0)
    tools.close()
    tools.close()

    assert first == second != threading.get_ident()
    assert first not in [thread.ident for thread in threading.enumerate()]


def test_an_async_tool_is_cancelled_at_the_deadline():
    import asyncio
    import threading

    cancelled = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    tools = SandboxTools({"forever": forever})

    with pytest.raises(DeadlineError, match="forever"):
        tools.await_result(tools.find("forever"), forever, 0.01)

    assert cancelled.wait(30)
    tools.close()


def test_system_exit_in_a_tool_reaches_the_caller_and_the_thread_survives():
    async def leave() -> None:
        raise SystemExit(3)

    tools = SandboxTools({"leave": leave, "slow": slow})

    with pytest.raises(SystemExit):
        tools.await_result(tools.find("leave"), leave, 5.0)

    assert tools.await_result(tools.find("slow"), slow, 5.0) == 0.0
    tools.close()

import asyncio
import inspect
import pickle
import threading
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import pytest

from envweave.errors import EnvWeaveError, OptionError
from envweave.tools import Tool, ToolRegistry


@dataclass
class Point:
    x: float
    y: float = 0.0


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


async def wait(seconds: float) -> str:
    """Wait."""
    return f"waited {seconds}"


def opened(registry: ToolRegistry) -> dict[str, Callable[..., Any]]:
    return asyncio.run(registry.open())


def test_tools_come_from_a_mapping() -> None:
    registry = ToolRegistry({"plus": add, "wait": wait})

    assert registry.names() == ["plus", "wait"]
    assert opened(registry)["plus"](1, 2) == 3


def test_tools_come_from_functions_and_tools() -> None:
    registry = ToolRegistry([add, Tool.of(wait, "rest")])

    assert registry.names() == ["add", "rest"]


def test_a_registry_is_a_collection_of_tools() -> None:
    registry = ToolRegistry([add, wait])

    assert len(registry) == 2
    assert "add" in registry
    assert "ad" not in registry
    assert [tool.name for tool in registry] == ["add", "wait"]
    assert registry.get("ad") is None
    assert repr(registry) == "<ToolRegistry: add, wait>"
    assert repr(ToolRegistry()) == "<ToolRegistry: no tools>"


def test_a_function_is_registered_under_a_name() -> None:
    registry = ToolRegistry()

    registry.register("add", lambda a, b: a + b)

    assert opened(registry)["add"](1, 2) == 3


def test_register_is_a_decorator_that_returns_the_function_itself() -> None:
    registry = ToolRegistry()

    bare = registry.register(add)
    named = registry.register("plus")(add)
    with_words = registry.register("total", max_calls=2)(add)
    keywords_alone = registry.register(description="Rest.")(wait)

    assert [bare, named, with_words, keywords_alone] == [add, add, add, wait]
    assert registry.names() == ["add", "plus", "total", "wait"]
    assert [tool.max_calls for tool in registry] == [None, None, 2, None]
    assert [tool.description for tool in registry][-2:] == ["Add two numbers.", "Rest."]


def test_a_ready_tool_is_registered_as_it_is() -> None:
    registry = ToolRegistry()
    tool = Tool.of(add)

    assert registry.register(tool) is tool
    assert registry.get("add") is tool
    with pytest.raises(OptionError, match="already has a name, a description and a limit"):
        registry.register("plus", tool)  # type: ignore[arg-type] # what is tested
    with pytest.raises(OptionError, match="already has a name, a description and a limit"):
        registry.register(tool, max_calls=3)  # type: ignore[call-overload] # what is tested


def test_a_taken_name_is_refused_unless_it_is_to_be_replaced() -> None:
    registry = ToolRegistry([add])

    with pytest.raises(OptionError, match=r"'add' is taken by another tool.*replace=True"):
        registry.register("add", wait)
    registry.register("add", wait, replace=True)

    assert registry.get("add").function is wait  # type: ignore[union-attr]


def test_a_name_comes_before_its_function() -> None:
    with pytest.raises(OptionError, match="the first argument must be the name"):
        ToolRegistry().register(add, "add")  # type: ignore[call-overload] # what is tested


def test_an_unregistered_tool_is_gone_from_the_next_episode() -> None:
    registry = ToolRegistry([add, wait])

    before = opened(registry)
    registry.unregister("add")

    assert before["add"](1) == 2
    assert list(opened(registry)) == ["wait"]
    with pytest.raises(OptionError, match=r"There is no tool 'wit'. Did you mean 'wait'"):
        registry.unregister("wit")


@pytest.mark.parametrize("tools", ["add", add, Tool.of(add), 3, b"add"])
def test_a_value_that_is_not_a_list_of_tools_is_refused(tools: Any) -> None:
    with pytest.raises(
        OptionError, match="must be a list of functions or a dict of functions by name"
    ):
        ToolRegistry(tools)


def test_a_registry_is_not_made_of_another() -> None:
    registry = ToolRegistry([add])

    with pytest.raises(OptionError, match="is a ToolRegistry already"):
        ToolRegistry(registry)
    assert ToolRegistry(list(registry)).names() == ["add"]


def test_a_function_of_an_episode_shows_what_the_tool_is() -> None:
    def plot(point: Point, name: "str") -> "Point":
        """Plot it."""
        return point

    function = opened(ToolRegistry([plot]))["plot"]

    assert function.__name__ == "plot"
    assert str(inspect.signature(function)) == "(point: Point, name: str) -> Point"
    assert (
        inspect.getdoc(function)
        == "Plot it.\n\nTypes:\n    Point: a dict of x: float, y: float = 0.0"
    )
    assert typing.get_type_hints(function) == {"point": Point, "name": str}


def test_an_async_tool_is_an_async_function() -> None:
    functions = opened(ToolRegistry([add, wait]))

    assert [inspect.iscoroutinefunction(one) for one in functions.values()] == [False, True]
    assert asyncio.run(functions["wait"](2)) == "waited 2.0"


def test_arguments_become_what_the_hints_ask_for_and_results_plain_data() -> None:
    def move(point: Point, by: Point) -> Point:
        return Point(point.x + by.x, point.y + by.y)

    functions = opened(ToolRegistry([move]))

    assert functions["move"]({"x": 1}, by={"x": 2, "y": 3}) == {"x": 3.0, "y": 3.0}


@pytest.mark.parametrize(
    ("args", "kwargs", "reason"),
    [
        ((), {}, "add() missing a required argument: 'a'"),
        ((1, 2, 3), {}, "add() too many positional arguments"),
        ((1,), {"a": 2}, "add() was called incorrectly: multiple values for argument 'a'"),
        ((1,), {"c": 2}, "add() got an unexpected keyword argument 'c'"),
        ((1,), {"bb": 2}, "add() got an unexpected keyword argument 'bb'. Did you mean 'b'?"),
        (("x",), {}, "add() argument a: 'x' is not an int"),
        ((1,), {"b": True}, "add() argument b: True is not an int"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(args: Any, kwargs: Any, reason: str) -> None:
    function = opened(ToolRegistry([add]))["add"]

    with pytest.raises(TypeError) as refused:
        function(*args, **kwargs)

    assert str(refused.value) == reason


def test_arguments_of_any_number_are_checked_one_by_one() -> None:
    def total(*parts: int, **named: int) -> int:
        return sum(parts) + sum(named.values())

    function = opened(ToolRegistry([total]))["total"]

    assert function(1, 2, third=3) == 6
    with pytest.raises(TypeError, match="argument parts: 'x' is not an int"):
        function(1, "x")
    with pytest.raises(TypeError, match="argument third: 'x' is not an int"):
        function(third="x")


def test_an_unawaited_coroutine_is_an_error() -> None:
    function = opened(ToolRegistry({"wait": lambda: wait(1)}))["wait"]

    with pytest.raises(TypeError, match=r"it returned a coroutine. Register the `async` function"):
        function()


def test_only_allowed_tools_are_seen() -> None:
    registry = ToolRegistry([add, wait], allow=["wait"])

    assert list(opened(registry)) == ["wait"]
    assert [one["function"]["name"] for one in registry.schemas()] == ["wait"]
    assert registry.names() == ["add", "wait"]


def test_an_allowed_name_that_no_tool_has_is_refused_when_it_is_opened() -> None:
    registry = ToolRegistry([add], allow=["ad"])

    with pytest.raises(
        OptionError, match=r"there is no such tool. Did you mean 'add'.* Known: add"
    ):
        opened(registry)
    registry.register("ad", add)
    assert list(opened(registry)) == ["ad"]


@pytest.mark.parametrize("allow", ["add", [1], 3])
def test_an_invalid_allow_list_is_refused(allow: Any) -> None:
    with pytest.raises(OptionError, match="allow must be a list of names"):
        ToolRegistry([add], allow=allow)


def test_the_call_limit_of_a_tool_applies_per_episode() -> None:
    registry = ToolRegistry([wait])
    registry.register(add, max_calls=2)
    first, second = opened(registry), opened(registry)

    assert [first["add"](1), first["add"](2)] == [2, 3]
    with pytest.raises(
        EnvWeaveError, match=r"add\(\) may be called 2 times per episode; the limit is reached"
    ):
        first["add"](3)
    assert asyncio.run(first["wait"](1)) == "waited 1.0"
    assert second["add"](3) == 4


def test_the_call_limit_of_a_registry_applies_to_all_tools_together() -> None:
    functions = opened(ToolRegistry([add, wait], max_calls=1))

    asyncio.run(functions["wait"](1))

    with pytest.raises(
        EnvWeaveError, match="Tools may be called once per episode; the limit is reached"
    ):
        functions["add"](1)


def test_a_call_that_was_refused_does_not_count() -> None:
    functions = opened(ToolRegistry([add], max_calls=1))

    with pytest.raises(TypeError):
        functions["add"]("x")

    assert functions["add"](1) == 2


def test_a_call_that_failed_counts() -> None:
    def fail() -> None:
        raise OSError("no")

    functions = opened(ToolRegistry([fail], max_calls=1))

    with pytest.raises(OSError, match="no"):
        functions["fail"]()
    with pytest.raises(EnvWeaveError, match="the limit is reached"):
        functions["fail"]()


def test_a_limit_holds_for_threads_that_call_at_once() -> None:
    function = opened(ToolRegistry([add], max_calls=50))["add"]
    refused: list[EnvWeaveError] = []

    def call_often() -> None:
        for _ in range(25):
            try:
                function(1)
            except EnvWeaveError as error:
                refused.append(error)

    threads = [threading.Thread(target=call_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert len(refused) == 50


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "3"])
def test_an_invalid_limit_of_a_registry_is_refused(limit: Any) -> None:
    with pytest.raises(OptionError, match=f"ToolRegistry: max_calls must be .*got {limit!r}"):
        ToolRegistry(max_calls=limit)


def test_closing_twice_is_allowed() -> None:
    registry = ToolRegistry([add])

    asyncio.run(registry.close())
    asyncio.run(registry.close())

    assert opened(registry)["add"](1) == 2


def test_a_registry_can_be_sent_to_another_process() -> None:
    registry = ToolRegistry(allow=["add", "own"], max_calls=2)
    registry.register(add, description="Sum up.", max_calls=1)
    registry.register(Tool(name="own", function=lambda **given: given, parameters={}))
    registry.register("hidden", lambda: 1)
    asyncio.run(registry.open())

    copied = pickle.loads(cloudpickle.dumps(registry))

    assert copied.schemas() == registry.schemas()
    assert [tool.max_calls for tool in copied] == [1, None, None]
    functions = opened(copied)
    assert [functions["add"](1), functions["own"]()] == [2, {}]
    with pytest.raises(EnvWeaveError, match="the limit is reached"):
        functions["own"]()

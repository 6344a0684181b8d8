"""Tools in the code of an agent, with every executor."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from envweave import CodeAction, CodeObservation, create_codeact_env
from envweave.codec import Bounds
from envweave.sandbox import ToolCall
from envweave.session import DirectEnvironment
from envweave.tools import Tool, ToolRegistry, ToolSource

Make = Callable[..., DirectEnvironment]


@dataclass
class Place:
    name: str
    height_m: float = 0.0


def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Args:
        a: The one.
        b: The other.
    """
    return a + b


async def greet(name: str) -> str:
    """Greet a person."""
    await asyncio.sleep(0)
    return f"Hello, {name}"


def climb(place: Place, by: Annotated[float, Bounds(0, 100)] = 1.0) -> Place:
    """Go up."""
    return Place(place.name, place.height_m + by)


def fail() -> None:
    """Fail."""
    raise ValueError("no such book")


@pytest.fixture(params=["sandbox", "inproc"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[DirectEnvironment] = []

    def make_one(tools: Any, **options: Any) -> DirectEnvironment:
        env = create_codeact_env(executor=request.param, tools=tools, **options)
        made.append(env)
        env.reset()
        return env

    yield make_one
    for env in made:
        env.close()


def run(env: DirectEnvironment, code: str) -> CodeObservation:
    observation: CodeObservation = env.step(CodeAction(code=code))
    return observation


def value(env: DirectEnvironment, code: str) -> Any:
    observation = run(env, code)
    assert observation.execution_result.success, observation.stderr
    return observation.execution_result.return_value


def recorded(observation: CodeObservation) -> list[tuple[Any, ...]]:
    calls: tuple[ToolCall, ...] = observation.execution_result.tool_calls
    return [(call.name, call.arguments, call.value, call.error) for call in calls]


CAUGHT = "try:\n    {call}\nexcept ToolError as error:\n    message = str(error)\nmessage"


def error_of(env: DirectEnvironment, call: str) -> Any:
    """Call a tool that fails; return the message that code catches."""
    return value(env, CAUGHT.format(call=call))


def test_code_calls_sync_and_async_tools_alike(make: Make) -> None:
    env = make([add, greet])

    assert value(env, "add(1, b=2), greet('Ann')") == (3, "Hello, Ann")


def test_the_seed_form_of_a_tool_works(make: Make) -> None:
    registry = ToolRegistry()
    registry.register("add", lambda a, b: a + b)

    assert value(make(registry), "add(2, 3)") == 5


def test_the_observation_names_the_tools(make: Make) -> None:
    env = make([add, greet])

    assert env.reset().available_tools == ["add", "greet"]
    assert env.state.tools == ["add", "greet"]


def test_help_shows_the_signature_and_the_docstring(make: Make) -> None:
    env = make([add])

    assert run(env, "help(add)").stdout.splitlines() == [
        "Help on function add in module __main__:",
        "",
        "add(a: int, b: int = 1) -> int",
        "    Add two numbers.",
        "    ",
        "    Args:",
        "        a: The one.",
        "        b: The other.",
        "",
    ]
    assert value(env, "add.__doc__.splitlines()[0], add.__name__") == ("Add two numbers.", "add")


def test_help_shows_a_tool_that_comes_with_a_schema(make: Make) -> None:
    schema = {
        "properties": {
            "limit": {"type": "integer", "description": "How many."},
            "words": {"type": "string"},
            "user-id": {"type": "integer"},
        },
        "required": ["words", "user-id"],
    }
    tool = Tool(name="find", function=lambda **given: given, description="Find.", parameters=schema)
    env = make([tool])

    assert run(env, "help(find)").stdout.splitlines()[2:] == [
        "find(words: str, limit: int | None = None, **kwargs)",
        "    Find.",
        "    ",
        "    Args:",
        "        limit: How many.",
        "        user-id (int): Pass it as **{'user-id': ...}.",
        "",
    ]
    assert value(env, "find('war', **{'user-id': 3})") == {"words": "war", "user-id": 3}
    assert error_of(env, "find('war')").startswith("TypeError: find() missing a required argument")


def test_a_dataclass_is_given_and_returned_as_a_dict(make: Make) -> None:
    env = make([climb])

    assert value(env, "climb({'name': 'Rome'}, by=20)") == {"name": "Rome", "height_m": 20.0}
    assert "Place: a dict of name: str, height_m: float = 0.0" in run(env, "help(climb)").stdout


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("add()", "TypeError: add() missing a required argument: 'a'"),
        ("add(1, 2, 3)", "TypeError: add() too many positional arguments"),
        ("add(1, c=3)", "TypeError: add() got an unexpected keyword argument 'c'"),
        ("add('x')", "TypeError: add() argument a: 'x' is not an int"),
        ("climb({'nam': 'Rome'})", "TypeError: climb() argument place.nam: "),
        ("climb({'name': 'Rome'}, by=101)", "TypeError: climb() argument by: 101.0 is not between"),
    ],
)
def test_arguments_that_do_not_fit_are_errors_that_code_can_catch(
    call: str, text: str, make: Make
) -> None:
    env = make([add, climb])

    assert error_of(env, call).startswith(text)


def test_an_exception_of_a_tool_can_be_caught_by_code(make: Make) -> None:
    env = make([fail])

    uncaught = run(env, "fail()")

    assert uncaught.execution_result.exception_type == "ToolError"
    assert uncaught.execution_result.exception_message == "ValueError: no such book"
    assert error_of(env, "fail()") == "ValueError: no such book"


def test_a_tool_that_is_not_allowed_is_not_available(make: Make) -> None:
    env = make(ToolRegistry([add, fail], allow=["add"]))

    assert value(env, "add(1)") == 2
    assert run(env, "fail()").execution_result.exception_type == "NameError"
    assert env.state.tools == ["add"]


def test_the_limit_of_a_tool_holds_over_the_steps_of_an_episode(make: Make) -> None:
    registry = ToolRegistry([greet])
    registry.register(add, max_calls=2)
    env = make(registry)

    value(env, "add(1)")
    value(env, "add(2)")

    assert error_of(env, "add(3)") == (
        "CallLimitError: add() may be called 2 times per episode; the limit is reached."
    )
    assert value(env, "greet('Ann')") == "Hello, Ann"
    env.reset()
    assert value(env, "add(3)") == 4


def test_the_limit_of_a_registry_holds_for_all_tools_together(make: Make) -> None:
    env = make(ToolRegistry([add, greet], max_calls=2))

    value(env, "add(1), greet('Ann')")

    assert error_of(env, "add(3)") == (
        "CallLimitError: Tools may be called 2 times per episode; the limit is reached."
    )
    env.reset()
    assert value(env, "add(3)") == 4


def test_environments_that_share_a_registry_count_on_their_own(make: Make) -> None:
    registry = ToolRegistry([add], max_calls=1)
    one, other = make(registry), make(registry)

    assert value(one, "add(1)") == 2
    assert value(other, "add(1)") == 2
    assert error_of(one, "add(1)").startswith("CallLimitError")


def test_every_call_is_in_the_record_of_its_step(make: Make) -> None:
    env = make(ToolRegistry([add, climb, fail], max_calls=3))

    code = """
    add(1, b=2)
    climb({'name': 'Rome'})
    for call in (fail, lambda: add('x'), lambda: add(1)):
        try:
            call()
        except ToolError:
            pass
    """.replace("\n    ", "\n")
    first, second = run(env, code), run(env, "1 + 1")

    assert recorded(first) == [
        ("add", ((1,), {"b": 2}), 3, None),
        ("climb", (({"name": "Rome"},), {}), {"name": "Rome", "height_m": 1.0}, None),
        ("fail", ((), {}), None, "ValueError: no such book"),
        ("add", (("x",), {}), None, "TypeError: add() argument a: 'x' is not an int"),
        (
            "add",
            ((1,), {}),
            None,
            "CallLimitError: Tools may be called 3 times per episode; the limit is reached.",
        ),
    ]
    assert recorded(second) == []


@pytest.mark.slow  # waits for a deadline
def test_a_tool_that_takes_longer_than_the_run_ends_the_run(make: Make) -> None:
    release = threading.Event()

    async def linger() -> None:
        await asyncio.Event().wait()

    def block() -> None:
        release.wait(30)

    env = make([linger, block], limits={"timeout_s": 0.3})

    awaited = run(env, "kept = 1\nlinger()")
    blocked = run(env, "block()")
    release.set()

    assert [one.execution_result.limits_hit for one in (awaited, blocked)] == [("time",)] * 2
    assert [one.execution_result.session_ended for one in (awaited, blocked)] == [False] * 2
    assert recorded(awaited)[0][0] == "linger"
    assert "TimeoutError" in recorded(awaited)[0][3]
    assert value(env, "kept") == 1


def test_a_tool_may_have_the_name_of_a_builtin(make: Make) -> None:
    env = make({"len": lambda _thing: -1})

    assert value(env, "len([1, 2]), sum([1, 2])") == (-1, 3)


def test_a_tool_may_have_the_name_of_a_module_that_code_finds_imported(make: Make) -> None:
    env = make({"time": lambda: "noon"})

    assert value(env, "time(), math.sqrt(16)") == ("noon", 4.0)


class Phone(ToolSource):
    """A source whose tool works while it is started."""

    name = "phone"

    def __init__(self) -> None:
        self.is_connected = False

    async def start(self) -> list[Tool]:
        self.is_connected = True
        return [Tool(name="dial", function=self.dial)]

    async def dial(self) -> str:
        return "ringing" if self.is_connected else "dead"

    async def close(self) -> None:
        self.is_connected = False


def test_a_source_lasts_until_the_last_environment_that_uses_it_is_closed(make: Make) -> None:
    phone = Phone()
    registry = ToolRegistry()
    registry.add_source(phone)
    one, other = make(registry), make(registry)

    one.close()

    assert value(other, "dial()") == "ringing"
    other.close()
    assert not phone.is_connected

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from envweave.errors import StartupError
from envweave.tools import Tool, ToolOutcome, ToolRegistry, ToolSource


@dataclass
class Point:
    x: float
    y: float = 0.0


def move(point: Point, by: float = 1.0) -> Point:
    return Point(point.x + by, point.y)


async def greet(name: str) -> str:
    return f"Hello, {name}"


def call(registry: ToolRegistry, name: Any, arguments: Any) -> ToolOutcome:
    return asyncio.run(registry.call(name, arguments))


def test_a_call_returns_plain_data() -> None:
    registry = ToolRegistry([move, greet])

    assert call(registry, "move", {"point": {"x": 1}}) == ToolOutcome({"x": 2.0, "y": 0.0})
    assert call(registry, "greet", {"name": "Ann"}) == ToolOutcome("Hello, Ann")


def test_arguments_by_position_alone_are_given_by_name() -> None:
    def power(base: int, exponent: int = 2, /, *, modulo: int | None = None) -> int:
        return pow(base, exponent, modulo)

    registry = ToolRegistry([power])

    assert call(registry, "power", {"base": 3}) == ToolOutcome(9)
    assert call(registry, "power", {"base": 3, "exponent": 3, "modulo": 5}) == ToolOutcome(2)
    assert call(registry, "power", {"exponent": 3}).is_error


def test_bytes_are_passed_as_base64() -> None:
    registry = ToolRegistry({"size": (lambda data: len(data))})

    @registry.register
    def measure(data: bytes) -> int:
        return len(data)

    assert call(registry, "measure", {"data": "AAEC"}) == ToolOutcome(3)


class Unkind(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def fail_with(error: BaseException) -> Any:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("mvoe", {}, "NameError: There is no tool 'mvoe'. Did you mean 'move'? Known: move."),
        (None, {}, "NameError: There is no tool None. Known: move."),
        (["mv"], {}, "NameError: There is no tool ['mv']. Known: move."),
        ("move", {}, "TypeError: move() missing a required argument: 'point'"),
        ("move", {"point": {"z": 1}}, "TypeError: move() argument point.z: unknown field"),
        ("move", {"point": {"x": 1}, "bye": 2}, "TypeError: move() got an unexpected keyword"),
        ("move", [1], "TypeError: move() takes its arguments as an object, by name."),
        ("move", None, "TypeError: move() takes its arguments as an object, by name."),
        ("move", {1: 2}, "TypeError: move() takes its arguments as an object, by name."),
    ],
)
def test_an_invalid_call_is_an_outcome(name: Any, arguments: Any, text: str) -> None:
    outcome = call(ToolRegistry([move]), name, arguments)

    assert outcome.is_error
    assert outcome.value.startswith(text)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("two\n  lines"), "ValueError: two lines"),
        (KeyError(), "KeyError"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (Unkind(), "Unkind: its message cannot be shown"),
        (ValueError("x" * 10_000), f"ValueError: {'x' * 4084}"),
    ],
)
def test_a_tool_that_fails_is_an_outcome_on_one_line(error: BaseException, text: str) -> None:
    registry = ToolRegistry({"fail": fail_with(error)})

    assert call(registry, "fail", {}) == ToolOutcome(text, is_error=True)


def test_an_async_tool_that_fails_or_cancels_itself_is_an_outcome() -> None:
    async def fail() -> None:
        raise OSError("gone")

    async def cancel() -> None:
        raise asyncio.CancelledError

    registry = ToolRegistry([fail, cancel])

    assert call(registry, "fail", {}) == ToolOutcome("OSError: gone", is_error=True)
    assert call(registry, "cancel", {}) == ToolOutcome("CancelledError", is_error=True)


def test_cancelling_the_caller_cancels_the_call() -> None:
    started = asyncio.Event()

    async def linger() -> None:
        started.set()
        await asyncio.Event().wait()

    async def main() -> None:
        calling = asyncio.ensure_future(ToolRegistry([linger]).call("linger", {}))
        await asyncio.wait_for(started.wait(), 10)
        calling.cancel()
        await calling

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())


def test_limits_apply_and_counts_restart_when_opened() -> None:
    registry = ToolRegistry(max_calls=3)
    registry.register(greet, max_calls=1)
    registry.register(move)

    first = [call(registry, "greet", {"name": "Ann"}) for _ in range(2)]
    others = [call(registry, "move", {"point": {"x": 1}}) for _ in range(3)]
    asyncio.run(registry.open())

    assert [one.is_error for one in first] == [False, True]
    assert (
        first[1].value
        == "CallLimitError: greet() may be called once per episode; the limit is reached."
    )
    assert [one.is_error for one in others] == [False, False, True]
    assert not call(registry, "greet", {"name": "Ann"}).is_error


def test_a_tool_that_is_not_allowed_is_unknown() -> None:
    outcome = call(ToolRegistry([move, greet], allow=["move"]), "greet", {"name": "Ann"})

    assert outcome == ToolOutcome(
        "NameError: There is no tool 'greet'. Known: move.", is_error=True
    )


class Late(ToolSource):
    name = "late"

    def __init__(self, fault: Exception | None = None) -> None:
        self.fault = fault

    async def start(self) -> list[Tool]:
        if self.fault is not None:
            raise self.fault
        return [Tool(name="late", function=lambda: "at last")]

    async def close(self) -> None: ...


def test_a_call_starts_the_sources() -> None:
    registry = ToolRegistry()
    registry.add_source(Late())

    assert call(registry, "late", {}) == ToolOutcome("at last")


def test_a_source_that_cannot_start_is_an_outcome() -> None:
    registry = ToolRegistry()
    registry.add_source(Late(StartupError("late is broken")))

    assert call(registry, "late", {}) == ToolOutcome("StartupError: late is broken", is_error=True)

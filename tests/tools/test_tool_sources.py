import asyncio
import gc
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from envweave.errors import OptionError, StartupError
from envweave.tools import Tool, ToolRegistry, ToolSource


class Shelf(ToolSource):
    """A source whose tools say what they are called, while it is started."""

    def __init__(self, name: str, tools: Iterable[str], *, fault: Exception | None = None) -> None:
        self.name = name
        self.tools = list(tools)
        self.fault = fault
        self.events: list[str] = []
        self.is_running = False

    async def start(self) -> list[Tool]:
        if self.fault is not None:
            raise self.fault
        if not self.is_running:
            self.events.append("start")
            self.is_running = True
        return [self._tool(name) for name in self.tools]

    async def close(self) -> None:
        if self.is_running:
            self.events.append("close")
            self.is_running = False

    def _tool(self, name: str) -> Tool:
        async def answer(**_arguments: Any) -> str:
            if not self.is_running:
                raise ConnectionError("it is closed")
            return name

        return Tool(name=name, function=answer, description=f"Say {name}.")


class Holder:
    """A holder of tools."""


def make(*sources: ToolSource, **options: Any) -> ToolRegistry:
    registry = ToolRegistry({"own": lambda: "own"}, **options)
    for source in sources:
        registry.add_source(source)
    return registry


def test_sources_start_when_the_registry_is_opened_and_bring_their_tools() -> None:
    one, two = Shelf("one", ["a"]), Shelf("two", ["b", "c"])
    registry = make(one, two)

    assert registry.names() == ["own"]
    functions = asyncio.run(registry.open())

    assert list(functions) == ["own", "a", "b", "c"]
    assert asyncio.run(functions["c"]()) == "c"
    assert registry.names() == ["own", "a", "b", "c"]
    assert [one["function"]["name"] for one in registry.schemas()] == ["own", "a", "b", "c"]
    assert repr(registry) == "<ToolRegistry: own, a, b, c and of one and of two>"


def test_sources_last_over_episodes_and_end_once() -> None:
    shelf = Shelf("shelf", ["a"])
    registry = make(shelf)

    asyncio.run(registry.open())
    asyncio.run(registry.open())
    asyncio.run(registry.close())
    asyncio.run(registry.close())

    assert shelf.events == ["start", "close"]
    assert registry.names() == ["own"]


def test_a_closed_registry_starts_anew() -> None:
    shelf = Shelf("shelf", ["a"])
    registry = make(shelf)

    asyncio.run(registry.open())
    asyncio.run(registry.close())
    functions = asyncio.run(registry.open())

    assert asyncio.run(functions["a"]()) == "a"


def test_tools_that_a_source_has_gained_are_there_in_the_next_episode() -> None:
    shelf = Shelf("shelf", ["a"])
    registry = make(shelf)
    asyncio.run(registry.open())

    shelf.tools = ["b"]

    assert list(asyncio.run(registry.open())) == ["own", "b"]


def test_an_allow_list_may_name_the_tools_of_a_source() -> None:
    registry = make(Shelf("shelf", ["a", "b"]), allow=["b"])

    assert list(asyncio.run(registry.open())) == ["b"]


def test_one_name_in_two_sources_is_refused_and_both_are_named() -> None:
    registry = make(Shelf("left", ["a"]), Shelf("right", ["a"]))

    with pytest.raises(OptionError, match="Two tools have the name 'a': one of left, one of right"):
        asyncio.run(registry.open())


def test_one_name_in_a_source_and_in_the_registry_is_refused() -> None:
    with pytest.raises(OptionError, match="'own': one of this registry, one of shelf"):
        asyncio.run(make(Shelf("shelf", ["own"])).open())


def test_the_tools_of_a_source_are_neither_replaced_nor_removed() -> None:
    registry = make(Shelf("shelf", ["a"]))
    asyncio.run(registry.open())

    with pytest.raises(OptionError, match="'a' is taken by a tool of shelf"):
        registry.register("a", lambda: 1, replace=True)
    with pytest.raises(OptionError, match=r"'a' belongs to shelf.*Leave it out of allow"):
        registry.unregister("a")


def test_a_source_that_cannot_start_is_reported_and_the_others_can_be_closed() -> None:
    good, bad = Shelf("good", ["a"]), Shelf("bad", [], fault=StartupError("bad is broken"))
    registry = make(good, bad)

    with pytest.raises(StartupError, match="bad is broken"):
        asyncio.run(registry.open())
    asyncio.run(registry.close())

    assert good.events == ["start", "close"]


def test_an_invalid_or_repeated_source_is_refused() -> None:
    shelf = Shelf("shelf", [])
    registry = make(shelf)

    with pytest.raises(OptionError, match="takes a ToolSource, got"):
        registry.add_source("shelf")  # type: ignore[arg-type] # what is tested
    with pytest.raises(OptionError, match="shelf was added already"):
        registry.add_source(shelf)


def test_sources_last_until_the_last_holder_is_gone() -> None:
    shelf = Shelf("shelf", ["a"])
    registry = make(shelf)
    one, two = Holder(), Holder()

    asyncio.run(registry.open(holder=one))
    functions = asyncio.run(registry.open(holder=two))
    asyncio.run(registry.close(holder=one))
    asyncio.run(registry.close(holder=one))

    assert asyncio.run(functions["a"]()) == "a"
    asyncio.run(registry.close(holder=two))
    assert shelf.events == ["start", "close"]


def test_a_garbage_collected_holder_releases_its_sources() -> None:
    shelf = Shelf("shelf", ["a"])
    registry = make(shelf)
    one, two = Holder(), Holder()
    asyncio.run(registry.open(holder=one))
    asyncio.run(registry.open(holder=two))

    del one
    gc.collect()
    asyncio.run(registry.close(holder=two))

    assert shelf.events == ["start", "close"]


class SlowToEnd(Shelf):
    """A source whose close waits for permission."""

    def __init__(self) -> None:
        super().__init__("slow", ["a"])
        self.is_ending = threading.Event()
        self.may_end = threading.Event()

    async def close(self) -> None:
        self.is_ending.set()
        await asyncio.to_thread(self.may_end.wait, 10)
        await super().close()


def test_opening_while_another_closes_gives_working_tools() -> None:
    slow = SlowToEnd()
    registry = make(slow)
    one, two = Holder(), Holder()
    asyncio.run(registry.open(holder=one))
    closing = threading.Thread(target=lambda: asyncio.run(registry.close(holder=one)))
    closing.start()
    assert slow.is_ending.wait(10)

    async def open_meanwhile() -> str:
        opening = asyncio.ensure_future(registry.open(holder=two))
        await asyncio.sleep(0)
        slow.may_end.set()
        result: str = await (await opening)["a"]()
        return result

    assert asyncio.run(open_meanwhile()) == "a"
    closing.join(10)
    assert slow.events == ["start", "close", "start"]

import asyncio
import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from envweave.tools import ToolRegistry


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Pixel:
    colour: Colour
    at: tuple[int, int] = (0, 0)


ARRAY = np.arange(3)


def returned(value: Any) -> Any:
    """Return what a caller of a tool gets if its function returns `value`."""
    return asyncio.run(ToolRegistry({"give": lambda: value}).call("give", {})).value


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (Pixel(Colour.RED), {"colour": "red", "at": (0, 0)}),
        ([Pixel(Colour.RED)], [{"colour": "red", "at": (0, 0)}]),
        ((1, [Colour.RED]), (1, ["red"])),
        ({Colour.RED: {"x": Colour.RED}}, {"red": {"x": "red"}}),
        ({Colour.RED}, {"red"}),
        (frozenset([Colour.RED, 1]), frozenset(["red", 1])),
        (Pixel, Pixel),
    ],
)
def test_dataclasses_and_enum_members_become_data(value: Any, data: Any) -> None:
    made = returned(value)

    assert made == data
    assert type(made) is type(data)


@pytest.mark.parametrize("value", [None, 1, "x", b"x", [1, "x"], {"a": 1}, (1,), ARRAY, {1}])
def test_plain_data_is_returned_unchanged(value: Any) -> None:
    assert returned(value) is value


def test_a_value_that_contains_itself_is_returned_unchanged() -> None:
    loop: list[Any] = [Colour.RED]
    loop.append(loop)

    assert returned(loop) is loop

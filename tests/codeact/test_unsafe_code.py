"""Code is judged by its syntax tree: what is unsafe is found however it is spelt, or listed.

`unsafe_programs.json` holds the spellings that were tried. Those that are not caught say why.
"""

from __future__ import annotations

import importlib
import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envweave.codeact.injected.prelude import MODULES
from envweave.codeact.transforms import UNSAFE_MODULES, UNSAFE_NAMES
from envweave.codeact.transforms.unsafe_code import MOST_CHARACTERS, MOST_FINDINGS, judge_code
from envweave.codeact.transforms.unsafe_names import WELL_KNOWN

TRIED = json.loads(Path(__file__).with_name("unsafe_programs.json").read_text(encoding="utf-8"))
UNSAFE: list[dict[str, str]] = TRIED["unsafe"]
HARMLESS: list[str] = TRIED["harmless"]
CODES = [one["code"] for one in UNSAFE]


def test_exactly_those_spellings_are_not_caught_that_are_listed_as_such() -> None:
    missed = [one["code"] for one in UNSAFE if judge_code(one["code"]).safe]

    assert missed == [one["code"] for one in UNSAFE if "not_caught" in one]


def test_every_spelling_that_was_tried_is_python_and_stands_there_once() -> None:
    assert all(judge_code(code).parses for code in [*CODES, *HARMLESS])
    assert len({*CODES, *HARMLESS}) == len(CODES) + len(HARMLESS)


@pytest.mark.parametrize("code", HARMLESS)
def test_harmless_code_is_safe(code: str) -> None:
    assert judge_code(code).found == ()


@pytest.mark.parametrize("code", CODES)
def test_code_that_is_only_mentioned_is_safe(code: str) -> None:
    quoted = f"x = {code!r}\nprint({code!r}, f'{{x}} {{1}}')\n"
    commented = "".join(f"# {line}\n" for line in code.splitlines())

    assert judge_code(quoted + commented).found == ()


ANYWHERE = [
    one
    for one in UNSAFE
    if "own" not in one["how"] and "__future__" not in one["code"] and "import *" not in one["code"]
]
OWN = [one["code"] for one in UNSAFE if "own" in one["how"]]


@pytest.mark.parametrize("one", ANYWHERE, ids=lambda one: one["code"][:40])
def test_unsafe_code_is_found_wherever_it_stands(one: dict[str, str]) -> None:
    inner = "".join(f"            {line}\n" for line in one["code"].splitlines())
    code = f"class A:\n    async def outer():\n        while True:\n{inner}"

    assert judge_code(code).safe == ("not_caught" in one)


@pytest.mark.parametrize("code", OWN)
def test_a_name_that_may_be_the_builtin_is_taken_for_it_in_branches_and_classes(code: str) -> None:
    inner = "".join(f"        {line}\n" for line in code.splitlines())

    assert not judge_code(f"if True:\n    while True:\n{inner}        break\n").safe
    assert not judge_code(f"class A:\n    if True:\n{inner}").safe


def test_what_was_found_is_told_by_line() -> None:
    code = "import math\nimport os, sys\n\nx = eval('1')\nfor y in ():\n    x.__globals__\n"

    judgement = judge_code(code)

    assert [(one.line, one.what) for one in judgement.found] == [
        (2, "imports os"),
        (2, "imports sys"),
        (4, "uses eval"),
        (6, "uses the attribute __globals__"),
    ]


def test_the_words_for_what_was_found() -> None:
    told = {
        "from numpy import *": "imports everything of numpy",
        "import numpy as n\nn.load": "uses numpy.load",
        "getattr(x, y)": "uses getattr with a name that is no literal",
        "from operator import attrgetter\nf = attrgetter": "uses attrgetter without calling it",
        "import operator\nf = operator.attrgetter": "uses attrgetter without calling it",
        "d['__import__']": "looks up __import__",
        "del open": "unbinds open",
    }

    found = {code: [one.what for one in judge_code(code).found] for code in told}

    assert found == {code: [what] for code, what in told.items()}


def test_what_is_told_is_bounded() -> None:
    long = f"x.__{'a' * 5000}__\n"

    found = judge_code(long + "eval('1')\n" * 100).found

    assert len(found) == MOST_FINDINGS
    assert max(len(one.what) for one in found) < 100


def test_code_that_is_no_python_is_told_apart() -> None:
    judged = [judge_code(code) for code in ("import os\nx = (", "a\0b", "'\ud800'", "9" * 5000)]

    assert [(one.parses, one.found) for one in judged] == [(False, ())] * 4


def test_an_operator_that_an_earlier_step_asked_for_does_not_hide_the_rest() -> None:
    assert not judge_code("x = 1 <> 2\nimport os\n").safe


DEEP = {
    "sums": "1" + "+1" * 40_000,
    "attributes": "x" + ".y" * 40_000,
    "calls": "f" + "()" * 40_000,
    "signs": "-" * 90_000 + "1",
    "lambdas": "lambda: " * 10_000 + "1",
    "branches": "if a: pass\n" + "elif a: pass\n" * 7_000,
    "subscripts": "x" + "[0]" * 30_000,
    "conditions": "1 if 1 else " * 8_000 + "1",
    "powers": "1" + "**1" * 30_000,
}


@pytest.mark.parametrize("code", DEEP.values(), ids=DEEP)
def test_code_that_is_too_deep_to_be_judged_is_unsafe(code: str) -> None:
    judgement = judge_code(code)

    assert [one.what for one in judgement.found] == ["cannot be judged: it is nested too deep"]


def test_code_that_is_deep_is_judged() -> None:
    for code in ("1" + "+1" * 900, "x" + ".y" * 900, "lambda: " * 300 + "1", "[" * 90 + "]" * 90):
        assert judge_code(code).safe
        assert not judge_code(f"eval, {code}").safe


def test_code_that_is_too_long_to_be_judged_is_unsafe() -> None:
    judged = judge_code("x = 1\n" + " " * MOST_CHARACTERS)

    assert [one.what for one in judged.found] == [
        "cannot be judged: it is longer than 100,000 characters"
    ]
    assert judge_code("x = 1\n" + " " * (MOST_CHARACTERS - 6)).safe


def test_code_that_is_long_in_every_way_is_judged() -> None:
    longest = {
        "an import": "import " + ".".join(["a"] * 5_000),
        "a literal": "getattr(x, '" + "a" * 90_000 + "')",
        "a product": "getattr(x, 'a' * 1000000000)",
        "a replacement": f"getattr(x, {'a' * 900!r}.replace('a', {'b' * 900!r}))",
        "a sum": "getattr(x, " + "'a' + " * 900 + "'')",
        "names for names": "".join(f"a{i} = a{i + 1}\n" for i in range(5_000)),
        "fields": f"'{'{0.a}' * 10_000}'.format(1)",
    }

    safe = {name: judge_code(code).safe for name, code in longest.items()}

    # What is worked out is bounded, and a name that is not known is unsafe.
    assert {name for name, one in safe.items() if not one} == {
        "a product",
        "a replacement",
        "a sum",
    }


def test_the_modules_and_names_are_a_choice() -> None:
    code = "import sys\nimport torch\nopen('x')\nsys.modules"

    found = judge_code(
        code, modules=(UNSAFE_MODULES - {"sys"}) | {"torch"}, names=UNSAFE_NAMES - {"open"}
    ).found

    assert [one.what for one in found] == ["imports torch"]


def test_a_tool_of_the_name_of_a_builtin_is_no_builtin() -> None:
    assert judge_code("open('x')", own=["open"]).safe
    assert not judge_code("del open\nopen('x')", own=["open"]).safe


def ways_to_modules() -> Iterator[tuple[str, str]]:
    """Yield the ways from the modules that code finds to those that are known by their name."""
    waiting: list[tuple[str, Any]] = [(name, importlib.import_module(name)) for name in MODULES]
    seen: set[int] = set()
    while waiting:
        path, module = waiting.pop(0)
        if id(module) in seen or path.count(".") > 3:
            continue
        seen.add(id(module))
        for name, value in vars(module).items():
            if isinstance(value, types.ModuleType):
                waiting.append((f"{path}.{name}", value))
                if value.__name__ in WELL_KNOWN:
                    yield f"{path}.{name}", value.__name__


def test_every_way_from_the_modules_at_hand_to_an_unsafe_one_is_caught() -> None:
    ways = dict(ways_to_modules())

    assert {"random._os", "collections._sys"} <= ways.keys()
    assert [way for way in ways if judge_code(way).safe] == []


@given(st.text() | st.lists(st.sampled_from([*CODES, *HARMLESS, "\n", "(", "'", " "])).map("".join))
def test_a_judgement_never_raises(code: str) -> None:
    judgement = judge_code(code)

    assert judgement.parses or judgement.safe


@given(st.lists(st.sampled_from(HARMLESS), max_size=4), st.data())
def test_safe_code_around_unsafe_code_does_not_make_it_safe(
    around: list[str], data: st.DataObject
) -> None:
    # Not those that bind the very name.
    around = [code for code in around if not any(f"{name} =" in code for name in UNSAFE_NAMES)]
    unsafe = data.draw(st.sampled_from(["import os", "x.__globals__", "eval('1')", "globals()"]))
    place = data.draw(st.integers(0, len(around)))
    code = "\n".join([*around[:place], unsafe, *around[place:]])

    assert not judge_code(code).safe

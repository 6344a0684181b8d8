"""Code is judged by a plain walk of its syntax tree: imports, names and attributes.

`unsafe_programs.json` holds spellings of unsafe code, with the reason for those that are not
caught, harmless programs, and harmless programs that are reported all the same.
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
from envweave.codeact.transforms.static_analysis import (
    MOST_CHARACTERS,
    MOST_FINDINGS,
    WELL_KNOWN,
    judge_code,
)

TRIED = json.loads(Path(__file__).with_name("unsafe_programs.json").read_text(encoding="utf-8"))
UNSAFE: list[dict[str, str]] = TRIED["unsafe"]
HARMLESS: list[str] = TRIED["harmless"]
FALSE_ALARMS: list[str] = TRIED["reported_though_harmless"]
CODES = [one["code"] for one in UNSAFE]


def test_only_the_spellings_listed_as_not_caught_are_missed() -> None:
    missed = [one["code"] for one in UNSAFE if judge_code(one["code"]).safe]

    assert missed == [one["code"] for one in UNSAFE if "not_caught" in one]


def test_every_listed_program_is_valid_python_and_listed_once() -> None:
    programs = [*CODES, *HARMLESS, *FALSE_ALARMS]

    assert all(judge_code(code).parses for code in programs)
    assert len(set(programs)) == len(programs)


@pytest.mark.parametrize("code", HARMLESS)
def test_harmless_code_is_safe(code: str) -> None:
    assert judge_code(code).found == ()


@pytest.mark.parametrize("code", FALSE_ALARMS)
def test_builtin_names_and_computed_attribute_names_are_reported_without_deeper_analysis(
    code: str,
) -> None:
    assert not judge_code(code).safe


@pytest.mark.parametrize("code", CODES)
def test_code_in_strings_and_comments_is_safe(code: str) -> None:
    quoted = f"x = {code!r}\nprint({code!r}, f'{{x}} {{1}}')\n"
    commented = "".join(f"# {line}\n" for line in code.splitlines())

    assert judge_code(quoted + commented).found == ()


ANYWHERE = [
    one for one in UNSAFE if "__future__" not in one["code"] and "import *" not in one["code"]
]


@pytest.mark.parametrize("one", ANYWHERE, ids=lambda one: one["code"][:40])
def test_unsafe_code_is_found_at_any_nesting(one: dict[str, str]) -> None:
    inner = "".join(f"            {line}\n" for line in one["code"].splitlines())
    code = f"class A:\n    async def outer():\n        while True:\n{inner}"

    assert judge_code(code).safe == ("not_caught" in one)


def test_findings_are_reported_by_line() -> None:
    code = "import math\nimport os, sys\n\nx = eval('1')\nfor y in ():\n    x.__globals__\n"

    report = judge_code(code)

    assert [(one.line, one.what) for one in report.found] == [
        (2, "imports os"),
        (2, "imports sys"),
        (4, "uses eval"),
        (6, "uses the attribute __globals__"),
    ]


def test_findings_are_described() -> None:
    descriptions = {
        "from numpy import *": "imports everything of numpy",
        "import numpy as n\nn.load": "uses numpy.load",
        "getattr(x, y)": "uses getattr with a name that is not a literal",
        "from operator import attrgetter\nf = attrgetter": "uses attrgetter without calling it",
        "import operator\nf = operator.attrgetter": "uses attrgetter without calling it",
        "d['__import__']": "looks up __import__",
        "del open": "unbinds open",
    }

    found = {code: [one.what for one in judge_code(code).found] for code in descriptions}

    assert found == {code: [what] for code, what in descriptions.items()}


def test_findings_are_bounded_in_number_and_length() -> None:
    long = f"x.__{'a' * 5000}__\n"

    found = judge_code(long + "eval('1')\n" * 100).found

    assert len(found) == MOST_FINDINGS
    assert max(len(one.what) for one in found) < 100


def test_invalid_python_is_reported_as_such() -> None:
    judged = [judge_code(code) for code in ("import os\nx = (", "a\0b", "'\ud800'", "9" * 5000)]

    assert [(one.parses, one.found) for one in judged] == [(False, ())] * 4


def test_an_operator_enabled_by_an_earlier_step_does_not_hide_the_rest() -> None:
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
    report = judge_code(code)

    assert [one.what for one in report.found] == ["cannot be judged: it is nested too deep"]


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


def test_code_with_long_parts_is_judged() -> None:
    longest = {
        "an import": "import " + ".".join(["a"] * 5_000),
        "a literal": "getattr(x, '" + "a" * 90_000 + "')",
        "a path": "x" + ".a" * 900,
        "aliases": "".join(f"import a{i} as a{i + 1}\n" for i in range(3_000)),
    }

    assert [name for name, code in longest.items() if not judge_code(code).safe] == []


def test_modules_and_names_are_configurable() -> None:
    code = "import sys\nimport torch\nopen('x')\nsys.modules"

    found = judge_code(
        code, modules=(UNSAFE_MODULES - {"sys"}) | {"torch"}, names=UNSAFE_NAMES - {"open"}
    ).found

    assert [one.what for one in found] == ["imports torch"]


def test_a_tool_replaces_the_builtin_of_the_same_name_until_it_is_deleted() -> None:
    assert judge_code("open('x')", own=["open"]).safe
    assert not judge_code("del open\nopen('x')", own=["open"]).safe


def ways_to_modules() -> Iterator[tuple[str, str]]:
    """Yield the attribute paths from the modules that code finds to well-known unsafe ones."""
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


def test_every_attribute_path_from_a_provided_module_to_an_unsafe_one_is_caught() -> None:
    ways = dict(ways_to_modules())

    assert {"random._os", "collections._sys"} <= ways.keys()
    assert [way for way in ways if judge_code(way).safe] == []


@given(st.text() | st.lists(st.sampled_from([*CODES, *HARMLESS, "\n", "(", "'", " "])).map("".join))
def test_judging_never_raises(code: str) -> None:
    report = judge_code(code)

    assert report.parses or report.safe


@given(st.lists(st.sampled_from(HARMLESS), max_size=4), st.data())
def test_safe_code_around_unsafe_code_does_not_make_it_safe(
    around: list[str], data: st.DataObject
) -> None:
    unsafe = data.draw(st.sampled_from(["import os", "x.__globals__", "eval('1')", "globals()"]))
    place = data.draw(st.integers(0, len(around)))
    code = "\n".join([*around[:place], unsafe, *around[place:]])

    assert not judge_code(code).safe

"""Well written code earns a little, badly written code loses a little."""

from __future__ import annotations

import ast

import pytest
from codeact_environments import code_observation, failed_code_observation, parts_of
from hypothesis import given
from hypothesis import strategies as st

import envweave as ew
from envweave import CodeObservation
from envweave.errors import OptionError

TRAIT_REWARDS = {
    "failed": -0.1,
    "long": -0.05,
    "swallows": -0.05,
    "concise": 0.05,
    "documented": 0.05,
}
DOCUMENTED = 'def f():\n    """Do."""\n    return 1\nf()'

TRAITS = {
    "21 * 2": ["concise"],
    "": [],
    "# nothing": [],
    "\n".join(["x = 1"] * 30): ["concise"],
    "\n".join(["x = 1"] * 31): [],
    "\n".join(["x = 1", "", "# x"] * 30): ["concise"],
    "x = " + "1" * 96: ["concise"],
    "x = " + "1" * 97: [],
    "\n".join(["x = 1"] * 100): [],
    "\n".join(["x = 1"] * 101): ["long"],
    DOCUMENTED: ["concise", "documented"],
    "class A:\n    'A.'\n    def f(self):\n        'Do.'": ["concise", "documented"],
    "class A:\n    'A.'\n    def f(self): pass": ["concise"],
    "async def f(): pass": ["concise"],
    "try:\n    x\nexcept:\n    y": ["swallows", "concise"],
    "try:\n    x\nexcept KeyError:\n    pass": ["swallows", "concise"],
    "try:\n    x\nexcept KeyError:\n    y": ["concise"],
    "1" + "+1" * 40_000: [],
}


@pytest.mark.parametrize(("code", "traits"), TRAITS.items(), ids=map(str, range(len(TRAITS))))
def test_the_traits_of_code_that_ran(code: str, traits: list[str]) -> None:
    shown = ew.CodeQualityTransform()(code_observation(code))

    worth = round(sum(TRAIT_REWARDS[trait] for trait in traits), 2)
    assert shown.metadata["code_quality"] == traits
    assert (shown.reward, parts_of(shown)) == (worth, {"quality": worth})


@pytest.mark.parametrize(
    ("code", "traits"),
    [
        ("1 / 0", ["failed"]),
        ("x = (", ["failed"]),
        (f"{DOCUMENTED}\n1 / 0", ["failed"]),
        ("x\n" * 101, ["failed", "long"]),
        ("x = 1\n" * 101 + "try: x\nexcept: pass\n1 / 0", ["failed", "long", "swallows"]),
    ],
)
def test_code_that_failed_earns_nothing_for_how_it_is_written(code: str, traits: list[str]) -> None:
    shown = ew.CodeQualityTransform()(failed_code_observation(code))

    assert shown.metadata["code_quality"] == traits
    assert shown.reward == round(sum(TRAIT_REWARDS[trait] for trait in traits), 2)


def test_it_adds_to_the_existing_reward() -> None:
    shown = ew.CodeQualityTransform(part="style")(code_observation(reward=1.0))

    assert (shown.reward, parts_of(shown)) == (1.05, {"base": 1.0, "style": 0.05})


def test_the_first_observation_of_an_episode_earns_nothing() -> None:
    shown = ew.CodeQualityTransform()(CodeObservation(prompt="x"))

    assert (shown.reward, shown.metadata) == (None, {})


@given(st.text(alphabet="def x():\n 'pas#etryxcp") | st.text(), st.booleans())
def test_it_never_raises_and_its_reward_is_bounded(code: str, success: bool) -> None:
    shown = ew.CodeQualityTransform()(code_observation(code, success=success))

    assert -0.2 <= shown.reward <= 0.1


def test_the_table_in_the_docstring_is_what_it_gives() -> None:
    text = ew.CodeQualityTransform.__doc__ or ""
    rows = [line.split("|") for line in text.splitlines() if line.strip().startswith("| `")]

    documented = {row[1].strip().strip("`"): ast.literal_eval(row[2].strip()) for row in rows}

    assert documented == TRAIT_REWARDS


def test_a_part_without_a_name_is_refused() -> None:
    with pytest.raises(OptionError, match="part=''"):
        ew.CodeQualityTransform(part="")

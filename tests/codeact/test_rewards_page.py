"""The tables in the guide on rewards for code match the code. Its snippets are run elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from codeact_environments import code_observation

from envweave.codeact.transforms import (
    UNSAFE_NAMES,
    CodeQualityTransform,
    CodeSafetyTransform,
)
from envweave.codeact.transforms.static_analysis import BY_REASON

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "rewards-for-code.md"
TRIED = json.loads(Path(__file__).with_name("unsafe_programs.json").read_text(encoding="utf-8"))


def table(*rows: tuple[object, ...]) -> str:
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def as_code(text: str) -> str:
    return f"`{' ⏎ '.join(text.splitlines())}`".replace("|", "\\|")


def listed(names: frozenset[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def modules() -> str:
    return table(*((f"It {reason}", listed(names)) for reason, names in BY_REASON.items()))


def builtins() -> str:
    return listed(UNSAFE_NAMES)


def is_safe(code: str) -> bool:
    shown = CodeSafetyTransform()(code_observation(code))
    return shown.metadata["code_safety"]["safe"]


def spellings() -> str:
    rows = {}
    for one in TRIED["unsafe"]:
        tried, caught, example = rows.get(one["how"], (0, 0, one["code"]))
        rows[one["how"]] = (tried + 1, caught + (not is_safe(one["code"])), example)
    return table(*((how, *row[:2], as_code(row[2])) for how, row in rows.items()))


def not_caught() -> str:
    rows = [one for one in TRIED["unsafe"] if is_safe(one["code"])]
    return table(*((as_code(one["code"]), one["not_caught"]) for one in rows))


def traits() -> str:
    lines = (CodeQualityTransform.__doc__ or "").splitlines()
    return "\n".join(line.strip() for line in lines if line.strip().startswith("| `"))


@pytest.mark.parametrize("made", [modules, builtins, spellings, not_caught, traits])
def test_the_guide_contains_the_current_table(made) -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())

    assert " ".join(made().split()) in page, made()

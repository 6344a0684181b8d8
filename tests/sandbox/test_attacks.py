"""Every attack of the corpus, on every tier of this machine, as the user who runs the tests."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import pytest
from attacks.corpus import Attack, load
from attacks.runner import Ground, ground, try_attack

from envweave.sandbox import Sandbox

pytestmark = pytest.mark.slow  # starts many sandbox sessions

TIERS = ("namespace", "landlock")


@pytest.fixture(scope="module")
def grounds() -> Iterator[dict[str, Ground]]:
    """A sandbox for attacks on each tier: every attack has a separate session."""
    with contextlib.ExitStack() as stack:
        yield {
            tier: stack.enter_context(ground(functools.partial(Sandbox, isolation=tier)))
            for tier in TIERS
        }


WAITING = {"both_streams_without_end", "child_that_keeps_its_parent_waiting", "deep_folders"}
"""Attacks that are held only after a second or two."""


def by_family() -> list[Any]:
    """All attacks; in the fast tier, the first quick one of each family."""
    seen: set[str] = set()
    params = []
    for attack in load():
        is_slow = attack.family in seen or attack.id in WAITING
        marks = [pytest.mark.slow] if is_slow else []
        params.append(pytest.param(attack, id=attack.id, marks=marks))
        if not is_slow:
            seen.add(attack.family)
    return params


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("attack", by_family())
def test_an_attack_is_contained(attack: Attack, tier: str, grounds: dict[str, Ground]) -> None:
    verdict = try_attack(attack, grounds[tier])

    assert verdict.broken == {} or verdict.known

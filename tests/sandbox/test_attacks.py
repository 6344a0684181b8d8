"""Every attack of the corpus, on every tier that this machine has, as whoever runs the tests."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import pytest
from attack_corpus import Attack, load
from attacks import Ground, ground, try_attack

from envweave.sandbox import Sandbox

TIERS = ("namespace", "landlock")


@pytest.fixture(scope="module")
def grounds() -> Iterator[dict[str, Ground]]:
    """A place for attacks on each tier: every attack has a session of its own there."""
    with contextlib.ExitStack() as stack:
        yield {
            tier: stack.enter_context(ground(functools.partial(Sandbox, isolation=tier)))
            for tier in TIERS
        }


@pytest.mark.parametrize(
    "tier",
    ["namespace", pytest.param("landlock", marks=pytest.mark.slow)],  # the weaker tier in CI
)
@pytest.mark.parametrize("attack", load(), ids=lambda attack: attack.id)
def test_an_attack_is_held(attack: Attack, tier: str, grounds: dict[str, Ground]) -> None:
    verdict = try_attack(attack, grounds[tier])

    assert verdict.broken == {} or verdict.known

"""The attacks as an unprivileged user, and the control: without walls most succeed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from attacks.corpus import ESCAPING, HARMLESS, load
from staging import NoInterpreterError, OtherUser, other_user

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

IN_CI = os.environ.get("CI") == "true"


@pytest.fixture(scope="module")
def nobody() -> Iterator[OtherUser]:
    """An unprivileged user, with a copy of envweave."""
    if os.geteuid() != 0:
        pytest.skip("Only root can run programs as others; the other tests run without rights.")
    try:
        with other_user("nobody") as other:
            yield other
    except NoInterpreterError as error:
        (pytest.fail if IN_CI else pytest.skip)(str(error))


def played(nobody: OtherUser, isolation: str) -> dict[str, Any]:
    arguments = [nobody.folder / "scripts/attacks", "--json", "--isolation", isolation]
    done = nobody.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode in (0, 1), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize("tier", ["namespace", "landlock"])
def test_every_attack_is_contained_for_an_unprivileged_user(nobody: OtherUser, tier: str) -> None:
    report = played(nobody, tier)

    attacks = report["attacks"]
    broken = {one["id"]: one["broken"] for one in attacks if not (one["held"] or one["known"])}
    assert broken == {}
    assert (report["tier"], report["user"]) == (tier, nobody.user)
    assert report["played"] == len(load())


def test_without_walls_attacks_that_only_walls_stop_succeed(nobody: OtherUser) -> None:
    report = played(nobody, "none")

    through = {one["id"] for one in report["attacks"] if not one["held"]}
    assert through >= ESCAPING
    assert {one["id"] for one in report["attacks"]} == HARMLESS
    broken = {promise for one in report["attacks"] for promise in one["broken"]}
    assert broken >= {"not_escaped", "no_leak", "host_ok", "sibling_ok", "session_ok", "no_connect"}
    assert report["user"] == nobody.user


def test_without_walls_no_attack_runs_as_root(nobody: OtherUser) -> None:
    script = nobody.folder / "scripts/attacks"

    done = subprocess.run(
        [nobody.python, script, "--isolation", "none"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "as root" in done.stderr

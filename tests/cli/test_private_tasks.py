"""No command shows the private part of a task."""

from __future__ import annotations

import pytest
from environments.tasks import MARKER

CARELESS = "pkg://environments.tasks:Careless"


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["words", "json"])
@pytest.mark.parametrize(
    "command",
    [
        ("list",),
        ("info", CARELESS),
        ("check", CARELESS),
        ("run", CARELESS, "--episodes=2", "--max-steps=2"),
    ],
    ids=lambda command: command[0],
)
def test_a_command_shows_nothing_private(envweave, caplog, command, form):
    ran = envweave(*command, *form)

    assert ran.stdout
    assert MARKER not in ran.stdout + ran.stderr + caplog.text

"""The harness that runs programs as an unprivileged user does drop all privileges."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from staging import NoInterpreterError, other_user

IN_CI = os.environ.get("CI") == "true"
FACTS = """
import json, os, sys
import envweave, msgspec, numpy
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
print(json.dumps({
    "user": os.getresuid(), "group": os.getresgid(), "groups": os.getgroups(),
    "rights": int(status["CapEff"], 16), "secret": os.environ.get("HIDDEN"),
    "homes": sorted({os.path.dirname(os.path.dirname(module.__file__))
                     for module in (envweave, msgspec, numpy)}),
}))
"""


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run programs as others")
def test_a_program_runs_unprivileged_with_a_copy_of_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HIDDEN", "x")

    try:
        with other_user("nobody") as other:
            done = other.run(["-c", FACTS], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except NoInterpreterError as error:
        (pytest.fail if IN_CI else pytest.skip)(str(error))

    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    packages = next(iter(seen["homes"]))
    assert seen == {
        "user": [other.user] * 3,
        "group": [other.group] * 3,
        "groups": [],
        "rights": 0,
        "secret": None,
        "homes": [packages],
    }
    assert Path(packages).is_relative_to(other.folder)
    assert not other.folder.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root can")
def test_the_harness_requires_root() -> None:
    with pytest.raises(PermissionError, match="Only root"), other_user("nobody"):
        pass

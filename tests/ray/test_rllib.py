"""Our environments in RLlib's EnvRunners."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import envweave as ew


@pytest.mark.slow  # trains
@pytest.mark.timeout(600)
def test_ppo_of_rllib_learns_lineworld(cluster: Any, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "envweave.examples.train_lineworld_rllib"]

    ran = subprocess.run(
        [*program, "--iterations", "5", "--record", str(tmp_path / "run")],
        env={**os.environ, "RAY_ADDRESS": cluster.address},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )

    rows = [line.split() for line in ran.stdout.splitlines()[1:]]
    returns = [float(row[2]) for row in rows]
    assert ran.returncode == 0, ran.stderr
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5"]
    assert returns[0] < 0.2
    assert returns[-1] > 0.6
    assert len(ew.load(tmp_path / "run")) > 100

"""Our environments in RLlib's EnvRunners."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest


@pytest.mark.slow  # trains
@pytest.mark.timeout(600)
def test_ppo_of_rllib_learns_lineworld(cluster: Any) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "envweave.examples.train_lineworld_rllib", "--iterations", "5"],
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

"""`benchmarks/run sessions`: a small run of the real servers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # starts servers and clients

ROOT = Path(__file__).parents[2]


def test_all_sessions_connect_reset_and_step(tmp_path):
    path = tmp_path / "results.json"
    command = [sys.executable, ROOT / "benchmarks/run", "sessions", "--library", "envweave"]
    options = ["--only", "async-128", "--repeats", "1", "--seconds", "0.2", "--json", path]

    done = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stderr
    rows = json.loads(path.read_text())["rows"]
    [row] = [row for row in rows if row["key"] == "async-128"]
    details = row["details"]["envweave"]
    assert (row["problems"], details["failed"]) == ({}, 0)
    assert details["seconds"]["step"]["p50"] >= 0.2
    assert details["seconds"]["total"]["p99"] >= details["seconds"]["step"]["p50"]

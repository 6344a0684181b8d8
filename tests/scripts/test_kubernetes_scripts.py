"""The scripts around the cluster for tests say what to do, and end only what is theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


def run(cache: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPTS / name, *arguments],
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("name", ["kubernetes-cluster", "kubernetes-binaries"])
def test_help_prints_the_usage(tmp_path: Path, name: str) -> None:
    assert f"usage: scripts/{name}" in run(tmp_path, name, "--help").stdout
    assert run(tmp_path, name, "--frobnicate").returncode == 2


def test_without_a_build_it_prints_how_to_build(tmp_path: Path) -> None:
    where = run(tmp_path, "kubernetes-binaries", "--where")
    started = run(tmp_path, "kubernetes-cluster", "start")

    assert where.returncode == 1
    assert where.stdout.startswith(f"{tmp_path}/envweave-ci/kubernetes-")
    assert started.returncode == 1
    assert "scripts/kubernetes-cluster build" in started.stderr


def test_without_a_cluster_it_reports_that_and_stops_nothing(tmp_path: Path) -> None:
    status = run(tmp_path, "kubernetes-cluster", "status")
    stopped = run(tmp_path, "kubernetes-cluster", "stop")
    loaded = run(tmp_path, "kubernetes-cluster", "load", "echo-env:latest")

    assert (status.returncode, stopped.returncode, loaded.returncode) == (1, 0, 1)
    assert "scripts/kubernetes-cluster start" in status.stderr
    assert "No cluster runs that was started here" in stopped.stderr
    assert "does not run" in loaded.stderr


def test_an_unknown_part_is_refused(tmp_path: Path) -> None:
    assert run(tmp_path, "kubernetes-cluster", "stop", "everything").returncode == 2

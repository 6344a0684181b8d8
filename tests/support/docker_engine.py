"""A Docker engine for tests, and an image to run Python in: see `scripts/docker-engine`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "envweave-python:3.11"


def need_image() -> str:
    """Return the name of an image with Python; skip the test where no engine runs, but not in CI.

    In CI whatever is missing is made: there its absence is a failure.
    """
    is_ci = os.environ.get("CI") == "true"
    steps = [["docker-engine", "start" if is_ci else "status"]]
    steps.append(["docker-base-image", *([] if is_ci else ["--size"])])
    for script, *arguments in steps:
        done = subprocess.run(
            [sys.executable, ROOT / "scripts" / script, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode and is_ci:
            pytest.fail(f"scripts/{script} failed: {done.stderr.strip()}")
        if done.returncode:
            pytest.skip(
                f"{done.stderr.strip()} Run scripts/docker-engine start once, "
                "and scripts/docker-base-image."
            )
    return IMAGE

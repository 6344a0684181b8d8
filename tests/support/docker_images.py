"""The images of this checkout for tests, and what the engine says of their containers."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from docker_engine import need_image

ROOT = Path(__file__).resolve().parents[2]
BASE, ECHO, LINEWORLD, CODING = (
    f"{name}:latest" for name in ("envweave-base", "echo-env", "envweave-lineworld", "coding-env")
)
OWNER = "envweave.owner"


def need_images() -> None:
    """Have the images built; skip the test where no engine runs, but not in CI."""
    if os.environ.get("CI") != "true":
        pytest.importorskip("docker", reason="Install it with: pip install 'envweave[docker]'")
    need_image()
    _built()


@functools.cache
def _built() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/docker-images"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def docker(*arguments: str) -> str:
    """Run a command of `docker`, and return what it prints."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def inspect(container: str) -> dict[str, Any]:
    """Return what the engine knows of a container."""
    found: dict[str, Any] = json.loads(docker("inspect", container))[0]
    return found


def exists(container: str) -> bool:
    """Whether the engine has such a container."""
    return bool(docker("ps", "-aq", "--filter", f"name=^{container}$"))


def containers_of(mark: str) -> list[str]:
    """Return the names of the containers of one owner."""
    said = docker("ps", "-a", "--filter", f"label={OWNER}={mark}", "--format", "{{.Names}}")
    return said.split()

"""A Docker engine for tests (see `scripts/docker-engine`), images of this checkout, containers."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def own_mark() -> str:
    """Return the label of what this process starts, in Docker and in Kubernetes."""
    from envweave.providers.cleanup import Owner

    return Owner.here().mark


def own_containers() -> list[str]:
    """Return the names of the containers of this process."""
    return containers_of(own_mark())


def containers_of(mark: str) -> list[str]:
    """Return the names of the containers of one owner."""
    said = docker("ps", "-a", "--filter", f"label={OWNER}={mark}", "--format", "{{.Names}}")
    return said.split()

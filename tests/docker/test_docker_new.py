"""Images of a project of `envweave new`: by `envweave build`, and by its own Dockerfile."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers import docker

import envweave as ew
from envweave.cli import main

pytestmark = [
    pytest.mark.slow,
    pytest.mark.docker,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("images"),
]


@pytest.fixture
def image() -> Iterator[str]:
    """A name for an image, which is removed at the end."""
    name = f"envweave-test-{secrets.token_hex(4)}:latest"
    yield name
    if docker("images", "--quiet", name):
        docker("rmi", name)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A new project."""
    folder = tmp_path / "fresh-env"
    assert main(["new", "fresh-env", "--dir", str(folder)]) == 0
    return folder


def play(image: str) -> ew.StepResult:
    with ew.make(f"docker://{image}", max_guesses=3) as env:
        env.reset(seed=7)
        return env.step({"number": 50})


def test_envweave_build_makes_an_image_of_it(image: str, project: Path) -> None:
    assert main(["build", str(project), "-t", image]) == 0

    assert play(image).observation.guesses_left == 2


def test_its_dockerfile_makes_an_image_of_it(image: str, project: Path) -> None:
    environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
    subprocess.run(["docker", "build", "-q", "-t", image, project], env=environment, check=True)

    assert play(image).observation.guesses_left == 2

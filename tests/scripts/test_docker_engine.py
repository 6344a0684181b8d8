"""The scripts that provide a Docker engine and an image say what is wrong and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def run(script: str, *arguments: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run a script where no engine answers."""
    surroundings = {
        **os.environ,
        "DOCKER_HOST": f"unix://{cache}/nothing.sock",
        "XDG_CACHE_HOME": str(cache),
    }
    return subprocess.run(
        [sys.executable, SCRIPTS / script, *arguments],
        env=surroundings,
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_an_engine_status_prints_how_to_start_one(tmp_path: Path) -> None:
    done = run("docker-engine", "status", cache=tmp_path)

    assert done.returncode == 1
    assert "scripts/docker-engine start" in done.stderr


def test_an_engine_elsewhere_that_does_not_answer_is_not_replaced(tmp_path: Path) -> None:
    done = run("docker-engine", "start", cache=tmp_path)

    assert done.returncode == 1
    assert f"DOCKER_HOST='unix://{tmp_path}/nothing.sock'" in done.stderr
    assert not (tmp_path / "envweave-ci/docker/started.json").exists()


def test_stopping_leaves_alone_what_was_not_started_here(tmp_path: Path) -> None:
    place = tmp_path / "envweave-ci/docker"
    place.mkdir(parents=True)
    # The number of a process that lives, with a birth that is not its own.
    (place / "started.json").write_text(f'{{"pid": {os.getpid()}, "birth": 1}}')

    done = run("docker-engine", "stop", cache=tmp_path)

    assert done.returncode == 0
    assert "No engine runs that was started here" in done.stderr
    assert list(place.glob("started.json")) == []


def test_without_an_engine_building_an_image_prints_how_to_start_one(tmp_path: Path) -> None:
    done = run("docker-base-image", cache=tmp_path)

    assert done.returncode == 1
    assert "scripts/docker-engine start" in done.stderr


@pytest.mark.parametrize(
    ("script", "argument"), [("docker-engine", "stpo"), ("docker-base-image", "--agian")]
)
def test_an_unknown_command_is_refused_with_the_known_ones(
    script: str, argument: str, tmp_path: Path
) -> None:
    done = run(script, argument, cache=tmp_path)

    assert done.returncode == 2
    assert argument in done.stderr


@pytest.mark.parametrize("script", ["docker-engine", "docker-base-image", "attacks"])
def test_help_prints_the_usage(script: str, tmp_path: Path) -> None:
    done = run(script, "--help", cache=tmp_path)

    assert done.returncode == 0
    assert "usage:" in done.stdout

"""Images built by `envweave build` serve their environment, and building leaves nothing else."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from containers import BASE, docker

import envweave as ew
from envweave.cli import main

pytestmark = [
    pytest.mark.slow,
    pytest.mark.docker,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("images"),
]

STAGE = "envweave.stage"
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "shouting"
version = "1.5"
dependencies = ["envweave[server]>=0.1", "iniconfig"]

[project.entry-points."envweave.envs"]
shout-v0 = "shouting:ShoutEnv"
"""
MODULE = """
from dataclasses import dataclass
from iniconfig import IniConfig
import envweave as ew

@dataclass
class Shout(ew.Action):
    text: str

@dataclass
class Heard(ew.Observation):
    text: str = ""
    loudness: int = 0

class ShoutEnv(ew.Environment):
    def reset(self) -> Heard:
        return Heard()

    def step(self, action: Shout) -> Heard:
        return Heard(action.text.upper(), len(action.text), reward=1.0, done=True)
"""


def left_of(image: str) -> list[str]:
    """Return what the build of an image has left behind."""
    found = docker("images", "--quiet", "--filter", "dangling=true", "--filter", f"label={STAGE}")
    # Builds of other tests come and go meanwhile.
    done = subprocess.run(
        [
            "docker",
            "inspect",
            "--format",
            f'{{{{index .Config.Labels "{STAGE}"}}}}',
            *found.split(),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    return [stage for stage in done.stdout.split() if stage.startswith(image)]


@pytest.fixture
def image() -> Iterator[str]:
    """A name for an image, which is removed at the end."""
    name = f"envweave-test-{secrets.token_hex(4)}:latest"
    yield name
    if docker("images", "--quiet", name):
        docker("rmi", name)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The folder of a project with an observation of its own."""
    folder = tmp_path / "my_env"
    (folder / "src/shouting").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "src/shouting/__init__.py").write_text(MODULE)
    return folder


def build(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code = main(["build", *arguments, "--json"])
    ran = capsys.readouterr()
    assert code == 0, ran.err
    return json.loads(ran.out)


def test_an_id_has_an_image_of_its_own(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    built = build(capsys, "counter-v0", "-t", image)

    about = json.loads(docker("image", "inspect", image))[0]
    assert built == {"image": image, "id": about["Id"], "size": about["Size"], "env": "counter-v0"}
    assert about["Config"]["User"] == "10001:10001"
    assert about["Config"]["Healthcheck"]["Test"][0] == "CMD"
    assert about["Config"]["Labels"]["envweave.env"] == "counter-v0"
    assert left_of(image) == []
    with ew.make(f"docker://{image}", done_at=2) as env:
        env.reset()
        assert env.step({"delta": 2}).terminated


def test_a_project_folder_is_copied_with_its_requirements(
    image: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build(capsys, str(project), "-t", image)

    with ew.make(f"docker://{image}") as env:
        env.reset()
        replies = env.step({"text": "hi"})
    assert (replies.observation.text, replies.observation.loudness) == ("HI", 2)
    assert (replies.reward, replies.terminated) == (1.0, True)
    assert not docker("run", "--rm", image, "sh", "-c", "ls -d /build* 2>/dev/null || true")
    assert left_of(image) == []


def test_a_single_module_is_copied_and_other_versions_of_base_packages_are_installed(
    image: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions = "import importlib.metadata as m; print(m.version('cloudpickle'))"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "whispering.py").write_text(MODULE.replace("upper", "lower"))

    build(capsys, "pkg://whispering:ShoutEnv", "-t", image, "--with", "iniconfig",
          "--with", "cloudpickle==3.1.0")  # fmt: skip

    with ew.make(f"docker://{image}") as env:
        env.reset()
        assert env.step({"text": "HI"}).observation.text == "hi"
    assert docker("run", "--rm", BASE, "python", "-c", versions) != "3.1.0"
    assert docker("run", "--rm", image, "python", "-c", versions) == "3.1.0"


def test_a_failed_build_shows_the_end_of_its_log_and_leaves_no_image(
    image: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["build", str(project), "-t", image, "--env", "pkg://shouting:ShoutedEnv"])

    message = capsys.readouterr().err
    assert code == 1
    assert "has no attribute 'ShoutedEnv'. Did you mean 'ShoutEnv'?" in message
    assert f"Error: Building '{image}' failed: a command in it exited with 1." in message
    assert docker("images", "--quiet", image) == ""
    assert left_of(image) == []


def test_a_failed_pip_install_is_reported_with_its_last_lines(
    image: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PROJECT.replace('"iniconfig"', '"iniconfig==0.0.0.1"')
    (project / "pyproject.toml").write_text(text)

    code = main(["build", str(project), "-t", image])

    message = capsys.readouterr().err
    assert code == 1
    assert "iniconfig==0.0.0.1" in message
    assert "Error: pip cannot fetch the dependencies of the environment." in message


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (
            "envweave-bse",
            "no image 'envweave-bse:latest' on this machine. Did you mean 'envweave-base'",
        ),
        ("envweave-python:3.11", "--base 'envweave-python:3.11' does not contain envweave"),
    ],
)
def test_an_invalid_base_image_is_reported(
    base: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["build", "echo-v0", "--base", base])

    assert code == 2
    assert message in capsys.readouterr().err


def test_an_installed_wheel_has_the_dockerfile_too() -> None:
    code = (
        "from importlib import resources; "
        "print(resources.files('envweave.cli.commands.build').joinpath('dockerfiles/env.Dockerfile').read_text())"
    )

    assert "ARG ENV_ID" in docker("run", "--rm", BASE, "python", "-c", code)

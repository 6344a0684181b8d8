"""The Dockerfiles in docker/, and their images. No engine is needed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from envweave.providers.docker.options import DOCKERFILES as IMAGES
from envweave.providers.docker.options import build_command, image_of, missing_image_message

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted([*ROOT.glob("docker/**/*Dockerfile"), *ROOT.glob("src/**/*Dockerfile")])


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_dockerfile_needs_no_buildkit_and_does_not_run_as_root(file: Path) -> None:
    text = file.read_text(encoding="utf-8")

    assert not re.search(r"^# *syntax=|--mount=|--link|--chmod=|<<", text, re.MULTILINE)
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE)[-1:] in ([], ["10001:10001"])
    assert re.search(r"^ARG BASE=", text, re.MULTILINE)


@pytest.mark.parametrize("image", IMAGES)
def test_every_dockerfile_of_the_project_contains_its_build_command(image: str) -> None:
    text = (ROOT / IMAGES[image]).read_text(encoding="utf-8")
    command = re.search(r"^#   (docker build .*)$", text, re.MULTILINE)

    assert command is not None
    assert command[1] in (build_command(image), build_command(image.removesuffix(":latest")))


def test_the_dockerfiles_of_the_project_differ_only_in_their_name_and_their_last_lines() -> None:
    common, *_ = bodies = [
        (ROOT / file).read_text(encoding="utf-8").partition("\nARG BASE=")[2]
        for file in IMAGES.values()
    ]
    last = r"\nLABEL envweave\.env=(\S+)\nENV ENVWEAVE_ENV=\1\n"

    assert common.startswith("python:3.11-slim\n")
    assert set(re.findall(r"^FROM (\S+)", common, re.MULTILINE)) == {"$BASE", "packages"}
    assert [body for body in bodies[1:] if not re.fullmatch(re.escape(common) + last, body)] == []


def test_no_dockerfile_of_the_project_is_written_twice() -> None:
    listed = {ROOT / file for file in IMAGES.values()}

    assert {*ROOT.glob("docker/**/*Dockerfile")} == listed
    assert [file.name for file in ROOT.glob("src/**/*Dockerfile")] == ["env.Dockerfile"]


@pytest.mark.parametrize(
    ("env_id", "image"),
    [
        ("echo-v0", "echo-env:latest"),
        ("lineworld-v0", "envweave-lineworld:latest"),
        ("codefix-v0", "envweave-codefix:latest"),
        ("gsm8k-choice-v0", "envweave-gsm8k:latest"),
        ("my-game-v2", "my-game-env:latest"),
        ("pkg://a:B", None),
    ],
)
def test_an_id_has_a_default_image(env_id: str, image: str | None) -> None:
    assert image_of(env_id) == image


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (
            "envweave-lineworld",
            "Build it in a checkout of envweave: `docker build -t envweave-lineworld -f "
            "docker/lineworld_env_server/Dockerfile .`.",
        ),
        ("ehco-env", "Did you mean 'echo-env'? Build it: `envweave build ID -t ehco-env` with"),
        ("lineworld-env:latest", "on this machine. Build it: `envweave build ID -t lineworld-env"),
        (
            "counter-env:latest",
            "machine. Build it: `envweave build counter-v0`.",
        ),
        ("me/my-gane:2", "Did you mean 'me/my-game:2'?"),
        ("registry:5000/nothing", "or fetch it: `docker pull registry:5000/nothing`."),
    ],
)
def test_a_missing_image_is_reported_with_the_way_to_get_it(image: str, expected: str) -> None:
    message = missing_image_message(image, ["echo-env:latest", "me/my-game:2"])

    assert message.startswith(f"There is no image {image!r} on this machine.")
    assert expected in message

"""The images of this checkout: what they are, and how others are built on them."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
from containers import BASE, CODING, ECHO, LINEWORLD, ROOT, docker

import envweave as ew
from envweave import LocalDockerProvider

pytestmark = [
    pytest.mark.slow,
    pytest.mark.docker,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("images"),
]

HEALTH = ("/opt/envweave/bin/python", "-I", "-S", "/opt/envweave/health.py")


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "scripts/docker-images", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("image", [BASE, ECHO, LINEWORLD, CODING])
def test_an_image_does_not_run_as_root_and_has_a_health_check(image: str) -> None:
    about = json.loads(docker("image", "inspect", image))[0]["Config"]

    assert about["User"] == "10001:10001"
    assert about["Healthcheck"]["Test"] == ["CMD", *HEALTH]
    assert list(about["ExposedPorts"]) == ["8000/tcp"]
    assert about["Labels"].get("envweave.env", "base").removesuffix("-v0") in image
    assert about["Labels"]["envweave.server"] == "1"


@pytest.mark.parametrize("network", ["bridge", "none"])
def test_the_health_check_passes_where_a_server_answers(network: str) -> None:
    provider = LocalDockerProvider(network=network)
    try:
        provider.wait_for_ready(provider.start_container(ECHO), 60)

        docker("exec", provider.container, *HEALTH)
    finally:
        provider.stop_container()


def test_the_health_check_fails_without_a_server() -> None:
    done = subprocess.run(["docker", "run", "--rm", ECHO, *HEALTH], check=False)

    assert done.returncode == 1


def test_code_runs_behind_walls_in_a_container_without_rights() -> None:
    with ew.make("coding-v0", backend="docker_http") as env:
        env.reset()
        ran = env.step({"code": "x = 20\nprint(x + 1)"}).observation
        refused = env.step({"code": "open('/etc/passwd').read()"}).observation
        tier = env.state().isolation

    assert (ran.stdout, ran.exit_code) == ("21\n", 0)
    assert "PermissionError" in refused.stderr
    assert tier == "landlock"


def test_a_server_started_by_hand_requires_a_token() -> None:
    done = subprocess.run(
        ["docker", "run", "--rm", ECHO], capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "Set ENVWEAVE_TOKEN" in done.stderr


def test_the_size_of_images_is_reported() -> None:
    done = script("--sizes")

    assert done.returncode == 0
    sizes = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert {BASE, CODING, ECHO, LINEWORLD.removesuffix(":latest")} <= set(sizes)
    assert all(int(size.removesuffix(" MB")) < 300 for size in sizes.values())


def test_an_unknown_image_is_reported() -> None:
    done = script("ehco")

    assert done.returncode == 2
    assert "There is no 'ehco' in docker/; there are base, codefix, coding, echo," in done.stderr


def test_a_stand_in_for_the_public_base_never_takes_the_name_of_a_real_one(tmp_path: Path) -> None:
    loader = SourceFileLoader("docker_base_image", str(ROOT / "scripts/docker-base-image"))
    module = types.ModuleType(loader.name)
    loader.exec_module(module)
    module.PUBLIC_NAME = name = f"envweave-test-{secrets.token_hex(4)}:latest"
    (tmp_path / "empty.tar").write_bytes(bytes(10240))
    try:
        module.tag_public_name()
        stand_in = docker("image", "inspect", "--format", "{{.Id}}", name)
        real = docker("import", str(tmp_path / "empty.tar"), name)
        module.tag_public_name()
        kept = docker("image", "inspect", "--format", "{{.Id}}", name)
    finally:
        docker("rmi", name)

    assert stand_in == docker("image", "inspect", "--format", "{{.Id}}", module.IMAGE)
    assert kept == real

"""A fresh clone, a Python base image and `docker build`: nothing else is needed for the images."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from containers import BASE, ROOT, docker, inspect

import envweave as ew
from envweave.envs.coding_env import CodeAction, CodingEnv
from envweave.envs.echo_env import EchoAction, EchoEnv

pytestmark = [
    pytest.mark.slow,
    pytest.mark.docker,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("images"),
]

MODELS = """
from dataclasses import dataclass
import envweave as ew

@dataclass
class MyAction(ew.Action):
    command: str

@dataclass
class MyObservation(ew.Observation):
    output: str
"""
APP = """
import first_dependency
import envweave as ew
from ..models import MyAction, MyObservation

class MyEnvironment(ew.Environment):
    def reset(self) -> MyObservation:
        return MyObservation(first_dependency.__name__)

    def step(self, action: MyAction) -> MyObservation:
        return MyObservation(action.command.upper(), reward=1.0, done=True)

app = ew.create_fastapi_app(MyEnvironment(), MyAction, MyObservation)
"""


def run(*command: str | Path, cwd: Path | None = None, **variables: str) -> str:
    """Run a command, and return what it prints. Builds are the legacy builder's unless said."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "DOCKER_BUILDKIT": "0", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of this checkout, with wheels, for the builds of these tests have no network."""
    folder = tmp_path_factory.mktemp("clone") / "envweave"
    run("git", "clone", "--quiet", "--no-hardlinks", ROOT, folder)
    run(
        sys.executable, ROOT / "scripts/docker-images", "--wheelhouse", folder / "docker/wheelhouse"
    )
    return folder


@pytest.fixture
def tag() -> Iterator[Callable[[], str]]:
    """Names for images, which are removed at the end."""
    names: list[str] = []

    def new() -> str:
        names.append(f"envweave-test-{secrets.token_hex(4)}:latest")
        return names[-1]

    yield new
    for name in names:
        if docker("images", "--quiet", name):
            docker("rmi", name)


COMMANDS = {
    command.split()[3]: command
    for file in ROOT.glob("docker/*/Dockerfile")
    for command in re.findall(r"^#   (docker build .*)$", file.read_text(), re.MULTILINE)
}
"""The command in each Dockerfile, by the image that it builds."""


def build(image: str, tag: str, clone: Path) -> str:
    """Run the command that a Dockerfile begins with; other tests use the tag in it meanwhile."""
    return run(*COMMANDS[image].replace(f"-t {image} ", f"-t {tag} ").split(), cwd=clone)


@pytest.mark.parametrize("image", sorted(COMMANDS))
def test_an_image_is_built_by_the_documented_command(
    image: str, clone: Path, tag: Callable[[], str]
) -> None:
    name = tag()

    build(image, name, clone)

    env_id = docker("image", "inspect", "--format", '{{index .Config.Labels "envweave.env"}}', name)
    assert (env_id == "") == (image == BASE)
    with ew.make(env_id or "counter-v0", backend="docker_http", docker_image=name) as env:
        assert env.reset(seed=1).observation is not None


def test_the_images_are_played_by_their_clients(clone: Path, tag: Callable[[], str]) -> None:
    echo, coding = tag(), tag()
    build("echo-env:latest", echo, clone)
    build("coding-env:latest", coding, clone)

    with EchoEnv.from_docker_image(echo) as env:
        env.reset()
        echoed = env.step(EchoAction("Hello, World!")).observation.echoed_message
    with CodingEnv.from_docker_image(coding) as env:
        env.reset()
        printed = env.step(CodeAction("print(6 * 7)")).observation.stdout

    assert (echoed, printed) == ("Hello, World!", "42\n")


def test_a_second_build_is_cached_and_a_change_of_the_source_installs_no_packages_anew(
    clone: Path, tag: Callable[[], str], tmp_path: Path
) -> None:
    changed = tmp_path / "changed"
    run("cp", "-r", clone, changed)
    (changed / "src/envweave/version_of_this_test.py").write_text(f"# {secrets.token_hex(4)}\n")
    name = tag()

    build("envweave-lineworld", name, clone)
    again = build("envweave-lineworld", name, clone)
    after = build("envweave-lineworld", name, changed)

    assert "Running in" not in again
    ran = re.findall(r"^Step \S+ : (RUN .*)\n ---> Running in", after, re.MULTILINE)
    assert [command for command in ran if "/build/envweave" not in command] == []
    assert len(ran) == 1
    docker("run", "--rm", name, "python", "-c", "import envweave.version_of_this_test")


def test_untracked_files_are_not_sent_to_the_engine(
    clone: Path, tag: Callable[[], str], tmp_path: Path
) -> None:
    cluttered = tmp_path / "cluttered"
    run("git", "clone", "--quiet", clone, cluttered)
    for name in (".venv/lib/torch.so", "runs/model.bin", "src/envweave/__pycache__/a.pyc", "data"):
        (cluttered / name).parent.mkdir(parents=True, exist_ok=True)
        (cluttered / name).write_bytes(bytes(20_000_000))
    # The first stage asks for no packages.
    command = f"docker build --target requirements -t {tag()} -f docker/base/Dockerfile ."

    log = run(*command.split(), cwd=cluttered)

    sent = re.search(r"Sending build context to Docker daemon\s+([\d.]+)\s*MB", log)
    assert sent is not None, log
    assert float(sent[1]) < 10


def write_wheel(folder: Path, module: str) -> None:
    folder.mkdir(exist_ok=True)
    about = f"{module}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{module}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{module}.py", "")
        wheel.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The folder of an environment with a package that it needs, which no index is asked for."""
    folder = tmp_path / "project"
    server = folder / "src/envs/my_env/server"
    server.mkdir(parents=True)
    (server / "app.py").write_text(APP)
    (server.parent / "models.py").write_text(MODELS)
    for module in ("first_dependency", "second_dependency"):
        write_wheel(folder / "wheels", module)
    return folder


def documented_dockerfile() -> str:
    """Return the Dockerfile in the guide, with a package of this test and a quick health check."""
    page = (ROOT / "docs/guides/docker.md").read_text(encoding="utf-8")
    block = r'^```dockerfile title="my_env.Dockerfile"\n(.*?)^```$'
    (found,) = re.findall(block, page, re.MULTILINE | re.DOTALL)
    assert found.startswith(f"FROM {BASE}\n")
    return found.replace("your-dependencies", "first-dependency").replace("=30s", "=1s")


def build_project(project: Path, dockerfile: str, tag: str) -> None:
    offline = "\nCOPY wheels/ /wheels/\nENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels\n"
    first, _, rest = dockerfile.partition("\n")
    (project / "Dockerfile").write_text(first + offline + rest)
    run("docker", "build", "-t", tag, ".", cwd=project)


def test_the_documented_dockerfile_of_a_custom_environment_builds_and_is_healthy(
    project: Path, tag: Callable[[], str]
) -> None:
    name = tag()

    build_project(project, documented_dockerfile(), name)

    container = docker("run", "--detach", "--rm", name)
    try:
        deadline = time.monotonic() + 60
        while (health := inspect(container)["State"]["Health"])["Status"] != "healthy":
            assert time.monotonic() < deadline, health
            time.sleep(0.2)
    finally:
        docker("rm", "--force", container)
    with ew.make(f"docker://{name}") as env:
        found = env.reset().observation.output
        done = env.step({"command": "hi"})
    assert (found, done.observation.output, done.reward) == ("first_dependency", "HI", 1.0)


@pytest.mark.parametrize("base", [BASE, "coding-env:latest"])
def test_pip_install_reaches_the_python_of_the_server_as_any_user(
    base: str, project: Path, tag: Callable[[], str]
) -> None:
    name = tag()
    dockerfile = (
        f"FROM {base}\nRUN pip install first-dependency\nUSER root\n"
        "RUN python3 -m pip install second-dependency\nUSER 10001:10001\n"
    )

    build_project(project, dockerfile, name)

    asked = "import first_dependency, second_dependency, envweave; print(envweave.__file__)"
    for python in ("python", "python3", "/opt/envweave/bin/python"):
        assert docker("run", "--rm", name, python, "-c", asked).startswith("/opt/envweave/")


def test_wheels_are_downloaded_by_a_python_without_pip(tmp_path: Path) -> None:
    run(sys.executable, ROOT / "scripts/docker-images", "--wheelhouse", tmp_path / "known")
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")

    run(
        *(tmp_path / "venv/bin/python", ROOT / "scripts/docker-images"),
        *("--wheelhouse", tmp_path / "wheels"),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS=str(tmp_path / "known"),
    )

    names = [{file.name for file in (tmp_path / name).iterdir()} for name in ("known", "wheels")]
    assert names[0] == names[1] != set()

"""`envweave build` without an engine: the plan, and invalid arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import envweave as ew
from envweave.registry import DEFAULT_REGISTRY

ROOT = Path(__file__).parents[2]
ENV = """
import envweave as ew

class GameEnv(ew.Environment):
    def reset(self) -> ew.Observation:
        return ew.Observation()

    def step(self, action: ew.Action) -> ew.Observation:
        return ew.Observation(done=True)
"""
PROJECT = """
[project]
name = "my-game"
version = "1.0"

[project.entry-points."envweave.envs"]
"""


def write_project(folder: Path, *announced: str) -> None:
    folder.mkdir(exist_ok=True)
    entries = "".join(f'{name} = "my_game:GameEnv"\n' for name in announced)
    (folder / "pyproject.toml").write_text(PROJECT + entries)


def plan(envweave: Any, *arguments: str) -> dict[str, Any]:
    ran = envweave("build", *arguments, "--print", "--json")
    assert ran.code == 0, ran.stderr
    return json.loads(ran.stdout)


def test_an_environment_of_envweave_needs_no_further_packages(envweave: Any) -> None:
    planned = plan(envweave, "echo-v0")

    assert planned["image"] == "echo-env:latest"
    assert planned["base"] == "envweave-base:latest"
    assert planned["installs"] == []
    assert planned["arguments"]["ENV_ID"] == "echo-v0"


def test_a_module_is_copied_with_its_imported_siblings(envweave: Any, here: Path) -> None:
    (here / "own_game.py").write_text("import own_words\n" + ENV)
    (here / "own_words.py").write_text("")
    (here / "own_other.py").write_text("")

    planned = plan(envweave, "pkg://own_game:GameEnv", "-t", "game", "--with", "six")

    assert planned["image"] == "game:latest"
    assert planned["env"] == "pkg://own_game:GameEnv"
    assert planned["installs"] == [f"own_game, own_words of {here.resolve()}", "six"]


@pytest.mark.parametrize(("where", "module"), [(".", "flat_game"), ("src", "src_game")])
def test_a_module_of_a_project_is_copied_with_the_whole_project(
    where: str, module: str, envweave: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(here)
    (here / where).mkdir(exist_ok=True)
    (here / where / f"{module}.py").write_text(ENV)
    monkeypatch.syspath_prepend(here / where)

    planned = plan(envweave, f"pkg://{module}:GameEnv", "-t", "game")

    assert planned["installs"] == [f"the wheel of {here.resolve()}"]


def test_an_id_of_another_library_goes_with_that_library(envweave: Any) -> None:
    gymnasium = pytest.importorskip("gymnasium")

    planned = plan(envweave, "gym://CartPole-v1", "-t", "cart")

    assert planned["installs"] == [f"gymnasium=={gymnasium.__version__}"]


def test_a_folder_serves_the_one_environment_that_it_registers(envweave: Any, here: Path) -> None:
    write_project(here / "game", "game-v0")

    planned = plan(envweave, "./game")

    assert (planned["image"], planned["env"]) == ("game-env:latest", "game-v0")
    assert planned["installs"] == [f"the wheel of {here.resolve() / 'game'}"]


@pytest.mark.parametrize("env", ["other-v0", "pkg://my_game:GameEnv"])
def test_of_several_one_is_named(env: str, envweave: Any, here: Path) -> None:
    write_project(here / "game", "game-v0", "other-v0")

    planned = plan(envweave, "game", "--env", env, "-t", "registry.example:5000/games/one:1.2")

    assert planned["env"] == env
    assert planned["image"] == "registry.example:5000/games/one:1.2"


def test_people_are_shown_the_plan_and_the_dockerfile(envweave: Any) -> None:
    ran = envweave("build", "echo-v0", "--print", "--base", "mine:1")

    assert "echo-env:latest" in ran.text
    assert "nothing: part of envweave" in ran.text
    assert "ARG BASE mine:1" in ran.text
    assert "FROM $BASE" in ran.text


@pytest.mark.slow  # starts the command line anew
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ehco-v0"], "No environment is registered as 'ehco-v0'. Did you mean 'echo-v0'?"),
        (["pkg://no_such_module:Env", "-t", "x"], "there is no module 'no_such_module'"),
        (["pkg://envweave.examples:NoSuchEnv", "-t", "x"], "has no attribute 'NoSuchEnv'"),
        (["pkg://envweave.examples:CounterEnv"], "Pass -t NAME:TAG"),
        (["echo-v0", "-t", "Echo Env"], "-t 'Echo Env' is not a valid image name"),
        (["echo-v0", "-t", "echo:"], "-t 'echo:' is not a valid image name"),
        (["echo-v0", "--base", "UPPER"], "--base 'UPPER' is not a valid image name"),
        (["echo-v0", "--env", "echo-v0"], "'echo-v0' is not a folder"),
        (["docker://echo-env:latest", "-t", "x"], "already runs elsewhere"),
        (["http://127.0.0.1:8000", "-t", "x"], "already runs elsewhere"),
        (["local://nothing-v0"], "No environment is registered as 'local://nothing-v0'"),
        (["./nowhere"], "There is no folder"),
        (["./empty"], "has no pyproject.toml"),
        (["./broken"], "cannot be read"),
        (["./tools"], "has no [project] table"),
        (["./silent"], "--env pkg://my_module:MyEnv"),
        (["./several"], "2 environments: one-v0, two-v0. Choose one, as in --env one-v0"),
        (["./several", "--env", "tow-v0"], "Did you mean 'two-v0'?"),
    ],
)
def test_an_invalid_build_is_refused(
    arguments: list[str], message: str, envweave: Any, here: Path
) -> None:
    (here / "empty").mkdir()
    for name, text in (("broken", "[project"), ("tools", "[tool.ruff]\n")):
        (here / name).mkdir()
        (here / name / "pyproject.toml").write_text(text)
    write_project(here / "silent")
    write_project(here / "several", "one-v0", "two-v0")

    ran = envweave("build", *arguments)

    assert ran.code == 2
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr


def test_an_environment_registered_in_this_process_is_refused(
    envweave: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DEFAULT_REGISTRY, "_specs", {})
    ew.register("local://mine-v0", ew.examples.CounterEnv)

    ran = envweave("build", "mine-v0")

    assert ran.code == 2
    assert "registered only in this process" in ran.stderr


def test_without_an_engine_the_error_says_how_to_start_one(
    envweave: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{here}/nothing.sock")

    ran = envweave("build", "echo-v0")

    assert ran.code == 2
    assert "does not answer (no such file or directory). Start it:" in ran.stderr

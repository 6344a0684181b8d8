"""`make(ID, venv=…)`: environments in separate Pythons with separate packages."""

from __future__ import annotations

import asyncio
import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from installations import layered_venv, wheel, with_uv
from processes import descendants

import envweave as ew
from envweave.errors import InstallError, OptionError
from envweave.examples import CounterEnv

ENV = """\
from dataclasses import dataclass
import {needs}
import envweave as ew

@dataclass
class Seen(ew.Observation):
    version: str = ""
    python: str = ""

@dataclass
class Guess(ew.Action):
    number: int

class {name}(ew.Environment):
    def __init__(self, goal: int = 1):
        self.goal = goal

    def reset(self, seed=None) -> Seen:
        import sys
        return Seen(version={needs}.VERSION, python=sys.executable)

    def step(self, action: Guess) -> Seen:
        won = action.number == self.goal
        return Seen(version={needs}.VERSION, reward=float(won), done=won)
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> Path:
    """A folder with two packages that need different versions of a third one."""
    folder = tmp_path_factory.mktemp("wheels")
    for version in ("1.0", "2.0"):
        module = {"envweave_test_tint.py": f"VERSION = {version!r}\n"}
        filename, content = wheel("envweave-test-tint", version, module)
        (folder / filename).write_bytes(content)
    for name, version in (("red", "1.0"), ("blue", "2.0")):
        module = {f"{name}_env.py": ENV.format(name=name.title(), needs="envweave_test_tint")}
        requires = [f"envweave-test-tint=={version}"]
        filename, content = wheel(f"envweave-test-{name}", "0.1", module, requires)
        (folder / filename).write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def venvs(wheels, tmp_path_factory) -> dict[str, Path]:
    """A virtual environment for each of the two."""
    folder = tmp_path_factory.mktemp("venvs")
    for name in ("red", "blue"):
        python = layered_venv(folder / name, has_envweave=False)
        subprocess.run(
            ["uv", "pip", "install", "-q", "--python", python, f"envweave-test-{name}"],
            env=with_uv(UV_NO_INDEX="1", UV_FIND_LINKS=str(wheels)),
            check=True,
        )
    return {name: folder / name for name in ("red", "blue")}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.slow  # starts servers
def test_two_environments_with_clashing_dependencies_run_side_by_side(venvs):
    before = set(descendants())
    with (
        ew.make("pkg://red_env:Red", venv=venvs["red"], goal=7) as red,
        ew.make("pkg://blue_env:Blue", venv=str(venvs["blue"]), backend="process") as blue,
    ):
        seen = [red.reset(seed=0).observation, blue.reset(seed=0).observation]
        ends = [red.step({"number": 7}), blue.step({"number": 1})]

    assert [(one.version, one.python) for one in seen] == [
        ("1.0", str(venvs["red"] / "bin/python")),
        ("2.0", str(venvs["blue"] / "bin/python")),
    ]
    assert [(one.observation.version, one.reward, one.done) for one in ends] == [
        ("1.0", 1.0, True),
        ("2.0", 1.0, True),
    ]
    assert importlib.util.find_spec("envweave_test_tint") is None
    assert set(descendants()) <= before


@pytest.mark.slow  # starts servers
def test_vectors_pools_and_async_callers_run_there_too(venvs):
    async def play() -> str:
        async with ew.make_async("pkg://red_env:Red", venv=venvs["red"]) as env:
            return (await env.reset()).observation.version

    with ew.make_vector("pkg://blue_env:Blue", num_envs=3, venv=venvs["blue"], workers=2) as vector:
        batch = vector.reset(seed=0)
        assert list(batch.current["version"]) == ["2.0"] * 3

    with ew.pool("pkg://red_env:Red", size=2, venv=venvs["red"]) as pool:
        episodes = ew.rollout(pool, lambda result: {"number": 1}, episodes=4).run()
        assert [one.reward for one in episodes] == [1.0] * 4

    assert asyncio.run(play()) == "1.0"


def test_a_path_without_a_virtual_environment_is_refused(tmp_path):
    with pytest.raises(OptionError, match=r"not a virtual environment.*-m venv .*nowhere"):
        ew.make("pkg://red_env:Red", venv=tmp_path / "nowhere")


def test_a_python_that_is_too_old_is_refused(tmp_path):
    python = tmp_path / "old/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho Unknown option: $1 >&2; exit 2\n")  # as Python 3.9 does
    python.chmod(0o755)

    with pytest.raises(OptionError, match=r"is not Python 3.11 or newer.*\nUnknown option: -P"):
        ew.make("pkg://red_env:Red", venv=tmp_path / "old")


def test_an_empty_virtual_environment_is_refused_with_the_command_that_fills_it(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty"], check=True)

    with pytest.raises(InstallError, match=r"lacks .*msgspec.*fastapi.*\n  .* install .*msgspec"):
        ew.make("pkg://red_env:Red", venv=tmp_path / "empty")


@pytest.mark.slow  # makes virtual environments
def test_a_package_that_is_missing_there_is_named(venvs):
    with pytest.raises(InstallError, match=r"needs the module 'blue_env', and venv=.*red"):
        ew.make("pkg://blue_env:Blue", venv=venvs["red"])


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        (CounterEnv, {}, "'CounterEnv' is not one"),
        ("http://127.0.0.1:1", {}, "is not one"),
        ("counter-v0", {"backend": "inproc"}, "backend='inproc' cannot run in a virtual"),
        ("counter-v0", {"base_url": "http://127.0.0.1:1"}, "Leave out base_url"),
        ("counter-v0", {"requirements": ["a"]}, "requirements are for a new .*venv='auto'"),
        ("counter-v0", {"venv": "auto"}, r"what to install .*requirements=\['"),
        ("counter-v0", {"venv": 3}, "venv must be a path or 'auto', got 3"),
        ("counter-v0", {"venv": "auto", "requirements": "a"}, "must be a list of strings"),
        ("counter-v0", {"venv": "auto", "requirements": None}, "must be a list of strings"),
    ],
)
def test_what_does_not_go_with_a_virtual_environment_is_refused(tmp_path, env, options, message):
    with pytest.raises(OptionError, match=message):
        ew.make(env, **{"venv": tmp_path, **options})


def test_a_cached_environment_is_not_built_without_permission(tmp_path):
    with pytest.raises(InstallError) as refused:
        ew.make("pkg://red_env:Red", venv="auto", requirements=["envweave-test-red==0.1"])

    command = str(refused.value).splitlines()[1].strip()
    create, install = command.split(" && ")
    assert " venv " in create
    assert {"envweave-test-red==0.1", "msgspec>=0.19"} <= set(shlex.split(install))
    assert not list(tmp_path.glob("cache/envweave/venvs/*"))


@pytest.mark.slow  # installs packages
@pytest.mark.timeout(300)
def test_a_cached_environment_is_built_once_by_concurrent_processes(wheels, tmp_path):
    program = """
import sys, envweave as ew
install, *requirements = sys.argv[1:]
options = {"venv": "auto", "requirements": requirements, "install": install}
with ew.make("pkg://red_env:Red", **options) as env:
    print(env.reset().observation.python)
"""
    # By their files: no index may bring others with these names.
    ours = [
        f"{name} @ file://{wheels}/{name.replace('-', '_')}-{version}-py3-none-any.whl"
        for name, version in (("envweave-test-red", "0.1"), ("envweave-test-tint", "1.0"))
    ]

    def start(install: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, install, *ours]
        return subprocess.Popen(
            command, env=with_uv(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    both = [one.communicate()[0] for one in (start("always"), start("always"))]
    again = start("never").communicate()[0]
    Path(again.strip()).unlink()  # as if the Python that it was made with was removed
    gone = start("never").communicate()[1]

    assert both[0] == both[1] == again
    assert "has no virtual environment" in gone
    assert Path(again).is_relative_to(tmp_path / "cache/envweave/venvs")
    assert len(list(tmp_path.glob("cache/envweave/venvs/*/envweave.json"))) == 1


@pytest.mark.slow  # installs packages
@pytest.mark.timeout(300)
def test_a_cached_environment_that_cannot_be_built_leaves_nothing(tmp_path, monkeypatch):
    for name, value in with_uv(UV_OFFLINE="1", UV_NO_INDEX="1", PIP_NO_INDEX="1").items():
        monkeypatch.setenv(name, value)

    with pytest.raises(InstallError, match=r"failed:\n(.*\n)*.*no-such-package"):
        ew.make(
            "pkg://red_env:Red", venv="auto", requirements=["no-such-package"], install="always"
        )

    assert not [one for one in tmp_path.glob("cache/envweave/venvs/*") if one.is_dir()]

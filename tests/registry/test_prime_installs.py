"""Packages of the Prime Hub: installed by us or by its own command, and played."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from fake_services import prime_hub
from installations import layered_venv, venv_python, with_uv

import envweave as ew
from envweave.errors import InstallError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # imports verifiers, many times

CLASSIC = """\
import verifiers as vf
from datasets import Dataset

VERSION = "{version}"

def load_environment(count: int = 3):
    rows = [dict(question=f"What is {{i}} + 1?", answer=str(i + 1)) for i in range(count)]

    def correct(completion, answer, **_):
        return float(completion[-1]["content"].strip() == answer)

    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[correct]))
"""
V1 = """\
import verifiers.v1 as vf

VERSION = "{version}"
__all__ = ["SumTaskset"]

class SumData(vf.TaskData):
    answer: str = ""

class SumTask(vf.Task[SumData]):
    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        return float((trace.last_reply or "").strip() == self.data.answer)

class SumTaskset(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self) -> list[SumTask]:
        rows = [SumData(idx=i, prompt=f"What is {{i}} + 1?", answer=str(i + 1)) for i in range(3)]
        return [SumTask(row, self.config.task) for row in rows]
"""
MODULES = {"classic": CLASSIC, "v1": V1}
PLAY = """\
import json, re, sys
import envweave as ew
env_id, install = sys.argv[1:]
try:
    env = ew.make(env_id, install=install)
except ew.errors.EnvWeaveError as error:
    print(json.dumps({"error": type(error).__name__, "message": str(error)}))
    sys.exit()
with env:
    question = env.reset(seed=0).observation.messages[-1].content
    result = env.step(str(int(re.search(r"\\d+", question)[0]) + 1))
    name = next(one for one in sys.modules if one.startswith("sum_"))
    version = sys.modules[name].VERSION
    print(json.dumps({"id": env.id, "reward": result.reward, "version": version}))
"""


@pytest.fixture(params=["classic", "v1"])
def generation(request) -> str:
    return request.param


@pytest.fixture
def hub():
    with prime_hub() as served:
        for generation, code in MODULES.items():
            name = f"sum-{generation}"
            for version in ("0.1.0", "0.2.0"):
                module = {f"sum_{generation}.py": code.format(version=version)}
                served.publish(f"sum-lab/{name}", version, module)
        yield served


@pytest.fixture
def variables(hub, tmp_path, monkeypatch) -> dict[str, str]:
    """Environment variables: an own home, the Hub on loopback, and no other index."""
    home = tmp_path / "home"
    home.mkdir()
    return with_uv(
        HOME=str(home),
        XDG_CACHE_HOME=str(home / "cache"),
        PRIME_API_BASE_URL=hub.api_url,
        UV_DEFAULT_INDEX=f"{hub.files_url}/nobody/simple/",
        PIP_NO_INDEX="1",
        HF_HUB_OFFLINE="1",
    )


@pytest.fixture
def python(generation, tmp_path) -> Path:
    """The Python of a virtual environment with verifiers, and no package of the Hub yet."""
    return layered_venv(tmp_path / "venv", venv_python(f"verifiers-{generation}"))


def run(python: Path, variables: dict[str, str], *arguments: str) -> dict:
    done = subprocess.run(
        [python, "-c", PLAY, *arguments],
        env=variables,
        cwd=variables["HOME"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_a_pinned_version_then_the_latest(hub, variables, python, generation):
    pinned, latest = f"prime://sum-lab/sum-{generation}@0.1.0", f"sum-lab/sum-{generation}"

    refused = run(python, variables, pinned, "never")
    command = refused["message"].splitlines()[1]
    assert refused["error"] == "InstallError"
    assert hub.downloads == []

    # The command that the error tells installs exactly this version.
    subprocess.run(command, shell=True, env=variables, check=True)
    asked = len(hub.requests)
    assert run(python, variables, pinned, "never") == {
        "id": pinned,
        "reward": 1.0,
        "version": "0.1.0",
    }
    assert len(hub.requests) == asked  # what is installed and pinned needs no Hub

    wrong = run(python, variables, latest, "never")
    assert wrong["error"] == "InstallError"
    assert f"@0.2.0' is installed as sum-{generation} 0.1.0." in wrong["message"]

    assert run(python, variables, latest, "always") == {
        "id": f"prime://sum-lab/sum-{generation}@0.2.0",
        "reward": 1.0,
        "version": "0.2.0",
    }


@pytest.mark.parametrize(
    ("generation", "asked"), [("classic", "@0.1.0"), ("v1", "")], indirect=["generation"]
)
def test_the_official_command_installs_from_the_same_hub(hub, variables, python, generation, asked):
    prime = venv_python("prime").parent
    subprocess.run(
        [prime / "prime", "env", "install", f"sum-lab/sum-{generation}{asked}"],
        env={
            **variables,
            "PATH": f"{prime}{os.pathsep}{variables['PATH']}",
            "VIRTUAL_ENV": str(python.parents[1]),
        },
        cwd=variables["HOME"],
        check=True,
    )
    downloaded = len(hub.downloads)

    played = run(python, variables, f"prime://sum-lab/sum-{generation}{asked}", "never")

    version = asked.lstrip("@") or "0.2.0"
    assert played == {
        "id": f"prime://sum-lab/sum-{generation}@{version}",
        "reward": 1.0,
        "version": version,
    }
    assert downloaded == len(hub.downloads) > 0


@pytest.mark.parametrize("generation", ["classic"], indirect=True)
def test_the_command_line_installs_with_pip_and_names_the_version(variables, python):
    without_uv = {**variables, "PATH": "/usr/bin:/bin"}
    command = [python, "-m", "envweave.cli", "info", "prime://sum-lab/sum-classic", "--json"]
    refused = subprocess.run(command, env=without_uv, capture_output=True, text=True, check=False)
    done = subprocess.run(
        [*command, "--install", "always"],
        env=without_uv,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )

    assert refused.returncode == 2
    assert "-m pip install" in refused.stderr
    assert json.loads(done.stdout)["id"] == "prime://sum-lab/sum-classic@0.2.0"


def test_without_uv_and_pip_the_error_gives_the_install_command(variables, tmp_path):
    python = layered_venv(tmp_path / "venv", has_pip=False)
    report = run(python, {**variables, "PATH": "/usr/bin:/bin"}, "prime://sum-lab/sum-v1", "always")

    assert report["error"] == "InstallError"
    assert "has no pip, and there is no uv" in report["message"]
    assert f"{python} -m ensurepip" in report["message"]


def test_both_generations_run_side_by_side(variables, tmp_path, monkeypatch):
    for generation in MODULES:
        below = venv_python(f"verifiers-{generation}")
        layered_venv(tmp_path / generation, below, has_envweave=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    options = {"install": "always"}

    with (
        ew.make("sum-lab/sum-classic", venv=tmp_path / "classic", **options) as classic,
        ew.make("sum-lab/sum-v1", venv=tmp_path / "v1", **options) as v1,
    ):
        played = []
        for env in (classic, v1):
            question = env.reset(seed=0).observation.messages[-1].content
            answer = str(int(question.split()[2]) + 1)
            played.append((env.id, env.step(answer).reward))

    assert played == [
        ("prime://sum-lab/sum-classic@0.2.0", 1.0),
        ("prime://sum-lab/sum-v1@0.2.0", 1.0),
    ]
    with ew.make("verifiers://sum_v1", venv=tmp_path / "v1") as env:
        assert env.reset(seed=0).observation.messages
    with pytest.raises(InstallError):
        ew.make("sum-lab/sum-v1", venv=tmp_path / "classic")

"""Adapters from and to verifiers, tested with its released packages in their own environments."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_services import chat_server
from installations import ROOT, venv_python, with_envweave

import envweave as ew
from envweave.errors import EnvNotFoundError, MissingExtraError

PACKAGES = ROOT / "tests/support/verifiers_packages"
IMPORTING = "importing verifiers takes seconds"


def variables(home: Path) -> dict[str, str]:
    found = with_envweave(HOME=str(home), HF_HUB_OFFLINE="1", VF_LOG_LEVEL="ERROR")
    return {**found, "PYTHONPATH": os.pathsep.join([str(PACKAGES), found["PYTHONPATH"]])}


@pytest.mark.slow(IMPORTING)
@pytest.mark.timeout(400)
@pytest.mark.parametrize("generation", ["classic", "v1"])
def test_environments_of_a_generation_are_driven_turn_by_turn(generation, tmp_path):
    python = venv_python(f"verifiers-{generation}")
    checks = ROOT / f"tests/interop/verifiers_{generation}_checks.py"
    command = [python, "-m", "pytest", "-q", "-c", os.devnull, "--noconftest", "--timeout=100"]
    command += [f"--rootdir={tmp_path}", "-p", "no:cacheprovider"]
    # Deprecations in other packages are not ours to fix.
    command += ["-W", "error", "-W", "ignore::DeprecationWarning", checks]

    run = subprocess.run(
        command, env=variables(tmp_path), capture_output=True, text=True, check=False
    )

    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-5_000:]


def count_up(messages: list[dict[str, str]]) -> str:
    """Reply with nonsense first, and add 1 from then on."""
    return '{"delta": 1}' if any(one["role"] == "assistant" for one in messages) else "one"


def evaluate(generation: str, module: str, home: Path, *options: str) -> None:
    """Run `vf-eval` on a module of the guide."""
    vf_eval = venv_python(f"verifiers-{generation}").parent / "vf-eval"
    page = (ROOT / "docs/guides/verifiers.md").read_text()
    code = re.search(rf'^```python title="{module}.py"\n(.*?)^```', page, re.DOTALL | re.MULTILINE)
    assert code is not None
    (home / f"{module}.py").write_text(code[1])
    env = variables(home)
    paths = os.pathsep.join([str(home), env["PYTHONPATH"]])
    run = subprocess.run(
        [vf_eval, module, *options],
        env={**env, "PYTHONPATH": paths, "MODEL_KEY": "sk-test"},
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-5_000:] + run.stderr[-5_000:]


def read_lines(folder: Path, name: str) -> list[dict[str, Any]]:
    (found,) = folder.rglob(name)
    return [json.loads(line) for line in found.read_text().splitlines()]


@pytest.mark.slow(IMPORTING)
@pytest.mark.timeout(300)
def test_vf_eval_runs_an_environment_exported_as_classic(tmp_path):
    with chat_server(count_up) as server:
        options = ["-m", "counts", "-b", server.base_url, "-k", "MODEL_KEY"]
        options += ["-n", "2", "-r", "2", "-s", "-d", "-o", "out"]
        evaluate("classic", "my_counter", tmp_path, *options)

    results = read_lines(tmp_path / "out", "results.jsonl")
    assert [(one["reward"], one["num_turns"], one["error"]) for one in results] == [
        (3.0, 4.0, None)
    ] * 4
    assert sorted(one["info"]["seed"] for one in results) == [0, 0, 1, 1]


@pytest.mark.slow(IMPORTING)
@pytest.mark.timeout(300)
def test_vf_eval_runs_an_environment_exported_as_v1(tmp_path):
    with chat_server(count_up) as server:
        endpoint = ["--client.base-url", server.base_url, "--client.api-key-var", "MODEL_KEY"]
        options = [*endpoint, "-m", "counts", "-n", "2", "-r", "2", "--no-push", "--no-rich"]
        evaluate("v1", "my_counter_v1", tmp_path, *options, "-o", "out")

    episodes = read_lines(tmp_path / "out", "traces.jsonl")
    assert [one["ok"] for one in episodes] == [True] * 4
    assert [trace["rewards"] for one in episodes for trace in one["traces"]] == [
        {"reward": {"score": 3.0, "weight": 1.0}}
    ] * 4
    assert sorted(one["task"]["data"]["seed"] for one in episodes) == [0, 0, 1, 1]


def test_without_verifiers_the_error_gives_the_install_command():
    with pytest.raises(MissingExtraError, match=r"pip install 'envweave\[verifiers\]'"):
        ew.make("verifiers://json")
    with pytest.raises(MissingExtraError, match=r"pip install 'envweave\[verifiers\]'"):
        ew.to_verifiers("counter-v0")
    with pytest.raises(EnvNotFoundError, match="prime env install"):
        ew.make("verifiers://no-such-module")
    assert "verifiers" not in sys.modules

"""Released trainers play our environments. The checks run where each is installed."""

import os
import subprocess

import pytest
from installations import ROOT, venv_python, with_envweave


def run_checks(name, folder, **variables):
    python = venv_python(name)
    command = [python, "-m", "pytest", "-q", "-c", os.devnull, "--noconftest", "--timeout=100"]
    command += [f"--rootdir={folder}", "-p", "no:cacheprovider", "-W", "ignore"]
    found = with_envweave(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", **variables)
    found["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests/support"), found["PYTHONPATH"]])
    checks = ROOT / f"tests/trainers/{name}_checks.py"
    run = subprocess.run(
        [*command, checks], env=found, cwd=folder, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-5_000:]


@pytest.mark.slow  # importing TRL takes tens of seconds, and its demonstration learns
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["trl", "tinker"])
def test_the_released_trainer_plays_and_trains(name, tmp_path):
    run_checks(name, tmp_path, TRL_EXPERIMENTAL_SILENCE="1")

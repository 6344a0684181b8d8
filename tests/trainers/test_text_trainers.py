"""Trainers as they were released, each in a virtual environment of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from installations import ROOT, venv_python, with_envweave

from envweave.errors import MissingExtraError


@pytest.mark.slow  # importing the packages takes seconds
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["text-trainers", "art"])
def test_released_packages_play_our_environments(name: str, tmp_path: Path) -> None:
    python = venv_python(name)
    checks = ROOT / f"tests/trainers/{name.replace('-', '_')}_checks.py"
    command = [python, "-m", "pytest", "-q", "-c", os.devnull, "--noconftest", "--timeout=100"]
    command += [f"--rootdir={tmp_path}", "-p", "no:cacheprovider", checks]
    found = with_envweave(HOME=str(tmp_path), WANDB_MODE="disabled", WEAVE_DISABLED="true")
    paths = [str(ROOT / "tests/support"), found["PYTHONPATH"]]

    run = subprocess.run(
        command,
        env={**found, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-5_000:]


@pytest.mark.parametrize("module", ["skyrl", "gem", "art"])
def test_without_its_package_a_shim_says_how_to_install_it(module: str) -> None:
    with pytest.raises(MissingExtraError, match=r"pip install (skyrl-gym|gem-llm|openpipe-art)"):
        __import__(f"envweave.trainers.{module}")

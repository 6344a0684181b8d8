"""A project of `envweave new` passes its tests in a virtual environment with the wheel alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from installations import ROOT

# It makes a virtual environment and installs packages into it.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh virtual environment, in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", folder / "venv")
    programs = folder / "venv/bin"
    pip = (programs / "python", "-m", "pip")
    run(*pip, "wheel", "-q", "--no-deps", "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("envweave-*.whl")
    run(*pip, "install", "-q", f"{wheel}[cli]")
    return programs


@pytest.mark.parametrize("kind", ["single", "multi-agent", "code", "chat"])
def test_a_new_project_passes_its_own_tests(kind: str, bin_folder: Path, tmp_path: Path) -> None:
    name = f"fresh-{kind}"
    project = tmp_path / name
    run(bin_folder / "envweave", "new", name, "--kind", kind, cwd=tmp_path)
    run(bin_folder / "python", "-m", "pip", "install", "-q", "-e", f"{project}[dev]")

    run(bin_folder / "ruff", "check", cwd=project)
    report = run(bin_folder / "python", "-m", "pytest", "-q", cwd=project)
    run(bin_folder / "envweave", "check", f"{name}-v0", cwd=tmp_path)
    run(bin_folder / "python", "-c", f"from fresh_{kind.replace('-', '_')}.app import app")
    played = run(
        bin_folder / "envweave", "run", f"{name}-v0", "--episodes", "2", "--json", cwd=tmp_path
    )

    assert " passed" in report
    assert json.loads(played)["summary"]["valid"] == 2

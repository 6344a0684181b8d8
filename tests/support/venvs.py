"""Virtual environments with packages that the development environment does not have."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def venv_python(name: str) -> Path:
    """Return the Python of `tests/venvs/NAME.txt`; skip the test where it is not installed."""
    is_ci = os.environ.get("CI") == "true"
    command = [sys.executable, ROOT / "scripts/test-venv", name, *([] if is_ci else ["--where"])]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if found.returncode and is_ci:
        pytest.fail(f"scripts/test-venv {name} failed; its output says why.")
    if found.returncode:
        pytest.skip(
            f"The packages of tests/venvs/{name}.txt are missing. Run: scripts/test-venv {name}"
        )
    return Path(found.stdout.strip())


def with_envweave(**variables: str) -> dict[str, str]:
    """Return environment variables that put this checkout, with its plug-ins, on the path."""
    paths = [str(ROOT / "src"), str(_distribution())]
    if "PYTHONPATH" in os.environ:
        paths.append(os.environ["PYTHONPATH"])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}


def _distribution() -> Path:
    """A folder with the metadata of an installed envweave, so that its entry points are found."""
    text = (ROOT / "pyproject.toml").read_text()
    key = hashlib.sha256(f"{ROOT}{text}".encode()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"envweave-metadata-{os.getuid()}-{key}"
    metadata = folder / "envweave-0.dist-info"
    if not (metadata / "METADATA").exists():
        lines = []
        for group, entries in tomllib.loads(text)["project"]["entry-points"].items():
            lines += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())]
        metadata.mkdir(parents=True, exist_ok=True)
        (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: envweave\nVersion: 0\n")
    return folder

"""Virtual environments with packages that the development environment does not have."""

from __future__ import annotations

import hashlib
import os
import shutil
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


def layered_venv(
    folder: Path,
    below: Path | None = None,
    *,
    has_envweave: bool = True,
    has_pip: bool = True,
) -> Path:
    """Make an empty virtual environment on top of another one, and return its Python.

    What is installed in it comes first, and nothing is written to the other one.

    Args:
        folder: Where to make it.
        below: The Python of the other one; the tests' own by default.
        has_envweave: Whether this checkout can be imported there.
        has_pip: Whether it has the pip of the other one, if that has one.
    """
    below = Path(sys.executable) if below is None else below
    subprocess.run([below, "-m", "venv", "--without-pip", folder], check=True)
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    python = folder / "bin/python"
    inner, outer = (
        subprocess.check_output([one, "-c", ask], text=True).strip() for one in (python, below)
    )
    if not has_pip:
        packages = folder / "below"
        packages.mkdir()
        for entry in Path(outer).iterdir():
            if entry.name != "pip":
                (packages / entry.name).symlink_to(entry)
        outer = str(packages)
    paths = [outer, *([ROOT / "src", _distribution()] if has_envweave else [])]
    (Path(inner) / "below.pth").write_text("".join(f"{path}\n" for path in paths))
    return python


def with_uv(**variables: str) -> dict[str, str]:
    """Return environment variables with uv on the path, and no packages of this process."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = shutil.which("uv")
    folder = Path(found).parent if found else venv_python("prime").parent
    return {**kept, "PATH": f"{kept['PATH']}{os.pathsep}{folder}", **variables}

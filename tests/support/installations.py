"""Packages, virtual environments and data sets that a test needs and a machine may lack."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
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


def install(
    folder: Path, name: str, files: Mapping[str, str], requires: Sequence[str] = ()
) -> None:
    """Install a distribution of these files into a folder for packages."""
    about = f"{name.replace('-', '_')}-1.0.dist-info"
    lines = [f"Requires-Dist: {one}" for one in requires]
    metadata = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *lines, "", ""])
    every = {**files, f"{about}/METADATA": metadata}
    every[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in (*every, f"{about}/RECORD"))
    for path, text in every.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def refresh_plugins() -> None:
    """Have the entry points looked up again, after packages came or went."""
    from envweave.registry import plugins

    plugins._find_entry_points.cache_clear()


def wheel(
    name: str, version: str, files: Mapping[str, str], requires: Sequence[str] = ()
) -> tuple[str, bytes]:
    """Build a wheel of these files; return its file name and its content."""
    stem = f"{name.replace('-', '_')}-{version}"
    lines = [f"Requires-Dist: {one}" for one in requires]
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines, "", ""]
    tags = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    about = f"{stem}.dist-info"
    every = {**files, f"{about}/METADATA": "\n".join(metadata), f"{about}/WHEEL": tags}
    record = []
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w") as archive:
            for path, text in every.items():
                archive.writestr(path, text)
                digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
                record.append(f"{path},sha256={digest.rstrip(b'=').decode()},{len(text.encode())}")
            archive.writestr(f"{about}/RECORD", "\n".join([*record, f"{about}/RECORD,,", ""]))
        return f"{stem}-py3-none-any.whl", file.getvalue()


GSM8K_VARIABLE = "ENVWEAVE_TEST_GSM8K"


def real_gsm8k() -> Path:
    """Return the folder with the official `train.jsonl` and `test.jsonl`; skip without one.

    `$ENVWEAVE_TEST_GSM8K` names it; else it is looked for as `shared/data/gsm8k` beside the
    checkout, or further up.
    """
    named = os.environ.get(GSM8K_VARIABLE)
    folders = [Path(named)] if named else [one / "shared/data/gsm8k" for one in ROOT.parents]
    for place in folders:
        if (place / "train.jsonl").is_file() and (place / "test.jsonl").is_file():
            return place
    pytest.skip(f"GSM8K itself is not here. Set {GSM8K_VARIABLE} to a folder with its two files.")

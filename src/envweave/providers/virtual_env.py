"""Virtual environments for environments whose packages conflict with the caller's."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from envweave.errors import InstallError, MissingExtraError, OptionError
from envweave.providers.interpreter import (
    PythonInterpreter,
    ask_permission,
    cache_folder,
    find_uv,
    last_lines,
    own_modules,
    own_requirements,
    run_quietly,
)
from envweave.registry import PackageFiles, PackageSource

_READY = "envweave.json"


def existing_environment(path: str | os.PathLike[str]) -> PythonInterpreter:
    """Return the Python of an existing virtual environment.

    Raises:
        OptionError: `path` is not one, or its Python is too old.
        InstallError: It lacks packages that envweave needs; the message has the command.
    """
    folder = Path(path).expanduser().absolute()
    python = folder / "bin" / "python"
    if not python.exists():
        raise OptionError(
            f"venv={str(path)!r} is not a virtual environment: there is no {python}. Make one with "
            f"`{sys.executable} -m venv {shlex.quote(str(path))}`, or use venv='auto'."
        )
    interpreter = PythonInterpreter(str(python))
    missing = interpreter.missing_modules(own_modules())
    if missing:
        command = interpreter.install_command(*own_requirements())
        raise InstallError(
            f"venv={str(path)!r} lacks {', '.join(missing)}, which envweave needs there. Install "
            f"it with:\n  {shlex.join(command)}"
        )
    return interpreter


def kept_environment(
    env_id: str, package: PackageSource | None, requirements: Sequence[str], install: str
) -> PythonInterpreter:
    """Return the Python of the cached virtual environment of an ID; build it if necessary.

    Args:
        env_id: The ID, with its version.
        package: The package to install in it.
        requirements: Additional requirements, as pip takes them.
        install: Whether packages may be installed.

    Raises:
        InstallError: It must be built and nothing may be installed, or building it failed.
        MissingExtraError: filelock is not installed.
    """
    try:
        from filelock import FileLock
    except ImportError as error:
        raise MissingExtraError.for_extra("venv='auto' needs filelock.", "prime") from error

    described = {
        "id": env_id,
        "requirements": list(requirements),
        "python": sys.version,
        "envweave": importlib.metadata.version("envweave"),
        "envweave needs": own_requirements(),
    }
    key = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9.]+", "-", env_id.partition("://")[2] or env_id).strip("-")
    folder = cache_folder() / "venvs" / f"{name}-{key}"
    interpreter = PythonInterpreter(str(folder / "bin" / "python"))
    if _is_ready(folder):
        return interpreter
    files = None if package is None else package.locate()
    packages = [] if files is None else files.requirements()
    install_command = interpreter.install_command(*packages, *requirements, *own_requirements())
    commands = [_creation_command(folder), install_command]
    ask_permission(
        f"{env_id!r} has no virtual environment at {folder} yet.",
        " && ".join(map(shlex.join, commands)),
        install,
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not _is_ready(folder):  # another process may have built it meanwhile
            _build(folder, interpreter, files, requirements)
            (folder / _READY).write_text(json.dumps(described, indent=2) + "\n")
    return interpreter


def _is_ready(folder: Path) -> bool:
    # The Python that it links to may have been removed.
    return (folder / _READY).exists() and (folder / "bin" / "python").exists()


def _creation_command(folder: Path) -> list[str]:
    uv = find_uv()
    if uv is not None:
        return [uv, "venv", "--python", sys.executable, str(folder)]
    return [sys.executable, "-m", "venv", str(folder)]


def _build(
    folder: Path,
    interpreter: PythonInterpreter,
    files: PackageFiles | None,
    requirements: Sequence[str],
) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    try:
        command = _creation_command(folder)
        done = run_quietly(command)
        if done.returncode:
            raise InstallError(f"`{shlex.join(command)}` failed:\n{last_lines(done.stdout)}")
        with tempfile.TemporaryDirectory(prefix="envweave-") as wheels:
            packages = [] if files is None else files.download(Path(wheels))
            interpreter.install(*packages, *requirements, *own_requirements())
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise

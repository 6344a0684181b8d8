"""A copy of envweave that other users and containers can run, and a user to run it as."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("envweave", "msgspec", "numpy")
ALONG = ("scripts/attacks", "tests/support", "tests/sandbox/attacks")
_UNWANTED = shutil.ignore_patterns("tests", "*.pyi", "*.a", "*.h")


class NoInterpreterError(Exception):
    """No Python that others may run fits the modules that are installed here."""


def python_for_others() -> Path:
    """Return an interpreter of this version that any user may run.

    Raises:
        NoInterpreterError: There is none.
    """
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    own = Path(sys.base_prefix) / "bin" / version
    library = Path(sys.base_prefix) / "lib" / version / "os.py"
    if is_open_to_others(own) and is_open_to_others(library):
        return own
    system = Path("/usr/bin") / version
    if is_open_to_others(system):
        return system
    raise NoInterpreterError(
        f"{sys.base_prefix} is not open to other users, and there is no {system}."
    )


def is_open_to_others(path: Path) -> bool:
    """Whether any user may reach and read a file."""
    try:
        path = path.resolve(strict=True)
    except OSError:
        return False
    return bool(path.stat().st_mode & 0o004) and all(
        parent.stat().st_mode & 0o001 for parent in path.parents
    )


def stage(folder: Path, python: Path) -> Path:
    """Lay out an environment with envweave in a folder, and return its interpreter.

    The folder may be moved or mounted elsewhere: it is readable by all, and holds no path of
    this machine but that of `python`.
    """
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = folder / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    for name in MODULES:
        _copy_module(name, packages)
    for path in ALONG:
        source, target = ROOT / path, folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    (folder / "bin").mkdir()
    (folder / "bin/python").symlink_to(python)
    (folder / "pyvenv.cfg").write_text(f"home = {python.parent}\n")
    _open_to_others(folder)
    return folder / "bin/python"


def _copy_module(name: str, packages: Path) -> None:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    home = Path(spec.origin).parent
    shutil.copytree(home, packages / name, ignore=_UNWANTED)
    libraries = home.with_name(f"{name}.libs")  # what a wheel brings along
    if libraries.exists():
        shutil.copytree(libraries, packages / libraries.name)


def _open_to_others(folder: Path) -> None:
    folder.chmod(0o755)
    for where, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(where, name)
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))


@dataclass(frozen=True)
class OtherUser:
    """A user without rights, and a copy of envweave that this user can run.

    Attributes:
        python: An interpreter that has envweave, msgspec and numpy.
        folder: Where the copy lies: `tests/support` and `scripts` are in it too.
    """

    user: int
    group: int
    python: Path
    folder: Path

    def run(self, arguments: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess:
        """Run the interpreter with these arguments, as `subprocess.run` does."""
        return subprocess.run(
            [self.python, *arguments],
            user=self.user,
            group=self.group,
            extra_groups=[],
            cwd="/",
            env={"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            check=False,
            **options,
        )


@contextlib.contextmanager
def other_user(name: str = "nobody") -> Iterator[OtherUser]:
    """Have a user without rights, and a copy of envweave, until the block ends.

    Raises:
        LookupError: There is no such user.
        PermissionError: Only root may run programs as another user.
        NoInterpreterError: No Python that others may run fits the modules that are installed.
    """
    if os.geteuid() != 0:
        raise PermissionError("Only root may run programs as another user.")
    python = python_for_others()
    entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    # Not below pytest's own folders, which other users may not enter.
    folder = Path(tempfile.mkdtemp(prefix="envweave-for-others-"))
    try:
        interpreter = stage(folder, python)
        yield OtherUser(entry.pw_uid, entry.pw_gid, interpreter, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


__all__ = ["NoInterpreterError", "OtherUser", "other_user"]

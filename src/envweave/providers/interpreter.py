"""Python interpreters on this machine: their installed packages, and installing more."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envweave.errors import InstallError, OptionError, suggest
from envweave.registry import PackageSource

logger = logging.getLogger("envweave.packages")

PERMISSIONS = ("never", "ask", "always")
"""Whether a package may be installed: what `make(…, install=…)` takes."""

_LINES_SHOWN = 15
_PROBE = """\
import importlib.metadata, importlib.util, json, sys
def version_of(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
print(json.dumps({
    "versions": {name: version_of(name) for name in json.loads(sys.argv[1])},
    "missing": [name for name in json.loads(sys.argv[2]) if importlib.util.find_spec(name) is None],
}))
"""


@final
@dataclass(frozen=True, slots=True)
class PythonInterpreter:
    """A Python interpreter, by its path; the running one by default."""

    python: str = sys.executable

    def version_of(self, package: str) -> str | None:
        """Return the installed version of a distribution; `None` if it is not installed."""
        if self.python != sys.executable:
            found: str | None = self._probe([package], [])["versions"][package]
            return found
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    def missing_modules(self, modules: Sequence[str]) -> list[str]:
        """Return the modules that it cannot find."""
        missing: list[str] = self._probe([], modules)["missing"]
        return missing

    def _probe(self, packages: Sequence[str], modules: Sequence[str]) -> Any:
        arguments = [json.dumps(list(packages)), json.dumps(list(modules))]
        try:
            done = subprocess.run(  # noqa: S603 - an interpreter that the caller chose
                [self.python, "-P", "-c", _PROBE, *arguments],
                env=isolated_variables(),
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError as error:
            raise OptionError(f"{self.python!r} cannot be run: {error.strerror}.") from error
        if done.returncode:
            # Older versions do not have the option -P.
            raise OptionError(
                f"{self.python!r} is not Python 3.11 or newer, or is broken:\n"
                f"{last_lines(done.stderr)}"
            )
        return json.loads(done.stdout)

    def install_command(self, *what: str) -> list[str]:
        """Return the command that installs requirements: with uv if there is one, else pip."""
        uv = find_uv()
        if uv is not None:
            return [uv, "pip", "install", "--python", self.python, *what]
        return [self.python, "-m", "pip", "install", *what]

    def install(self, *what: str) -> None:
        """Install requirements, with dependencies from the user's own index.

        Raises:
            InstallError: There is no installer, or it failed; its last lines are in the message.
        """
        command = self.install_command(*what)
        logger.info("installing: %s", shlex.join(command))
        # With this Python's path, pip would take its packages for installed there.
        variables = None if self.python == sys.executable else isolated_variables()
        done = run_quietly(command, variables)
        if done.returncode == 0:
            importlib.invalidate_caches()
            return
        if "No module named pip" in done.stdout:
            raise InstallError(
                f"{self.python} has no pip, and there is no uv to install packages with. Run one "
                f"of: `{self.python} -m ensurepip`, or `pip install uv`."
            )
        raise InstallError(f"`{shlex.join(command)}` failed:\n{last_lines(done.stdout)}")


def ensure_installed(
    env_id: str, package: PackageSource, interpreter: PythonInterpreter, install: str
) -> None:
    """Ensure that a package is installed in exactly the version of an ID.

    Args:
        env_id: The ID, for messages.
        package: The package.
        interpreter: Where it is needed.
        install: Whether it may be installed: `"never"`, `"ask"` or `"always"`.

    Raises:
        InstallError: It is missing, or installed in another version, and may not be installed; or
            installing it failed.
    """
    found = interpreter.version_of(package.name)
    if _same(found, package.version):
        return
    state = "is not installed" if found is None else f"is installed as {package.name} {found}"
    where = "" if interpreter.python == sys.executable else f" in {interpreter.python}"
    if interpreter.python == sys.executable and package.module in sys.modules:
        raise InstallError(
            f"{env_id!r} {state}, and the module {package.module!r} is imported already. Start a "
            "new Python to use another version, or run it in a separate one with venv='auto'."
        )
    files = package.locate()
    command = shlex.join(interpreter.install_command(*files.requirements()))
    ask_permission(f"{env_id!r} {state}{where}.", command, install)
    with tempfile.TemporaryDirectory(prefix="envweave-") as folder:
        interpreter.install(*files.download(Path(folder)))
    found = interpreter.version_of(package.name)
    if not _same(found, package.version):
        raise InstallError(
            f"{env_id!r} was installed, but {interpreter.python} finds {package.name} {found}. "
            "Remove the other one, or use venv='auto'."
        )


def ask_permission(what: str, command: str, install: str) -> None:
    """Return if packages may be installed.

    Args:
        what: A sentence about what is missing.
        command: The command that the user can run instead.
        install: The permission; `"ask"` asks on the terminal.

    Raises:
        InstallError: They may not be installed. The message has the command.
    """
    if install == "always":
        return
    by_hand = (
        f"Install it with:\n  {command}\nor allow it with install='always' (--install always)."
    )
    if install == "ask":
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise InstallError(f"{what} install='ask' needs a terminal to ask on. {by_hand}")
        sys.stderr.write(f"{what} Install it now with\n  {command}\n? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
        raise InstallError(f"{what} It was not installed, as you chose. {by_hand}")
    raise InstallError(f"{what} Nothing is installed without permission. {by_hand}")


def read_permission(install: Any) -> str:
    """Return the value of `install=`.

    Raises:
        OptionError: It is not one of the three.
    """
    if install not in PERMISSIONS:
        raise OptionError(
            f"install must be one of {', '.join(map(repr, PERMISSIONS))}, got {install!r}."
            f"{suggest(str(install), PERMISSIONS)}"
        )
    return str(install)


def find_uv() -> str | None:
    """Return the path of uv; `None` if it is not installed, or does not run."""
    found = shutil.which("uv")
    return found if found is not None and _runs(found) else None


@functools.cache
def _runs(uv: str) -> bool:
    # A version manager's shim may exist without a uv behind it.
    return run_quietly([uv, "--version"]).returncode == 0


def run_quietly(
    command: Sequence[str], variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command, and return all its output as `stdout`."""
    return subprocess.run(  # noqa: S603 - installers, with checked arguments
        command,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def last_lines(text: str) -> str:
    """Return the last lines of a program's output."""
    return "\n".join(text.strip().splitlines()[-_LINES_SHOWN:])


def _same(found: str | None, required: str) -> bool:
    try:
        return found is not None and Version(found) == Version(required)
    except InvalidVersion:
        return found == required


def own_requirements() -> list[str]:
    """Return the requirements of an interpreter that runs an envweave server."""
    found = []
    for line in importlib.metadata.requires("envweave") or []:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": "server"}):
            requirement.marker = None
            found.append(str(requirement))
    return found


def own_modules() -> list[str]:
    """Return the modules of `own_requirements`."""
    names = [canonicalize_name(Requirement(one).name) for one in own_requirements()]
    return [*(name.replace("-", "_") for name in names), "httptools"]  # of uvicorn[standard]


def isolated_variables() -> dict[str, str]:
    """Return environment variables that hide this Python's packages from another one."""
    ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
    return {name: value for name, value in os.environ.items() if name not in ours}


def cache_folder() -> Path:
    """Return envweave's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "envweave"


def import_folder() -> Path:
    """Return a folder that contains this envweave and nothing else.

    On the path of another interpreter it makes envweave importable there, with its entry points,
    but without the packages that are installed with it here.
    """
    spec = importlib.util.find_spec("envweave")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    package = Path(next(iter(spec.submodule_search_locations))).resolve()
    own = importlib.metadata.distribution("envweave")
    files = {name: own.read_text(name) or "" for name in ("METADATA", "entry_points.txt")}
    key = hashlib.sha256(json.dumps([str(package), files]).encode()).hexdigest()[:16]
    folder = cache_folder() / "import" / key
    if not (folder / "envweave").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            whole = Path(made) / "whole"
            metadata = whole / f"envweave-{own.version}.dist-info"
            metadata.mkdir(parents=True)
            (whole / "envweave").symlink_to(package, target_is_directory=True)
            for name, text in files.items():
                (metadata / name).write_text(text)
            try:
                whole.rename(folder)
            except OSError:
                if not folder.exists():  # else another process was faster
                    raise
    return folder

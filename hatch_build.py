"""Builds the sandbox's extension into the wheel, where there is a compiler for it.

Everything works without it; sessions then take a little longer to start. So whatever is missing is
said, and the wheel is built without. Set ENVWEAVE_NO_EXTENSION=1 to leave it out.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags

_SOURCE = Path("src/envweave/sandbox/_spawn.c")
_NAME = "_spawn.abi3.so"
_OLDEST = "cp311"  # the Python whose stable interface the source asks for
_MACHINES = ("x86_64", "aarch64")
_FLAGS = ("-O2", "-fPIC", "-shared", "-std=c11", "-fvisibility=hidden", "-Wall", "-Wextra")


class ExtensionHook(BuildHookInterface[Any]):
    """Compiles `_spawn.c` beside its source for an editable install, else into the wheel."""

    _folder: str | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, if it can be done here."""
        source = Path(self.root) / _SOURCE
        beside = source.with_name(_NAME)
        editable = version == "editable"
        if editable:
            beside.unlink(missing_ok=True)
        obstacle = _obstacle()
        if obstacle is None:
            self._folder = tempfile.mkdtemp(prefix="envweave-build-")
            built = Path(self._folder) / _NAME
            obstacle = _compile(source, built)
        if obstacle is not None:
            self.app.display_warning(f"envweave: built without its extension: {obstacle}")
            return
        if editable:
            shutil.copy(built, beside)
        else:
            build_data["force_include"][str(built)] = f"envweave/sandbox/{_NAME}"
            build_data["pure_python"] = False
            build_data["tag"] = f"{_OLDEST}-abi3-{_platform()}"

    def finalize(self, *_: Any) -> None:
        """Remove what was compiled: the wheel holds it now."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _obstacle() -> str | None:
    """Say why nothing can be compiled here; `None` if it can."""
    if os.environ.get("ENVWEAVE_NO_EXTENSION", "0") not in ("", "0"):
        return "ENVWEAVE_NO_EXTENSION is set."
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return f"the sandbox is for Linux on {' and '.join(_MACHINES)}."
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this Python has not the stable interface that it is written for."
    if shutil.which(_compiler()[0]) is None:
        return f"there is no C compiler ({_compiler()[0]!r} was looked for; CC names another)."
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python's headers are not installed (on Debian and Ubuntu: python3-dev)."
    return None


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


def _compile(source: Path, target: Path) -> str | None:
    """Compile, and say why that failed; `None` if it did not."""
    include = sysconfig.get_path("include")
    command = [*_compiler(), *_FLAGS, f"-I{include}", str(source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        return f"{shlex.join(command)} failed:\n{done.stderr.strip()}"
    return None


def _platform() -> str:
    """Return how this platform is named in a wheel that promises nothing about its C library."""
    names = (tag.platform for tag in sys_tags())
    return next(one for one in names if not one.startswith(("manylinux", "musllinux")))

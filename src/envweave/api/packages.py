"""The packages of an environment: installed here, or in a separate virtual environment."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from envweave.errors import InstallError, OptionError
from envweave.registry import EnvSpec, Remote

_HERE = (None, "inproc", "process", "http")
_SEPARATE_PROCESS = (None, "process", "http")


def prepare_packages(
    spec: EnvSpec,
    backend: Any,
    remote: Remote,
    install: Any,
    venv: Any,
    requirements: Sequence[str],
) -> tuple[Any, Remote]:
    """Make sure that the packages of a recipe are installed where it will run.

    Args:
        spec: The recipe.
        backend: The backend that the caller chose.
        remote: How to reach a server.
        install: Whether packages may be installed: `"never"`, `"ask"` or `"always"`.
        venv: The virtual environment to run it in: a path, `"auto"`, or `None`.
        requirements: Further packages to install into `venv="auto"`.

    Returns:
        The backend, and how to reach its server: with `venv`, a server on that interpreter.

    Raises:
        OptionError: An option has an invalid value, or cannot be combined with another.
        InstallError: A package is missing, and may not or cannot be installed.
    """
    if venv is None and not requirements and spec.package is None and install == "never":
        return backend, remote
    from envweave.providers import SubprocessProvider
    from envweave.providers.interpreter import PythonInterpreter, ensure_installed, read_permission

    install = read_permission(install)
    is_list = isinstance(requirements, list | tuple)
    if not is_list or not all(isinstance(one, str) for one in requirements):
        raise OptionError(f"requirements must be a list of strings, got {requirements!r}.")
    if requirements and venv != "auto":
        raise OptionError("requirements are for a new virtual environment. Pass venv='auto' too.")
    if venv is None:
        is_elsewhere = remote.base_url is not None or remote.docker_image is not None
        is_here = isinstance(remote.provider, SubprocessProvider | None) and not is_elsewhere
        if spec.package is not None and backend in _HERE and is_here:
            ensure_installed(spec.id, spec.package, PythonInterpreter(), install)
        return backend, remote
    _refuse_with_venv(spec, backend, remote)
    if venv == "auto":
        interpreter = _build_environment(spec, requirements, install)
    elif isinstance(venv, str | os.PathLike):
        interpreter = _use_environment(spec, venv, install)
    else:
        raise OptionError(f"venv must be a path or 'auto', got {venv!r}.")
    return "http", dataclasses.replace(remote, python=interpreter.python)


def _build_environment(spec: EnvSpec, requirements: Sequence[str], install: str) -> Any:
    from envweave.providers.virtual_env import kept_environment

    if spec.package is None and not requirements:
        raise OptionError(
            f"venv='auto' needs to know what to install for {spec.id!r}: pass "
            "requirements=['my-package==1.0', …], or the path of a virtual environment as venv=…."
        )
    return kept_environment(spec.id, spec.package, requirements, install)


def _use_environment(spec: EnvSpec, venv: str | os.PathLike[str], install: str) -> Any:
    from envweave.providers.interpreter import ensure_installed
    from envweave.providers.virtual_env import existing_environment

    interpreter = existing_environment(venv)
    if spec.package is not None:
        ensure_installed(spec.id, spec.package, interpreter, install)
    module = str(spec.factory).partition(":")[0].partition(".")[0]
    if module != "envweave" and interpreter.missing_modules([module]):
        raise InstallError(
            f"{spec.id!r} needs the module {module!r}, and venv={str(venv)!r} lacks it. Install "
            f"its package with: {' '.join(interpreter.install_command('PACKAGE'))}"
        )
    return interpreter


def _refuse_with_venv(spec: EnvSpec, backend: Any, remote: Remote) -> None:
    if not isinstance(spec.factory, str) or spec.backend is not None:
        raise OptionError(
            f"venv= needs an ID that another Python can import, and {spec.id!r} is not one. Pass "
            "one such as 'pkg://module:attribute' or 'prime://owner/name'."
        )
    if backend not in _SEPARATE_PROCESS:
        raise OptionError(
            f"backend={backend!r} cannot run in a virtual environment. Leave backend out, or use "
            "'http' or 'process'."
        )
    for name in ("base_url", "provider", "docker_image"):
        if getattr(remote, name) is not None:
            raise OptionError(f"venv= starts a server itself. Leave out {name}, or venv.")

"""Facts about this machine that decide which walls can be set up."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Container = Literal["docker", "kubernetes", "podman", "other"]

_CAP_SYS_ADMIN = 21


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Facts about a machine. A setting that it does not have is `None`.

    Attributes:
        system: As `sys.platform` has it.
        machine: The processor's architecture.
        kernel: The first two numbers of the kernel's version.
        is_root: Whether this process has user id 0.
        is_admin: Whether it has CAP_SYS_ADMIN.
        is_filtered: Whether it runs under a seccomp filter.
        container: What it runs in.
        userns_clone: `kernel.unprivileged_userns_clone`.
        max_user_namespaces: `user.max_user_namespaces`.
        apparmor_restricts: `kernel.apparmor_restrict_unprivileged_userns`.
        modules: The enabled security modules of the kernel; `None` if unknown.
        python: The interpreter's path.
    """

    system: str = "linux"
    machine: str = "x86_64"
    kernel: tuple[int, int] = (6, 8)
    is_root: bool = False
    is_admin: bool = False
    is_filtered: bool = False
    container: Container | None = None
    userns_clone: int | None = None
    max_user_namespaces: int | None = None
    apparmor_restricts: int | None = None
    modules: tuple[str, ...] | None = None
    python: str = "/usr/bin/python3"


def machine_facts(
    root: Path = Path("/"), environment: Mapping[str, str] = os.environ
) -> MachineFacts:
    """Return the facts about this machine. What cannot be read counts as missing."""
    status = _status(root / "proc/self/status")
    modules = _text(root / "sys/kernel/security/lsm")
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    return MachineFacts(
        system=sys.platform,
        machine=platform.machine(),
        kernel=(int(release[1]), int(release[2])) if release is not None else (0, 0),
        is_root=status.get("Uid", "1").split()[0] == "0",
        is_admin=bool(int(status.get("CapEff", "0"), 16) >> _CAP_SYS_ADMIN & 1),
        is_filtered=status.get("Seccomp", "0") != "0",
        container=_container(root, environment),
        userns_clone=_number(root / "proc/sys/kernel/unprivileged_userns_clone"),
        max_user_namespaces=_number(root / "proc/sys/user/max_user_namespaces"),
        apparmor_restricts=_number(root / "proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        modules=None if modules is None else tuple(modules.strip().split(",")),
        python=os.path.realpath(sys.executable),
    )


def _container(root: Path, environment: Mapping[str, str]) -> Container | None:
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    return "other" if "container" in environment else None


def _status(path: Path) -> dict[str, str]:
    lines = (_text(path) or "").splitlines()
    rows = [line.partition(":") for line in lines]
    return {name: value.strip() for name, _, value in rows}


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.strip().isdigit() else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None

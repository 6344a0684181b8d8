"""Owners of containers, and removing containers whose owners are gone.

Every container has labels that identify the process that started it. A process that is killed
leaves its containers behind; the next process that starts one removes them. If it is not certain
that an owner is gone, its containers are left alone: it may run on another machine, or in a PID
namespace that cannot be seen from here.
"""

from __future__ import annotations

import functools
import logging
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

logger = logging.getLogger("envweave.providers")

OWNER = "envweave.owner"
"""The label of every container that is cleaned up here."""

_IS_LINUX = platform.system() == "Linux"
_BOOT, _MACHINE = "envweave.owner.boot", "envweave.owner.machine"


class Containers(Protocol):
    """The part of an engine that lists and removes containers."""

    def labels(self, label: str) -> dict[str, Mapping[str, str]]:
        """Return the labels of every container that has this label, by its id."""
        ...

    def remove(self, container: str) -> None:
        """Remove a container by force. One that is gone already is not an error."""
        ...


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that starts containers.

    Attributes:
        mark: Identifies the process; unique on this machine until it reboots.
        boot: Identifies the boot of the machine; empty if unknown.
        machine: Identifies the machine; empty if unknown.
    """

    mark: str
    boot: str
    machine: str

    @classmethod
    def here(cls) -> Owner:
        """Return this process."""
        return cls(_get_mark(os.getpid()), _boot(), _machine())

    @classmethod
    def of(cls, labels: Mapping[str, str]) -> Owner:
        """Return the owner in these labels."""
        return cls(labels.get(OWNER, ""), labels.get(_BOOT, ""), labels.get(_MACHINE, ""))

    def labels(self) -> dict[str, str]:
        """Return the labels that identify this owner."""
        return {OWNER: self.mark, _BOOT: self.boot, _MACHINE: self.machine}

    def is_gone(self) -> bool:
        """Whether it is certain that this process has ended."""
        here = Owner.here()
        if not (self.mark and self.boot and here.boot):
            return False
        if self.boot != here.boot:
            # Another boot of this machine, or another machine.
            return bool(self.machine) and self.machine == here.machine
        return _has_ended(self.mark)


def remove_leftovers(containers: Containers) -> int:
    """Remove the containers of owners that are gone; return how many."""
    found = containers.labels(OWNER)
    orphans = [container for container, labels in found.items() if Owner.of(labels).is_gone()]
    for container in orphans:
        containers.remove(container)
    if orphans:
        logger.info("removed %d containers whose owners are gone", len(orphans))
    return len(orphans)


@functools.lru_cache(maxsize=1)  # by the id, which a fork changes
def _get_mark(pid: int) -> str:
    if _IS_LINUX:
        from envweave.sandbox.host.cleanup import mark

        return mark()
    return f"{pid} {_get_start(pid) or ''}"


def _has_ended(mark: str) -> bool:
    if _IS_LINUX:
        from envweave.sandbox.host.cleanup import is_stale

        return is_stale(f"{mark}-container") and not _is_hidden(int(mark.split("-")[2]))
    pid, _, start = mark.partition(" ")
    found = _get_start(int(pid)) if pid.isdigit() and start else None
    return found is not None and found != start


def _is_hidden(pid: int) -> bool:
    """Whether the process exists, but is hidden from this one."""
    if Path(f"/proc/{pid}").exists():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return False


def _get_start(pid: int) -> str | None:
    """Return when a process started: empty if there is none, `None` if unknown."""
    return _run("ps", "-o", "lstart=", "-p", str(pid))


@functools.cache
def _boot() -> str:
    if _IS_LINUX:
        return _read("/proc/sys/kernel/random/boot_id")
    return _run("sysctl", "-n", "kern.bootsessionuuid") or ""


@functools.cache
def _machine() -> str:
    if _IS_LINUX:
        return _read("/etc/machine-id")
    return _run("sysctl", "-n", "kern.uuid") or ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _run(*command: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - system programs with fixed arguments
            command, capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return " ".join(done.stdout.split())

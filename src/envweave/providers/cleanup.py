"""Whose a container is, and the end of those whose owners are gone.

Every container has labels that say which process started it. A process that is killed leaves its
containers behind; whoever starts the next one removes them. Where it cannot be known that an owner
is gone, its containers are left alone: it may live on another machine, or among processes that
cannot be seen from here.
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
"""The label that every container has which is looked after here."""

_IS_LINUX = platform.system() == "Linux"
_BOOT, _MACHINE = "envweave.owner.boot", "envweave.owner.machine"


class Containers(Protocol):
    """An engine, as far as its containers are listed and removed."""

    def labels(self, label: str) -> dict[str, Mapping[str, str]]:
        """Return the labels of every container that has one of this name, by its id."""
        ...

    def remove(self, container: str) -> None:
        """Remove a container, whatever it does. One that is gone is no failure."""
        ...


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that starts containers.

    Attributes:
        mark: Which process: no other of this machine has it until the machine starts anew.
        boot: Which start of the machine; empty if that cannot be known.
        machine: Which machine; empty if that cannot be known.
    """

    mark: str
    boot: str
    machine: str

    @classmethod
    def here(cls) -> Owner:
        """Return this process."""
        return cls(_mark_of(os.getpid()), _boot(), _machine())

    @classmethod
    def of(cls, labels: Mapping[str, str]) -> Owner:
        """Return who wrote these labels."""
        return cls(labels.get(OWNER, ""), labels.get(_BOOT, ""), labels.get(_MACHINE, ""))

    def labels(self) -> dict[str, str]:
        """Return the labels that say so."""
        return {OWNER: self.mark, _BOOT: self.boot, _MACHINE: self.machine}

    def is_gone(self) -> bool:
        """Whether it is certain that this process has ended."""
        here = Owner.here()
        if not (self.mark and self.boot and here.boot):
            return False
        if self.boot != here.boot:
            # Another start of this machine, or another machine.
            return bool(self.machine) and self.machine == here.machine
        return _has_ended(self.mark)


def remove_leftovers(containers: Containers) -> int:
    """Remove the containers of owners who are gone; return how many."""
    found = containers.labels(OWNER)
    left = [container for container, labels in found.items() if Owner.of(labels).is_gone()]
    for container in left:
        containers.remove(container)
    if left:
        logger.info("removed %d containers whose owners are gone", len(left))
    return len(left)


@functools.lru_cache(maxsize=1)  # by the id, which a fork changes
def _mark_of(pid: int) -> str:
    if _IS_LINUX:
        from envweave.sandbox.host.cleanup import mark

        return mark()
    return f"{pid} {_start_of(pid) or ''}"


def _has_ended(mark: str) -> bool:
    if _IS_LINUX:
        from envweave.sandbox.host.cleanup import is_stale

        return is_stale(f"{mark}-container") and not _is_hidden(int(mark.split("-")[2]))
    pid, _, start = mark.partition(" ")
    found = _start_of(int(pid)) if pid.isdigit() and start else None
    return found is not None and found != start


def _is_hidden(pid: int) -> bool:
    """Whether there is such a process, of which this one may know nothing more."""
    if Path(f"/proc/{pid}").exists():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return False


def _start_of(pid: int) -> str | None:
    """Return when a process started: empty if there is none, `None` if nobody can tell."""
    return _told("ps", "-o", "lstart=", "-p", str(pid))


@functools.cache
def _boot() -> str:
    if _IS_LINUX:
        return _read("/proc/sys/kernel/random/boot_id")
    return _told("sysctl", "-n", "kern.bootsessionuuid") or ""


@functools.cache
def _machine() -> str:
    if _IS_LINUX:
        return _read("/etc/machine-id")
    return _told("sysctl", "-n", "kern.uuid") or ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _told(*command: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - programs of the system, told by us
            command, capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return " ".join(done.stdout.split())

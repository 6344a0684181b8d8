"""What a template is told: which of the host's files its sessions may read, and the limits."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from envweave.sandbox.leftovers import new_folder
from envweave.sandbox.options import Options
from envweave.sandbox.orders import Isolation, Plan
from envweave.sandbox.users import UserRange
from envweave.sandbox.walls.root import without_nested

_LIBRARIES = (
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/local/lib",
    "/usr/local/lib64",
    "/usr/share/zoneinfo",
    "/etc/ld.so.cache",
    "/etc/localtime",
)
_PROGRAMS = ("/bin", "/sbin", "/usr", "/etc/alternatives", "/etc/ld.so.conf", "/etc/ld.so.conf.d")
_SYSTEM_PREFIXES = ("/", "/usr", "/usr/local")


def visible_paths(*, shell: bool, more: Sequence[str]) -> list[str]:
    """Return what of the host a session may read: interpreter, libraries, programs, `more`."""
    paths = [*_LIBRARIES, *(_PROGRAMS if shell else ())]
    prefixes = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    paths.extend(prefixes.difference(_SYSTEM_PREFIXES))
    paths.extend(map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))
    paths.extend(site.getsitepackages())
    paths.append(str(Path(__file__).parents[1]))
    paths.extend(more)
    return without_nested([os.path.normpath(path) for path in paths if os.path.lexists(path)])


def make_plan(
    isolation: Isolation,
    options: Options,
    *,
    cpu: int | None,
    users: UserRange | None,
    memory_counted: bool,
) -> Plan:
    """Return the plan of one template, with an empty folder made for it."""
    limits = options.limits
    shell = options.profile == "shell"
    return Plan(
        isolation=isolation,
        shell=shell,
        preload=list(options.preload),
        path=[path for path in options.visible if Path(path).is_dir()],
        visible=visible_paths(shell=shell, more=options.visible),
        place=str(new_folder("root")) if isolation == "namespace" else "",
        cpu=cpu,
        host=os.getpid(),
        users=0 if users is None else users.count,
        first_user=0 if users is None else users.first,
        native=options.native,
        memory_counted=memory_counted,
        memory_bytes=limits.memory_bytes,
        disk_bytes=limits.disk_bytes,
        files=limits.files,
        open_files=limits.open_files,
        processes=limits.processes,
    )

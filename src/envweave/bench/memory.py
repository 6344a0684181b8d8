"""Memory of processes and of environments, and a description of the machine."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from envweave import __version__

_PROC = Path("/proc")


def tree_bytes(pid: int | None = None) -> int | None:
    """Return the memory of a process and its descendants.

    Shared memory counts once, split among the processes that share it. `None` if the system does
    not report it.
    """
    root = os.getpid() if pid is None else pid
    found = [_process_bytes(one) for one in _tree(root)]
    counted = [one for one in found if one is not None]
    return sum(counted) if counted else None


def children_of(pid: int | None = None) -> list[int]:
    """Return the descendants of this process, or of `pid`."""
    root = os.getpid() if pid is None else pid
    return [one for one in _tree(root) if one != root]


def _tree(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for entry in _PROC.glob("[0-9]*/stat") if _PROC.is_dir() else ():
        with contextlib.suppress(OSError, ValueError, IndexError):  # it ended meanwhile
            # The name, in parentheses, may contain spaces and parentheses.
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    tree, fresh = [root], [root]
    while fresh:
        fresh = [pid for pid, parent in parents.items() if parent in fresh]
        tree += fresh
    return tree


def _process_bytes(pid: int) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int((_PROC / str(pid) / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return None


class MemoryUse(Protocol):
    """An object whose memory is measured: anything that can be closed."""

    @property
    def close(self) -> Callable[[], None]:
        """Release everything."""
        ...


def weigh(open_one: Callable[[int], MemoryUse], num_envs: int) -> float | None:
    """Return the memory of `num_envs` environments per environment, with its share of workers.

    Modules and other data that are loaded once are not counted: a small vector loads them first.
    """
    open_one(1).close()
    gc.collect()
    before = tree_bytes()
    opened = open_one(num_envs)
    try:
        gc.collect()
        after = tree_bytes()
    finally:
        opened.close()
    return None if before is None or after is None else max(0.0, (after - before) / num_envs)


def weigh_in_process(request: Mapping[str, Any], *, timeout_s: float = 60.0) -> float | None:
    """Return the bytes per environment, measured by this module in a separate process.

    `None` if that failed: the benchmark continues without the figure.
    """
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter, and arguments that are data
            [sys.executable, "-m", "envweave.bench.memory", json.dumps(request)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=timeout_s,
            check=True,
        )
        found = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, OSError, ValueError, IndexError):
        return None
    return None if found is None else float(found)


def _main(request: Mapping[str, Any]) -> None:
    from envweave import spec
    from envweave.bench.vectors import VectorVariant, open_vector

    recipe, way = spec(request["id"]), VectorVariant(request["backend"], request["mode"])
    found = weigh(
        lambda num_envs: open_vector(
            recipe, request["kwargs"], way, num_envs, seed=request["seed"]
        ),
        request["num_envs"],
    )
    sys.stdout.write(f"\n{json.dumps(found)}\n")  # after anything the environment has printed


def describe_machine(packages: Iterable[str] = ()) -> dict[str, Any]:
    """Return the processor, the cores this process may use, and versions.

    Args:
        packages: Further packages whose versions to include, besides envweave and numpy; those
            not installed are omitted.
    """
    versions = {"envweave": __version__}
    for name in ("numpy", *packages):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "processor": _processor(),
        "cores": usable_cores(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def usable_cores() -> int:
    """Return the number of cores this process may use."""
    with contextlib.suppress(AttributeError):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    with contextlib.suppress(OSError):
        named = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if named:
            return named[1].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))

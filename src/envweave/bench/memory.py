"""How much memory a process and its children take."""

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
    """Return the memory of a process and of all that descend from it.

    Memory that processes share counts once, split among those who share it. `None` where the
    system does not tell.
    """
    root = os.getpid() if pid is None else pid
    found = [_process_bytes(one) for one in _tree(root)]
    counted = [one for one in found if one is not None]
    return sum(counted) if counted else None


def children_of(pid: int | None = None) -> list[int]:
    """Return the processes that descend from this one, or from `pid`."""
    root = os.getpid() if pid is None else pid
    return [one for one in _tree(root) if one != root]


def _tree(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for entry in _PROC.glob("[0-9]*/stat") if _PROC.is_dir() else ():
        with contextlib.suppress(OSError, ValueError, IndexError):  # it ended meanwhile
            # The name, in parentheses, may hold blanks and parentheses itself.
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
    """What can be weighed: anything that can be closed."""

    @property
    def close(self) -> Callable[[], None]:
        """Gives everything back."""
        ...


def weigh(open_one: Callable[[int], MemoryUse], num_envs: int) -> float | None:
    """Return how many bytes each of `num_envs` environments takes, with its share of workers.

    What is there once, such as modules, is loaded by a first and small one, and not counted.
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


def weigh_apart(request: Mapping[str, Any], *, timeout_s: float = 60.0) -> float | None:
    """Return bytes an environment, found by this module in a process of its own.

    `None` if that failed: a figure that is missing is no reason to stop.
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
    sys.stdout.write(f"\n{json.dumps(found)}\n")  # after whatever the environment has printed


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))


def describe_machine(packages: Iterable[str] = ()) -> dict[str, Any]:
    """Return the processor, the cores this process may use, and versions.

    Args:
        packages: Whose versions to tell, beside envweave's and numpy's; those not installed
            are left out.
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
    """Return how many cores this process may use."""
    with contextlib.suppress(AttributeError):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    with contextlib.suppress(OSError):
        named = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if named:
            return named[1].strip()
    return platform.processor() or platform.machine()

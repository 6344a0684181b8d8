"""Memory an environment, found in a fresh process, where nothing else has been."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from envweave.bench.memory import tree_bytes


class Weighed(Protocol):
    """What can be weighed: anything that can be closed."""

    @property
    def close(self) -> Callable[[], None]:
        """Gives everything back."""
        ...


def weigh(open_one: Callable[[int], Weighed], num_envs: int) -> float | None:
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
            [sys.executable, "-m", "envweave.bench.weighing", json.dumps(request)],
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
    from envweave.bench.vectors import Way, open_vector

    recipe, way = spec(request["id"]), Way(request["backend"], request["mode"])
    found = weigh(
        lambda num_envs: open_vector(
            recipe, request["kwargs"], way, num_envs, seed=request["seed"]
        ),
        request["num_envs"],
    )
    sys.stdout.write(f"\n{json.dumps(found)}\n")  # after whatever the environment has printed


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))

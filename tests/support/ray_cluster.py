"""What the tests of `backend="ray"` ask of their cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest


def skip_without_ray() -> None:
    """Skip the test where Ray is not installed, but not in scripts/ray-tests."""
    if os.environ.get("ENVWEAVE_CI_RAY") != "1":
        pytest.importorskip("ray", reason="Ray is not installed. Run: scripts/ray-tests")


def live_workers() -> list[str]:
    """Return the names of the worker actors that are alive."""
    import ray

    listed = ray.util.list_named_actors(all_namespaces=True)
    return [one["name"] for one in listed if one["name"].startswith("envweave-")]


def wait_until(is_true: Callable[[], bool], timeout_s: float = 30.0) -> bool:
    """Wait for something, a bounded time; return whether it came true."""
    deadline_s = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


def nodes_of_workers() -> list[str]:
    """Return the node of each worker actor that is alive."""
    import ray

    actors = [ray.get_actor(name, namespace="envweave") for name in live_workers()]
    return [stats.node_id for stats in ray.get([actor.stats.remote() for actor in actors])]

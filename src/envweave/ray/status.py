"""What a Ray cluster is doing: its nodes, and the workers and environments on each.

`read_status` connects this process to the cluster that is running, and never starts one.
`probe_status` does it in another process, since a process has one connection to Ray, and
connecting may hang.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import ray

from envweave.errors import ConnectionLostError, StartupError, format_error
from envweave.ray.actors import ActorStats
from envweave.ray.cluster import NAMESPACE, RayCluster

WINDOW_S = 1.0
"""For how long steps are counted."""

STATS_S = 1.0
"""How long workers may take to say what they have done."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """What a node is doing.

    Attributes:
        id: Ray's ID for it.
        address: Its IP address.
        cpus: How many processors Ray may use there.
        gpus: How many GPUs.
        workers: How many worker actors of envweave are there.
        environments: How many environments they hold.
        steps_per_s: How many steps these take per second.
    """

    id: str
    address: str
    cpus: float
    gpus: float
    workers: int
    environments: int
    steps_per_s: float


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """What a cluster is doing.

    Attributes:
        address: Its address.
        nodes: The nodes that are alive, the head first.
        silent: How many worker actors did not answer, since they are only being started.
    """

    address: str
    nodes: list[NodeStatus]
    silent: int


def probe_status(timeout_s: float) -> ClusterStatus | None:
    """Return the status of the cluster at `$RAY_ADDRESS` or on this machine; `None` without one.

    Raises:
        ConnectionLostError: `$RAY_ADDRESS` names a cluster, but there is none; or it did not answer
            within `timeout_s`.
        StartupError: The process that reads the status failed.
    """
    if os.environ.get("RAY_ADDRESS") == "local":
        return None
    try:
        ran = subprocess.run(  # noqa: S603 - our own module
            [sys.executable, "-c", f"from {__name__} import main; main()"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConnectionLostError(
            f"The Ray cluster {_where()} did not answer within {timeout_s:g} s."
        ) from None
    lines = ran.stdout.splitlines()
    if ran.returncode or not lines:
        last = ran.stderr.strip().rpartition("\n")[2]
        raise StartupError(f"The status of the Ray cluster could not be read: {last}")
    answer = json.loads(lines[-1])
    if "problem" in answer:
        raise ConnectionLostError(answer["problem"])
    found = answer["found"]
    if found is None:
        return None
    nodes = [NodeStatus(**node) for node in found["nodes"]]
    return ClusterStatus(found["address"], nodes, found["silent"])


def main() -> None:
    """Print the status, or what is wrong, as one line of JSON."""
    answer: dict[str, Any]
    try:
        found = read_status()
    except ConnectionLostError as error:
        answer = {"problem": str(error)}
    else:
        answer = {"found": None if found is None else asdict(found)}
    sys.stdout.write(json.dumps(answer) + "\n")


def read_status() -> ClusterStatus | None:
    """Connect to the cluster at `$RAY_ADDRESS` or on this machine, and return its status.

    Raises:
        ConnectionLostError: `$RAY_ADDRESS` names a cluster, but there is none.
    """
    address = os.environ.get("RAY_ADDRESS")
    try:
        ray.init(
            address=address or "auto",
            namespace=NAMESPACE,
            configure_logging=False,
            log_to_driver=False,
        )
    except Exception as error:
        if address is None and isinstance(error, ConnectionError):
            return None
        raise ConnectionLostError(
            f"There is no Ray cluster {_where()}: {format_error(error)}"
        ) from error
    try:
        return _read(address or ray.get_runtime_context().gcs_address)
    finally:
        ray.shutdown()


def _read(address: str) -> ClusterStatus:
    workers = {}
    for name in ray.util.list_named_actors():
        with contextlib.suppress(ValueError):  # it has ended
            workers[name] = ray.get_actor(name)
    before, began_s = _stats(workers), time.monotonic()
    if before:
        time.sleep(WINDOW_S)
    # Those that were silent are not asked again.
    after = _stats({name: workers[name] for name in before})
    passed_s = time.monotonic() - began_s
    on_node: dict[str, list[str]] = defaultdict(list)
    for name, stats in after.items():
        on_node[stats.node_id].append(name)
    nodes = []
    for node in RayCluster(is_ours=False).nodes():
        names = on_node[node.id]
        steps = sum(after[name].steps - before[name].steps for name in names)
        nodes.append(
            NodeStatus(
                node.id,
                node.address,
                node.cpus,
                node.resources.get("GPU", 0.0),
                len(names),
                sum(after[name].num_envs for name in names),
                steps / passed_s,
            )
        )
    return ClusterStatus(address, nodes, len(workers) - len(before))


def _stats(workers: Mapping[str, Any]) -> dict[str, ActorStats]:
    """Return what each worker has done; those that are gone or do not answer are missing."""
    calls = {worker.stats.remote(): name for name, worker in workers.items()}
    if not calls:
        return {}
    done, _ = ray.wait(list(calls), num_returns=len(calls), timeout=STATS_S)
    found = {}
    for call in done:
        try:
            found[calls[call]] = ray.get(call)
        except ray.exceptions.RayError:
            continue  # it has ended
    return found


def _where() -> str:
    address = os.environ.get("RAY_ADDRESS")
    return f"at RAY_ADDRESS={address}" if address else "on this machine"

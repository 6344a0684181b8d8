"""The Ray cluster that this process uses: connecting, starting one, and where workers go.

Ray has one connection per process, so everything here shares it. A cluster that was started for
a caller is stopped when the last of its environments is closed; any other is only disconnected
from, and one that the program had connected to itself is left as it is.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import socket
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, final

from envweave.errors import ConnectionLostError, MissingExtraError, OptionError, format_error
from envweave.lifetime import OwnerProcess

try:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise MissingExtraError.for_extra("backend='ray' needs Ray.", "ray") from error

logger = logging.getLogger("envweave.ray")

PLACEMENTS = ("spread", "pack")
HEAD = "node:__internal_head__"
"""The resource by which Ray marks the head node."""

HEAD_CHECK_S, HEAD_LOST_S = 3.0, 40.0
"""How often to look for the head, and how long it may be gone. After a minute Ray gives up too."""

LOCAL = "local"
"""The address that starts a cluster on this machine."""

NAMESPACE = "envweave"
"""Where the names of all worker actors are, so that `envweave doctor` finds them."""


class Node(NamedTuple):
    """A machine of the cluster.

    Attributes:
        id: Ray's ID for it.
        address: Its IP address.
        resources: Everything that Ray may use there, by name.
    """

    id: str
    address: str
    resources: Mapping[str, float]

    @property
    def cpus(self) -> float:
        """How many processors Ray may use there."""
        return self.resources.get("CPU", 0.0)

    def has(self, resources: Mapping[str, float]) -> bool:
        """Whether it has so much of each, whether it is free or not."""
        return all(self.resources.get(name, 0) >= count for name, count in resources.items())


class ClusterWorker(Protocol):
    """A worker on the cluster."""

    def lose_cluster(self, loss: str) -> None:
        """Record that the cluster is gone, and the worker with it."""
        ...


@final
class RayCluster:
    """The connection to the cluster, shared by all environments of this process.

    Args:
        is_ours: Whether we have connected, and so must disconnect, which also stops a cluster that
            was started for this process.
    """

    def __init__(self, *, is_ours: bool) -> None:
        self._is_ours = is_ours
        self._leases = 0
        self._loss: str | None = None  # how the head was lost
        self._watched: weakref.WeakSet[ClusterWorker] = weakref.WeakSet()
        self._over = threading.Event()
        head = ray.get_runtime_context().gcs_address
        threading.Thread(
            target=self._watch_head, args=(head,), name="envweave-ray-head", daemon=True
        ).start()
        self._workers: Counter[str] = Counter()  # how many of our workers are on each node
        self._environments = self._losses = 0
        self._lock = threading.Lock()  # over `_workers`, `_environments` and `_losses`

    def lease(self) -> ClusterLease:
        """Use the cluster until the lease is released."""
        with _connecting:
            self._leases += 1
        return ClusterLease(self)

    def _release(self) -> None:
        """Count one lease less; with the last one, disconnect from Ray."""
        global _current
        with _connecting:
            self._leases -= 1
            if self._leases or _current is not self:
                return
            _current = None
            self._over.set()
            if self._is_ours and ray.is_initialized():
                ray.shutdown()

    @property
    def is_lost(self) -> bool:
        """Whether the head is gone, so that no call to it would return."""
        return self._loss is not None

    def watch(self, worker: ClusterWorker) -> None:
        """Have a worker informed if the head is lost."""
        self._watched.add(worker)

    def _watch_head(self, address: str) -> None:
        """Report the loss of the head before Ray does, which would end this process."""
        host, _, port = address.rpartition(":")
        seen_s = math.inf  # a `ray://` client may be unable to reach it, and is not ended by Ray
        while not self._over.is_set():
            try:
                socket.create_connection((host, int(port)), HEAD_CHECK_S).close()
                seen_s = time.monotonic()
            except OSError as error:
                if time.monotonic() - seen_s > HEAD_LOST_S:
                    self._lose_head(f"the head of the Ray cluster at {address} is gone: {error}")
                    return
            self._over.wait(HEAD_CHECK_S)

    def _lose_head(self, loss: str) -> None:
        self._loss = loss
        for worker in list(self._watched):
            worker.lose_cluster(loss)
        if self._is_ours:
            ray.shutdown()

    def nodes(self) -> list[Node]:
        """Return the nodes that are alive, in a fixed order.

        Raises:
            ConnectionLostError: The cluster does not answer.
        """
        if self._loss is not None:
            raise ConnectionLostError(
                f"No worker can be started: {self._loss}. Close the environments, and make them "
                "again when there is a cluster."
            )
        try:
            listed = ray.nodes()
        except Exception as error:
            raise ConnectionLostError(
                f"The Ray cluster does not answer: {format_error(error)}"
            ) from error
        nodes = [
            Node(one["NodeID"], one["NodeManagerAddress"], one["Resources"])
            for one in listed
            if one["Alive"]
        ]
        return sorted(nodes, key=lambda node: (HEAD not in node.resources, node.id))

    def eligible(self, resources: Mapping[str, float]) -> list[Node]:
        """Return the nodes on which a worker that needs these resources may run.

        Nodes with GPUs are left to those who need them, unless there are no others.
        """
        nodes = [node for node in self.nodes() if node.has(resources)]
        if "GPU" not in resources:
            nodes = [node for node in nodes if not node.resources.get("GPU")] or nodes
        return [node for node in nodes if node.cpus] or nodes

    def choose_node(self, resources: Mapping[str, float], placement: str) -> Node | None:
        """Return the node for the next worker, and count the worker there; `None` to let Ray wait.

        `"spread"` takes the node with the fewest workers for its processors, `"pack"` the first one
        that has a processor without a worker.
        """
        nodes = self.eligible(resources)
        with self._lock:
            if not nodes:
                return None
            load = {node.id: (self._workers[node.id] + 1) / max(node.cpus, 1) for node in nodes}
            chosen = min(nodes, key=lambda node: load[node.id])
            if placement == "pack":
                chosen = next((node for node in nodes if load[node.id] <= 1), chosen)
            self._workers[chosen.id] += 1
            return chosen

    def forget_worker(self, node: Node | None) -> None:
        """Count one worker less on a node."""
        if node is not None:
            with self._lock:
                self._workers[node.id] -= 1

    def count_environments(self, change: int) -> None:
        """Count environments that a worker holds, or no longer does."""
        with self._lock:
            self._environments += change

    def count_loss(self, name: str) -> None:
        """Count a worker for an environment of this name that died, here and in Ray's metrics."""
        with self._lock:
            self._losses += 1
        _lost_workers().inc(tags={"env": name})

    def describe_workers(self) -> str:
        """Return how many nodes, workers and environments this process uses, and its losses."""
        with self._lock:
            nodes = [count for count in self._workers.values() if count > 0]
            return (
                f"nodes {len(nodes)}  workers {sum(nodes)}  environments {self._environments:,}  "
                f"lost {self._losses}"
            )

    def capacity(self, resources: Mapping[str, float]) -> int:
        """Return how many workers to start by default: one for each processor."""
        return max(1, round(sum(node.cpus for node in self.eligible(resources))))


@final
class ClusterLease:
    """Keeps the connection to a cluster while something uses it."""

    def __init__(self, cluster: RayCluster) -> None:
        self._cluster: RayCluster | None = cluster
        self._owner = OwnerProcess()

    def release(self) -> None:
        """Release it. May be called twice."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None and self._owner.is_current:
            cluster._release()  # noqa: SLF001 - the other half of it


_current: RayCluster | None = None
_connecting = threading.RLock()  # over `_current` and the number of its leases


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[RayCluster]:
    """Connect to a cluster, or start one, while something is made there.

    What is made there takes a lease of its own.

    Raises:
        ConnectionLostError: There is no cluster at the address.
        OptionError: The process is connected to another one.
    """
    global _current
    with _connecting:
        if _current is None or not ray.is_initialized():
            _current = _connect(address)
        else:
            _refuse_another(address)
        cluster = _current
        lease = cluster.lease()
    try:
        yield cluster
    finally:
        lease.release()


def _connect(address: str | None) -> RayCluster:
    if ray.is_initialized():
        _refuse_another(address)
        return RayCluster(is_ours=False)
    quiet: dict[str, Any] = {"configure_logging": False, "logging_level": logging.WARNING}
    if address is None and "RAY_ADDRESS" not in os.environ:
        with contextlib.suppress(ConnectionError):
            ray.init(address="auto", namespace=NAMESPACE, **quiet)
            return RayCluster(is_ours=True)
        address = LOCAL
    if address == LOCAL:
        ray.init(address=LOCAL, namespace=NAMESPACE, include_dashboard=False, **quiet)
        return RayCluster(is_ours=True)
    try:
        ray.init(address=address, namespace=NAMESPACE, **quiet)
    except Exception as error:
        raise ConnectionLostError(
            f"There is no Ray cluster at {address or os.environ['RAY_ADDRESS']!r}: "
            f"{format_error(error)}. Start one with `ray start --head`, or leave address out to "
            "use one on this machine only."
        ) from error
    return RayCluster(is_ours=True)


def describe_workers() -> str:
    """Return how many nodes, workers and environments this process uses, and its losses."""
    cluster = _current
    return "" if cluster is None else cluster.describe_workers()


@functools.cache
def _lost_workers() -> Any:
    from ray.util.metrics import Counter as Metric

    return Metric("envweave_workers_lost_total", "Worker actors that died.", tag_keys=("env",))


def _refuse_another(address: str | None) -> None:
    """Refuse an address other than that of the cluster this process is connected to."""
    found = ray.get_runtime_context().gcs_address
    if address in (None, "auto", LOCAL, found) or str(address).startswith("ray://"):
        return
    raise OptionError(
        f"address={address!r}, but this process is connected to the Ray cluster at {found!r} "
        "already, and Ray allows one per process. Leave address out, or call ray.shutdown()."
    )


def scheduling(node: Node | None, resources: Mapping[str, float]) -> Any:
    """Return how Ray is to place an actor: on this node; on another one if it is full."""
    if node is None:
        return "DEFAULT"
    # An actor that claims nothing fits everywhere, and with `soft` Ray ignores the node.
    return NodeAffinitySchedulingStrategy(node_id=node.id, soft=bool(resources))


def actor_resources(resources: Mapping[str, float]) -> dict[str, Any]:
    """Return resources as options of an actor; it claims none but those."""
    rest = {name: count for name, count in resources.items() if name not in ("CPU", "GPU")}
    return {
        "num_cpus": resources.get("CPU", 0),
        "num_gpus": resources.get("GPU", 0),
        "resources": rest or None,
    }


def read_resources(resources: Any) -> dict[str, float]:
    """Check the option `resources`.

    Raises:
        OptionError: It is not a dict of positive numbers by name.
    """
    if resources is None:
        return {}
    if not isinstance(resources, Mapping) or not all(
        isinstance(name, str) and isinstance(count, int | float) and count > 0
        for name, count in resources.items()
    ):
        raise OptionError(
            "resources must be a dict with a positive number for each name, such as "
            f"resources={{'CPU': 1}}, got {resources!r}."
        )
    return dict(resources)


def read_placement(placement: Any) -> str:
    """Check the option `placement`.

    Raises:
        OptionError: It is unknown.
    """
    if placement is None:
        return "spread"
    if placement not in PLACEMENTS:
        raise OptionError(f"placement must be 'spread' or 'pack', got {placement!r}.")
    return str(placement)


def describe_nodes(nodes: Sequence[Node]) -> str:
    """Return the resources of nodes as text, for messages."""
    parts = []
    for node in nodes:
        counts = [
            f"{count:g} {name}"
            for name, count in node.resources.items()
            if not name.startswith(("node:", "memory", "object_store_memory", "accelerator_type"))
        ]
        parts.append(f"{node.address} ({', '.join(counts) or 'nothing'})")
    return "; ".join(parts) or "no nodes"

"""The Ray cluster that this process uses: connecting, starting one, and where workers go.

Ray has one connection per process, so everything here shares it. A cluster that was started for
a caller is stopped when the last of its environments is closed; any other is only disconnected
from, and one that the program had connected to itself is left as it is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

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


@final
class Cluster:
    """The connection to the cluster, shared by all environments of this process.

    Attributes:
        is_local: Whether it was started for this process.
    """

    def __init__(self, *, is_local: bool, is_ours: bool) -> None:
        self.is_local = is_local
        self._is_ours = is_ours
        self._leases = 0
        self._workers: Counter[str] = Counter()  # how many of our workers are on each node
        self._lock = threading.Lock()  # over `_workers`

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
            if self._is_ours and ray.is_initialized():
                ray.shutdown()

    def nodes(self) -> list[Node]:
        """Return the nodes that are alive, in a fixed order.

        Raises:
            ConnectionLostError: The cluster does not answer.
        """
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

    def capacity(self, resources: Mapping[str, float]) -> int:
        """Return how many workers to start by default: one for each processor."""
        return max(1, round(sum(node.cpus for node in self.eligible(resources))))


@final
class ClusterLease:
    """Keeps the connection to a cluster while something uses it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster: Cluster | None = cluster
        self._owner = OwnerProcess()

    def release(self) -> None:
        """Release it. May be called twice."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None and self._owner.is_current:
            cluster._release()  # noqa: SLF001 - the other half of it


_current: Cluster | None = None
_connecting = threading.RLock()  # over `_current` and the number of its leases


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[Cluster]:
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
        elif address not in (None, "auto"):
            _refuse_another(address)
        cluster = _current
        lease = cluster.lease()
    try:
        yield cluster
    finally:
        lease.release()


def _connect(address: str | None) -> Cluster:
    if ray.is_initialized():
        if address not in (None, "auto"):
            _refuse_another(address)
        return Cluster(is_local=False, is_ours=False)
    quiet: dict[str, Any] = {"configure_logging": False, "logging_level": logging.WARNING}
    if address is None and "RAY_ADDRESS" not in os.environ:
        with contextlib.suppress(ConnectionError):
            ray.init(address="auto", namespace=NAMESPACE, **quiet)
            return Cluster(is_local=False, is_ours=True)
        ray.init(address="local", namespace=NAMESPACE, include_dashboard=False, **quiet)
        return Cluster(is_local=True, is_ours=True)
    try:
        ray.init(address=address, namespace=NAMESPACE, **quiet)
    except Exception as error:
        raise ConnectionLostError(
            f"There is no Ray cluster at {address or os.environ['RAY_ADDRESS']!r}: "
            f"{format_error(error)}. Start one with `ray start --head`, or leave address out to "
            "use one on this machine only."
        ) from error
    return Cluster(is_local=False, is_ours=True)


def _refuse_another(address: str | None) -> None:
    """Refuse an address other than that of the cluster this process is connected to."""
    found = ray.get_runtime_context().gcs_address
    if address != found and not (address or "").startswith("ray://"):
        raise OptionError(
            f"address={address!r}, but this process is connected to the Ray cluster at {found!r} "
            "already, and Ray takes one per process. Leave address out, or call ray.shutdown()."
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

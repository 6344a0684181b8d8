"""One Ray cluster for these tests, with nodes that they may add and kill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import live_workers, skip_without_ray, wait_until

# Ray leaves sockets to the garbage collector, which reports them in whatever test it runs.
RAYS_OWN = (
    "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning",
    "ignore:unclosed <socket.socket:ResourceWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.ray)
            for warning in RAYS_OWN:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A cluster whose head has two processors; this process is connected to it."""
    skip_without_ray()
    import ray
    from ray.cluster_utils import Cluster

    started = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False}
    )
    ray.init(address=started.address, configure_logging=False, log_to_driver=False)
    yield started
    ray.shutdown()
    started.shutdown()


@pytest.fixture(autouse=True)
def _no_worker_is_left(cluster: Any) -> Iterator[None]:
    """Check that every worker actor of a test is gone at its end."""
    yield
    assert wait_until(lambda: not live_workers()), live_workers()


@pytest.fixture
def add_node(cluster: Any) -> Iterator[Callable[..., Any]]:
    """A function that adds a node to the cluster; those that are left are removed at the end."""
    nodes = []

    def add(**options: Any) -> Any:
        node = cluster.add_node(**{"num_cpus": 2, **options})
        nodes.append(node)
        cluster.wait_for_nodes()
        return node

    yield add
    for node in nodes:
        if node in cluster.worker_nodes:
            cluster.remove_node(node)

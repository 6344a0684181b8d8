"""Several nodes: placement, a node that dies, and one that joins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from environments.crashing import GO, Crashing, kill
from ray_cluster import nodes_of_workers, wait_until

import envweave as ew


class Where(ew.Environment):
    """Shows the node that it runs on."""

    def reset(self) -> Any:
        import ray

        return ray.get_runtime_context().get_node_id(), {}

    def step(self, action: int) -> Any:
        return "", 0.0, False, False, {}


def nodes_of(**options: Any) -> list[str]:
    with ew.make_vector(Where, num_envs=4, backend="ray", **options) as venv:
        return list(venv.reset().current)


def test_workers_are_spread_over_the_nodes_or_packed(add_node: Callable[..., Any]) -> None:
    add_node()

    spread = Counter(nodes_of(workers=4))
    packed = Counter(nodes_of(workers=2, placement="pack"))

    assert sorted(spread.values()) == [2, 2]
    assert sorted(packed.values()) == [4]


def test_nodes_with_gpus_are_used_only_if_requested(add_node: Callable[..., Any]) -> None:
    gpu = add_node(num_gpus=1)

    assert gpu.node_id not in nodes_of(workers=4)
    assert set(nodes_of(workers=1, resources={"GPU": 1})) == {gpu.node_id}


def test_there_is_a_worker_for_each_processor_by_default(add_node: Callable[..., Any]) -> None:
    add_node(num_cpus=1)

    assert len(set(nodes_of())) == 2


def test_the_rows_of_a_node_that_died_continue_on_the_others(
    add_node: Callable[..., Any], cluster: Any
) -> None:
    node = add_node()
    with ew.make_vector(Crashing, num_envs=8, backend="ray", workers=4, autoreset=True) as venv:
        venv.reset(seed=5)
        assert venv.step([GO] * 8).valid.all()
        cluster.remove_node(node)

        lost = 0
        for _ in range(5):
            batch = venv.step([GO] * 8)
            ends = [row.end for row in batch if row.end is not None]
            assert {(end.reason, end.blame) for end in ends} <= {("lost", "infrastructure")}
            lost += len(ends)

        assert lost == 4
        assert batch.valid.all()


def test_a_node_that_joins_is_used_for_replacements(add_node: Callable[..., Any]) -> None:
    with ew.make_vector(Crashing, num_envs=4, backend="ray", workers=2, autoreset=True) as venv:
        batch = venv.reset(seed=5)
        joined = add_node(num_cpus=8)
        kill(int(batch.current[0, 0]))

        assert wait_until(lambda: not venv.step([GO] * 4).valid.all())
        assert wait_until(lambda: bool(venv.step([GO] * 4).valid.all()))
        places = nodes_of_workers()

    assert joined.node_id in places

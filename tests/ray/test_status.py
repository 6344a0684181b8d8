"""What is shown of a cluster: by `envweave doctor`, in progress bars, and in Ray's metrics."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from environments.crashing import GO, Crashing, kill
from ray_cluster import wait_until

import envweave as ew
from envweave.cli import main
from envweave.errors import ConnectionLostError

PATIENT_S = 60.0


@pytest.fixture
def address(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The cluster's address, where other processes look for it."""
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    return str(cluster.address)


@contextmanager
def stepping(num_envs: int, workers: int) -> Iterator[None]:
    """Step a vector in another thread meanwhile."""
    stop = threading.Event()
    with ew.make_vector(Crashing, num_envs=num_envs, backend="ray", workers=workers) as venv:
        venv.reset(seed=0)

        def run() -> None:
            while not stop.is_set():
                venv.step([GO] * num_envs)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def test_the_status_counts_workers_environments_and_steps_on_each_node(
    address: str, add_node: Callable[..., Any]
) -> None:
    from envweave.ray.status import probe_status

    node = add_node(num_cpus=1)

    with stepping(num_envs=6, workers=3):
        found = probe_status(PATIENT_S)

    assert found is not None
    assert (found.address, found.silent) == (address, 0)
    assert [(one.cpus, one.gpus, one.workers, one.environments) for one in found.nodes] == [
        (2, 0, 2, 4),
        (1, 0, 1, 2),
    ]
    assert found.nodes[1].id == node.node_id
    assert all(one.steps_per_s > 0 for one in found.nodes)


def test_a_worker_that_hangs_is_still_counted(address: str) -> None:
    from environments.crashing import HANG

    from envweave.ray.status import probe_status

    with ew.make_vector(
        Crashing, num_envs=2, backend="ray", workers=1, timeout_s=PATIENT_S
    ) as venv:
        venv.reset(seed=0)
        venv.send([HANG], ids=[0])
        found = probe_status(PATIENT_S)

    assert found is not None
    assert [(one.workers, one.environments, one.steps_per_s) for one in found.nodes] == [(1, 2, 0)]


def test_an_address_without_a_cluster_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    from envweave.ray.status import probe_status

    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")

    with pytest.raises(ConnectionLostError, match=r"at RAY_ADDRESS=127\.0\.0\.1:1 did not answer"):
        probe_status(4.0)


def test_doctor_shows_the_cluster(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    def doctor(*options: str) -> str:
        capsys.readouterr()
        main(["doctor", *options])
        return capsys.readouterr().out

    report: dict[str, Any] = {}

    def is_read() -> bool:  # a busy machine may need longer than doctor waits
        report.update(json.loads(doctor("--json")))
        return report["ray"] is not None

    assert wait_until(is_read, 2 * PATIENT_S)
    (node,) = report["ray"]["nodes"]
    (backend,) = [one for one in report["backends"] if one["name"] == "ray"]
    assert (node["cpus"], node["workers"], node["environments"]) == (2, 0, 0)
    assert (backend["status"], backend["detail"]) == ("ready", f"1 node with 2 CPUs at {address}")
    assert wait_until(lambda: "The Ray cluster" in doctor(), 2 * PATIENT_S)


def test_doctor_starts_no_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")

    main(["doctor"])

    assert "ready; starts a cluster on this machine" in " ".join(capsys.readouterr().out.split())


def test_the_progress_of_a_rollout_shows_nodes_workers_and_losses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    killed: list[int] = []

    async def agent(result: Any) -> int:
        if not killed:
            killed.append(int(result.observation[0]))
            kill(killed[0])
        return GO

    with ew.pool(Crashing, size=4, backend="ray", workers=2, max_episode_steps=3) as pool:
        ew.rollout(pool, agent, episodes=16, seed=0, progress=True).run()

    last = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"16/16 episodes .* nodes 1  workers 2  environments 4  lost 1$", last), last


@pytest.mark.timeout(300)  # Ray exports metrics every ten seconds
def test_ray_exports_our_metrics(cluster: Any) -> None:
    import ray

    (node,) = [one for one in ray.nodes() if one["Alive"]]
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def exported() -> dict[str, float]:
        with opener.open(url, timeout=30) as reply:
            text = reply.read().decode()
        found: dict[str, float] = {}
        for name, value in re.findall(r"^ray_(envweave_\w+)\{.*\} (\S+)$", text, re.MULTILINE):
            found[name] = found.get(name, 0.0) + float(value)
        return found

    expected = {"envweave_steps_total", "envweave_environments", "envweave_workers_lost_total"}
    with ew.make_vector(Crashing, num_envs=4, backend="ray", workers=2, autoreset=True) as venv:
        batch = venv.reset(seed=0)
        kill(int(batch.current[0, 0]))
        for _ in range(50):
            venv.step([GO] * 4)

        def is_complete() -> bool:
            found = exported()
            return expected <= found.keys() and found["envweave_environments"] >= 4

        assert wait_until(is_complete, 120), exported()
        found = exported()

    assert found["envweave_steps_total"] > 0
    assert found["envweave_workers_lost_total"] >= 1

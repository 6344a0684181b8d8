"""`envweave deploy` in a cluster: a permanent server, reached with its token."""

from __future__ import annotations

import base64
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from containers import ECHO, READY_S, cluster

import envweave as ew

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kubernetes,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("pods"),
]

NAME = f"deployed-{secrets.token_hex(4)}"
LABEL = f"app.kubernetes.io/name={NAME}"


@pytest.fixture
def connection() -> Iterator[Any]:
    """The cluster, from which what was deployed is gone at the end."""
    found = cluster()
    yield found
    for kind in ("deployments", "services", "secrets"):
        found.delete(kind, NAME)
    wait_until(lambda: not found.described("pods", LABEL))
    found.close()


def wait_until(is_so: Callable[[], object]) -> None:
    ends_s = time.monotonic() + READY_S
    while not is_so():
        assert time.monotonic() < ends_s
        time.sleep(0.1)


def deploy(*more: str) -> str:
    small = ["--cpus", "0.5", "--memory", "256m"]
    command = [sys.executable, "-m", "envweave.cli", "deploy", "counter-v0", "--name", NAME]
    command += ["--image", ECHO, *small, *more]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def pod_of(connection: Any) -> tuple[str, str]:
    """Return what the one pod is called that is ready, and where it is."""
    wait_until(lambda: is_settled(connection.get("deployments", NAME)))
    wait_until(lambda: len(connection.described("pods", LABEL)) == 1)
    (name,) = connection.described("pods", LABEL)
    return name, f"http://{connection.get('pods', name)['status']['podIP']}:8000"


def is_settled(deployment: dict[str, Any]) -> bool:
    status = deployment["status"]
    is_current = status.get("observedGeneration") == deployment["metadata"]["generation"]
    return is_current and status.get("updatedReplicas") == status.get("readyReplicas") == 1


def ends(url: str, token: str) -> list[bool]:
    with ew.make(url, token=token) as env:
        env.reset()
        return [env.step({"delta": 1}).done for _ in range(2)]


def test_it_serves_and_is_changed_by_the_next_deployment(
    connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVWEAVE_TOKEN", "mine")
    first = deploy("--arg", "done_at=2")
    name, url = pod_of(connection)
    ends_at_two = ends(url, "mine")
    monkeypatch.delenv("ENVWEAVE_TOKEN")

    second = deploy("--arg", "done_at=3", "--json")

    wait_until(lambda: name not in connection.described("pods", LABEL))
    _, url = pod_of(connection)
    kept = connection.get("secrets", NAME)["data"]["ENVWEAVE_TOKEN"]
    assert f"deployment {NAME} made" in first
    assert f"http://{NAME}.default.svc:8000" in second
    assert (ends_at_two, ends(url, "mine")) == ([False, True], [False, False])
    assert base64.b64decode(kept) == b"mine"


def test_the_output_of_a_dry_run_is_accepted_by_a_cluster(
    connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVWEAVE_TOKEN", "mine")

    for one in yaml.safe_load_all(deploy("--arg", "done_at=2", "--dry-run")):
        connection.create(f"{one['kind'].lower()}s", one)

    _, url = pod_of(connection)
    assert ends(url, "mine") == [False, True]

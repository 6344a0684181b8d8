"""`envweave deploy` in a cluster: a server that stays, reached by those who have its token."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer
from docker_images import ECHO
from kubernetes_cluster import READY_S, cluster
from typer.testing import CliRunner

import envweave as ew
from envweave.cli.deploy import deploy_command

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kubernetes,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("pods"),
]

app = typer.Typer()
app.command()(deploy_command)


@pytest.fixture
def connection() -> Iterator[Any]:
    """The cluster, from which what was deployed is gone at the end."""
    found = cluster()
    yield found
    for kind in ("deployments", "services", "secrets"):
        found.delete(kind, "deployed")
    wait_until(lambda: not found.described("pods", "app.kubernetes.io/name=deployed"))
    found.close()


def wait_until(is_so: Callable[[], object]) -> None:
    ends_s = time.monotonic() + READY_S
    while not is_so():
        assert time.monotonic() < ends_s
        time.sleep(0.1)


def deploy(*more: str) -> str:
    small = ["--cpus", "0.5", "--memory", "256m"]
    ran = CliRunner().invoke(
        app, ["counter-v0", "--name", "deployed", "--image", ECHO, *small, *more]
    )
    assert ran.exit_code == 0, ran.output
    return ran.output


def test_it_serves_and_is_changed_by_the_next_deployment(
    connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVWEAVE_TOKEN", "mine")

    first = deploy("--arg", "done_at=2")
    wait_until(lambda: connection.get("deployments", "deployed")["status"].get("readyReplicas"))
    (name,) = connection.described("pods", "app.kubernetes.io/name=deployed")
    address = connection.get("pods", name)["status"]["podIP"]
    with ew.make(f"http://{address}:8000", token="mine") as env:
        env.reset()
        ends = [env.step({"delta": 1}).done for _ in range(2)]
    second = deploy("--json")

    kept = connection.get("secrets", "deployed")["data"]["ENVWEAVE_TOKEN"]
    assert "deployment deployed made" in first
    assert "http://deployed.default.svc:8000" in second
    assert ends == [False, True]
    assert base64.b64decode(kept) == b"mine"

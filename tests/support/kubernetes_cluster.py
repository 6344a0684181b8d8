"""A Kubernetes cluster for tests: what KUBECONFIG names, or scripts/kubernetes-cluster runs."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from docker_images import BASE, CODING, ECHO, LINEWORLD, need_images

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/kubernetes-cluster"
IMAGES = [BASE, ECHO, LINEWORLD, CODING, "envweave-python:3.11"]
READY_S = 120.0


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script that has a cluster."""
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False
    )


def need_cluster() -> str:
    """Return the kubeconfig of a cluster that has the images; skip where there is none.

    With ENVWEAVE_CI_KUBERNETES=1 one is built and started, and its absence is a failure. With a
    KUBECONFIG the cluster is yours, and has the images already.
    """
    pytest.importorskip("kubernetes", reason="Install it with: pip install 'envweave[kubernetes]'")
    own = os.environ.get("KUBECONFIG")
    if own and own != _kubeconfig():
        return own
    missing = _missing()
    if missing is not None and _is_needed():
        pytest.fail(missing)
    if missing is not None:
        pytest.skip(missing)
    return _kubeconfig()


def need_own_cluster() -> None:
    """Skip a test that stops parts of a cluster where the cluster is not this script's."""
    if os.environ.get("KUBECONFIG") not in (None, _kubeconfig()):
        pytest.skip("The cluster is not one that scripts/kubernetes-cluster started.")


@functools.cache
def _missing() -> str | None:
    """Have a cluster with the images, and return what is missing of it."""
    for command in ("build", "start") if _is_needed() else ("status",):
        done = script(command)
        if done.returncode:
            return f"scripts/kubernetes-cluster {command}: {done.stderr.strip()} Or set KUBECONFIG."
    need_images()
    done = script("load", *IMAGES)
    return done.stderr if done.returncode else None


def _is_needed() -> bool:
    return os.environ.get("ENVWEAVE_CI_KUBERNETES") == "1"


@functools.cache
def _kubeconfig() -> str:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return str(cache / "envweave-ci/kubernetes/kubeconfig")


def cluster() -> Any:
    """Return a connection to the cluster of the tests."""
    from envweave.providers.kubernetes_cluster import Cluster

    return Cluster()


def kill(*pods: str) -> None:
    """Kill what runs in pods, as nobody inside could, while the cluster does not know yet."""
    connection = cluster()
    socket = Path(_kubeconfig()).with_name("run") / "containerd.sock"
    try:
        for pod in pods:
            found = connection.get("pods", pod)
            container = found["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
            ctr = ["ctr", "-a", str(socket), "-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL"]
            subprocess.run([*ctr, container], check=True, capture_output=True)
    finally:
        connection.close()


def names(kind: str, mark: str | None = None) -> list[str]:
    """Return what there is of a kind that envweave made; with a mark, that one process made."""
    connection = cluster()
    try:
        found = connection.described(kind, "envweave.owner")
    finally:
        connection.close()
    return [
        name
        for name, about in found.items()
        if mark is None or about["annotations"]["envweave.owner"] == mark
    ]


def left_of(mark: str) -> dict[str, list[str]]:
    """Return all that a process has left in the cluster, by its kind."""
    found = {kind: names(kind, mark) for kind in ("pods", "secrets", "services")}
    return {kind: those for kind, those in found.items() if those}


def inside(pod: str, code: str) -> str:
    """Run a program of Python's in a pod, and return what it prints."""
    from kubernetes import client, config, stream

    configuration = client.Configuration()
    config.load_kube_config(os.environ["KUBECONFIG"], client_configuration=configuration)
    api = client.CoreV1Api(client.ApiClient(configuration))
    try:
        line = stream.stream(
            api.connect_get_namespaced_pod_exec,
            pod,
            "default",
            command=["python", "-c", code],
            stdout=True,
            stderr=True,
            stdin=False,
            tty=False,
            _preload_content=False,
        )
        try:
            line.run_forever(60)
            said: str = line.read_all()
        finally:
            line.sock.shutdown()  # `close` forgets the socket where the other end closed first
    finally:
        api.api_client.rest_client.pool_manager.clear()
    return said.strip()

"""Containers for tests: a Docker engine with images of this checkout, a Kubernetes cluster."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, final

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "envweave-python:3.11"


def need_image() -> str:
    """Return the name of an image with Python; skip the test where no engine runs, but not in CI.

    In CI whatever is missing is made: there its absence is a failure.
    """
    is_ci = os.environ.get("CI") == "true"
    steps = [["docker-engine", "start" if is_ci else "status"]]
    steps.append(["docker-base-image", *([] if is_ci else ["--size"])])
    for script, *arguments in steps:
        done = subprocess.run(
            [sys.executable, ROOT / "scripts" / script, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode and is_ci:
            pytest.fail(f"scripts/{script} failed: {done.stderr.strip()}")
        if done.returncode:
            pytest.skip(
                f"{done.stderr.strip()} Run scripts/docker-engine start once, "
                "and scripts/docker-base-image."
            )
    return IMAGE


BASE, ECHO, LINEWORLD, CODING = (
    f"{name}:latest" for name in ("envweave-base", "echo-env", "envweave-lineworld", "coding-env")
)
OWNER = "envweave.owner"


def need_images() -> None:
    """Have the images built; skip the test where no engine runs, but not in CI."""
    if os.environ.get("CI") != "true":
        pytest.importorskip("docker", reason="Install it with: pip install 'envweave[docker]'")
    need_image()
    _built()


@functools.cache
def _built() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/docker-images"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def docker(*arguments: str) -> str:
    """Run a command of `docker`, and return what it prints."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def inspect(container: str) -> dict[str, Any]:
    """Return what the engine knows of a container."""
    found: dict[str, Any] = json.loads(docker("inspect", container))[0]
    return found


def exists(container: str) -> bool:
    """Whether the engine has such a container."""
    return bool(docker("ps", "-aq", "--filter", f"name=^{container}$"))


def engine_url() -> str:
    """Return where the engine is that envweave uses here."""
    from envweave.providers.docker.engine import Engine

    engine = Engine()
    engine.close()
    return engine.url


def own_mark() -> str:
    """Return the label of what this process starts, in Docker and in Kubernetes."""
    from envweave.providers.cleanup import Owner

    return Owner.here().mark


def own_containers() -> list[str]:
    """Return the names of the containers of this process."""
    return containers_of(own_mark())


def containers_of(mark: str) -> list[str]:
    """Return the names of the containers of one owner."""
    listed = docker("ps", "-a", "--filter", f"label={OWNER}={mark}", "--format", "{{.Names}}")
    return listed.split()


SCRIPT = ROOT / "scripts/kubernetes-cluster"
IS_STAGE = os.environ.get("ENVWEAVE_CI_KUBERNETES") == "1"
READY_S = 120.0


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script that has a cluster."""
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False
    )


def need_cluster() -> str:
    """Return the kubeconfig of a cluster that has the images; skip where KUBECONFIG names none.

    In the stage of CI that has a cluster, scripts/kubernetes-tests, that is a failure. The cluster
    of scripts/kubernetes-cluster is given the images of this checkout; any other has them already.
    """
    try:
        importlib.import_module("kubernetes.client")
    except ImportError:
        _do_without("Install it with: pip install 'envweave[kubernetes]'")
    named = os.environ.get("KUBECONFIG")
    if not named:
        _do_without(
            "Set KUBECONFIG to the file that tells of your cluster, or run these tests with one "
            "of their own: scripts/kubernetes-tests"
        )
    assert named is not None
    missing = _missing() if named == _kubeconfig() else None
    if missing is not None:
        _do_without(missing)
    return named


def need_own_cluster() -> None:
    """Skip a test that stops parts of a cluster where the cluster is not this script's."""
    if os.environ.get("KUBECONFIG") != _kubeconfig():
        pytest.skip("The cluster is not one that scripts/kubernetes-cluster started.")


@contextmanager
def shared(*, alone: bool) -> Iterator[None]:
    """Use the cluster along with other processes of these tests, or without any.

    Who wants to be alone holds the gate while the others finish, so that no new ones come.
    """
    how = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    place = Path(tempfile.gettempdir(), f"envweave-kubernetes-{os.getuid()}")
    with (
        place.with_suffix(".gate").open("w") as gate,
        place.with_suffix(".lock").open("w") as lock,
    ):
        fcntl.flock(gate, how)
        fcntl.flock(lock, how)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


def _do_without(why: str) -> NoReturn:
    if IS_STAGE:
        pytest.fail(why)
    pytest.skip(why)


@functools.cache
def _missing() -> str | None:
    """Return what the script's own cluster lacks, once it has the images."""
    if IS_STAGE:
        return None  # which has seen to it
    done = script("status")
    if done.returncode == 0:
        need_images()
        done = script("load")
    return done.stderr.strip() if done.returncode else None


@functools.cache
def _kubeconfig() -> str:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return str(cache / "envweave-ci/kubernetes/kubeconfig")


def cluster() -> Any:
    """Return a connection to the cluster of the tests."""
    from envweave.providers.kubernetes.cluster import Cluster

    return Cluster()


@contextmanager
def hung(part: str) -> Iterator[None]:
    """Have a part of the script's cluster do nothing while the block runs."""
    noted = json.loads(Path(_kubeconfig()).with_name("started.json").read_text())
    pid = noted["parts"][part]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
        await_node()


@contextmanager
def away(part: str) -> Iterator[None]:
    """Have a part of the script's cluster stopped while the block runs."""
    script("stop", part)
    try:
        yield
    finally:
        script("start", part)
        await_node()


def await_node() -> None:
    """Wait until pods can be started: a node that has not reported for long takes none."""
    ends_s = time.monotonic() + READY_S
    with official() as api:
        while True:
            with contextlib.suppress(Exception):  # the API server may be busy with starting
                (node,) = api.list_node().items
                ready = [one.status for one in node.status.conditions if one.type == "Ready"]
                if ready == ["True"] and not node.spec.taints:
                    return
            assert time.monotonic() < ends_s
            time.sleep(0.2)


@contextmanager
def official() -> Iterator[Any]:
    """The official client's own door to the cluster."""
    from kubernetes import client, config

    configuration = client.Configuration()
    config.load_kube_config(os.environ["KUBECONFIG"], client_configuration=configuration)
    api = client.CoreV1Api(client.ApiClient(configuration))
    try:
        yield api
    finally:
        api.api_client.rest_client.pool_manager.clear()


def kill(*pods: str) -> None:
    """Kill the processes of pods from outside, before the cluster notices."""
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
    from kubernetes import stream

    with official() as api:
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
            output: str = line.read_all()
        finally:
            line.sock.shutdown()  # `close` forgets the socket where the other end closed first
    return output.strip()


@final
class FarEnd:
    """Answers each connection with its data in upper case, unless that is a command.

    It hangs up at `b"bye"`, says a failure for `b"fail"`, and nothing at `b"hush"`.

    Attributes:
        count: How many connections there were.
    """

    def __init__(self, port: int = 8000) -> None:
        self._port = struct.pack("<H", port)
        self._threads: list[threading.Thread] = []
        self.count = 0

    def connect(self) -> socket.socket:
        """Return the near end of a new connection."""
        near, far = socket.socketpair()
        self.count += 1
        thread = threading.Thread(target=self._answer, args=(far,), daemon=True)
        self._threads.append(thread)
        thread.start()
        return near

    def join(self) -> None:
        """Wait until all connections are closed."""
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()

    def _answer(self, far: socket.socket) -> None:
        # Who hangs up does not always wait for an answer.
        with far, far.makefile("rb") as reading, contextlib.suppress(OSError):
            for channel in (0, 1):
                far.sendall(_frame(bytes((channel,)) + self._port))
            while True:
                opcode, data = _read(reading)
                if opcode != 2:
                    return
                assert data[0] == 0
                if data[1:] == b"bye":
                    return
                if data[1:] == b"fail":
                    far.sendall(_frame(b"\x01connection refused"))
                elif data[1:] != b"hush":
                    far.sendall(_frame(b"\0" + data[1:].upper()))


def _frame(data: bytes) -> bytes:
    if len(data) < 126:
        return bytes((0x82, len(data))) + data
    if len(data) < 2**16:
        return bytes((0x82, 126)) + struct.pack(">H", len(data)) + data
    return bytes((0x82, 127)) + struct.pack(">Q", len(data)) + data


def _read(reading) -> tuple[int, bytes]:
    head = reading.read(2)
    if len(head) < 2:
        return 8, b""
    length = head[1] & 127
    if length == 126:
        (length,) = struct.unpack(">H", reading.read(2))
    elif length == 127:
        (length,) = struct.unpack(">Q", reading.read(8))
    mask = reading.read(4)
    data = reading.read(length)
    key = mask * (length // 4 + 1)
    plain = int.from_bytes(data, "big") ^ int.from_bytes(key[:length], "big")
    return head[0] & 15, plain.to_bytes(length, "big")

"""Pods whose owners are gone are deleted; all others are left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from containers import ECHO, cluster, left_of, names

from envweave import KubernetesProvider
from envweave.providers.kubernetes.cleanup import sweep
from envweave.providers.kubernetes.manifests import owned, secret
from envweave.providers.kubernetes.options import KubernetesOptions

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kubernetes,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("pods"),
]

STARTER = """
import sys, threading
from envweave.providers.kubernetes.provider import KubernetesProvider
from envweave.providers.cleanup import Owner
small = {"cpu_request": 0.01, "memory_request": "16m", "service": True}
providers = []
for i in range(int(sys.argv[1])):
    providers.append(KubernetesProvider(**small))
    url = providers[-1].start_container("echo-env:latest")
print(Owner.here().mark, flush=True)
{then}
"""


def starter(then: str, count: int = 1) -> subprocess.Popen[str]:
    """Return a process that has started pods, and then does something."""
    return subprocess.Popen(
        [sys.executable, "-c", STARTER.replace("{then}", then), str(count)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_one() -> None:
    provider = KubernetesProvider(stop_timeout_s=0)
    try:
        provider.start_container(ECHO)
    finally:
        provider.stop_container()


def test_eight_pods_of_a_killed_caller_are_deleted_by_the_next_start() -> None:
    with starter("threading.Event().wait(120)", count=8) as process:
        mark = process.stdout.readline().strip()
        before = left_of(mark)
        start_one()
        while_it_lived = left_of(mark)

        process.kill()
        process.wait(20)
        start_one()

    assert {kind: len(those) for kind, those in before.items()} == {
        "pods": 8,
        "secrets": 8,
        "services": 8,
    }
    assert while_it_lived == before
    assert left_of(mark) == {}


@pytest.mark.parametrize("then", ["", "raise RuntimeError", "del providers, url"])
def test_the_pods_of_a_program_are_deleted_when_it_exits(then: str) -> None:
    with starter(then) as process:
        mark = process.stdout.readline().strip()
        process.communicate(timeout=60)

    assert left_of(mark) == {}


@pytest.mark.parametrize(
    "then", ["threading.Event().wait(120)", "providers[0].wait_for_ready(url, 120)"]
)
def test_ctrl_c_leaves_nothing_behind(then: str) -> None:
    with starter(then) as process:
        mark = process.stdout.readline().strip()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)

    assert left_of(mark) == {}


def test_a_forked_copy_leaves_the_pod_to_its_parent() -> None:
    provider = KubernetesProvider(stop_timeout_s=0)
    provider.start_container(ECHO)
    try:
        child = os.fork()
        if child == 0:
            try:
                provider.stop_container()
            finally:
                os._exit(0)
        os.waitpid(child, 0)

        assert provider.pod in names("pods")
    finally:
        provider.stop_container()


def test_expired_objects_of_any_owner_are_deleted() -> None:
    connection = cluster()
    about = owned(KubernetesOptions())
    elsewhere = {"envweave.owner": "envweave-1-2-3", "envweave.owner.boot": "another"}
    try:
        for name, expires in (("old", "2020-01-01T00:00:00+00:00"), ("odd", "tomorrow")):
            annotations = {**elsewhere, "envweave.expires": expires}
            kept = secret(f"envweave-{name}", {}, {**about, "annotations": annotations})
            connection.create("secrets", kept)

        sweep(connection)

        left = names("secrets")
        assert "envweave-old" not in left
        assert "envweave-odd" in left
    finally:
        connection.delete("secrets", "envweave-odd")
        connection.close()

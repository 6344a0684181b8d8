"""A server in a pod: reached, isolated, reported when it fails, and always deleted."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from containers import BASE, ECHO, READY_S, cluster, inside, names, own_mark

import envweave as ew
from envweave import KubernetesProvider
from envweave.envs.echo_env import EchoAction, EchoEnv
from envweave.errors import AccessError, CallOrderError, OptionError, StartupError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kubernetes,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("pods"),
]

QUICK: dict[str, Any] = {"stop_timeout_s": 0, "cpu_request": 0.05, "memory_request": "32m"}


@contextmanager
def started(image: str = ECHO, **options: Any) -> Iterator[tuple[KubernetesProvider, str]]:
    """A pod that is ready while the block runs."""
    provider = KubernetesProvider(**{**QUICK, **options})
    try:
        base_url = provider.start_container(image)
        provider.wait_for_ready(base_url, READY_S)
        yield provider, base_url
    finally:
        provider.stop_container()


def seen(provider: KubernetesProvider, kind: str = "pods") -> dict[str, Any]:
    """Return a pod, or what belongs to it, as the cluster has it."""
    connection = cluster()
    try:
        found: dict[str, Any] = connection.get(kind, provider.pod)
        return found
    finally:
        connection.close()


def failing(image: str = BASE, timeout_s: float = READY_S, **options: Any) -> str:
    """Return the error message for a pod that does not become ready."""
    provider = KubernetesProvider(**{**QUICK, **options})
    try:
        with pytest.raises(StartupError) as caught:
            provider.wait_for_ready(provider.start_container(image), timeout_s)
    finally:
        provider.stop_container()
    return str(caught.value)


def test_it_starts_and_stops_a_server_and_leaves_nothing_behind() -> None:
    threads = set(threading.enumerate())

    with started(stop_timeout_s=5) as (provider, base_url):
        name = provider.pod
        with EchoEnv(base_url, token=provider.token) as env:
            env.reset()
            reward = env.step(EchoAction("Hello, World!")).reward

    assert reward == 1.3
    assert name not in [*names("pods"), *names("secrets"), *names("services")]
    assert (provider.pod, provider.token) == (None, None)
    assert set(threading.enumerate()) == threads


def test_its_port_is_on_loopback_and_requires_the_token() -> None:
    with started() as (provider, base_url):
        assert base_url.startswith("http://127.0.0.1:")
        with pytest.raises(AccessError):
            ew.make(base_url, token="wrong")
        with ew.make(base_url, token=provider.token) as env:
            env.reset()


def test_the_token_is_in_a_secret_and_not_in_the_pod() -> None:
    with started() as (provider, _):
        pod, secret = seen(provider), seen(provider, "secrets")

        assert provider.token not in json.dumps(pod)
        assert "ENVWEAVE_TOKEN" in secret["data"]
        (owner,) = secret["metadata"]["ownerReferences"]
        assert owner["uid"] == pod["metadata"]["uid"]


def test_it_is_isolated_as_far_as_possible() -> None:
    look = """
import json, os
about = dict(line.split(":", 1) for line in open("/proc/1/status"))
def refused(path):
    try:
        open(path, "w").close()
    except OSError as error:
        return os.strerror(error.errno)
files = ("/x", "/opt/envweave/x", "/etc/passwd", "/tmp/x")
print(json.dumps({
    "user": os.getuid(),
    "capabilities": [about[k].strip() for k in ("CapEff", "CapPrm", "CapBnd")],
    "may gain rights": about["NoNewPrivs"].strip() == "0",
    "filtered": about["Seccomp"].strip(),
    "files": {one: refused(one) for one in files},
    "cluster": os.path.exists("/var/run/secrets/kubernetes.io"),
}))
"""
    with started() as (provider, _):
        output = json.loads(inside(str(provider.pod), look))
        limits = seen(provider)["spec"]["containers"][0]["resources"]["limits"]

    none, sealed = "0" * 16, "Read-only file system"
    assert output == {
        "user": 10001,
        "capabilities": [none, none, none],
        "may gain rights": False,
        "filtered": "2",
        "files": {"/x": sealed, "/opt/envweave/x": sealed, "/etc/passwd": sealed, "/tmp/x": None},
        "cluster": False,
    }
    assert limits == {"memory": str(2 * 2**30), "cpu": "2"}


def test_inside_the_cluster_it_is_reached_by_its_own_address() -> None:
    threads = set(threading.enumerate())
    with started(access="cluster") as (provider, base_url):
        address = seen(provider)["status"]["podIP"]
        with ew.make(base_url, token=provider.token) as env:
            env.reset()
            reward = env.step({"message": "hi"}).reward

        assert (base_url, reward) == (f"http://{address}:8000", 0.2)
        assert set(threading.enumerate()) == threads


def test_it_has_a_service_if_requested() -> None:
    with started(service=True) as (provider, _):
        service = seen(provider, "services")
        labels = seen(provider)["metadata"]["labels"]

        assert service["spec"]["selector"].items() <= labels.items()
        assert service["spec"]["ports"][0]["port"] == 8000
    with unawaited(service=True, access="cluster") as (provider, base_url):
        address = seen(provider, "services")["spec"]["clusterIP"]

        assert base_url == f"http://{address}:8000"
    assert names("services", own_mark()) == []


@contextmanager
def unawaited(**options: Any) -> Iterator[tuple[KubernetesProvider, str]]:
    """A pod that is not waited for."""
    provider = KubernetesProvider(**{**QUICK, **options})
    try:
        yield provider, provider.start_container(ECHO)
    finally:
        provider.stop_container()


def test_options_of_the_caller_are_passed_on() -> None:
    provider = KubernetesProvider(**QUICK)
    try:
        base_url = provider.start_container(
            ECHO,
            env_vars={"ENVWEAVE_TOKEN": "mine", "GREETING": "$(HOME)"},
            memory="256m",
            labels={"team": "rl"},
        )
        about = seen(provider)

        assert provider.token == "mine"
        assert about["spec"]["containers"][0]["resources"]["limits"]["memory"] == str(256 * 2**20)
        assert about["metadata"]["labels"]["team"] == "rl"
        with pytest.raises(CallOrderError, match="started a pod already"):
            provider.start_container(ECHO)
        provider.wait_for_ready(base_url, READY_S)
        output = inside(str(provider.pod), "import os; print(os.environ['GREETING'])")
    finally:
        provider.stop_container()
        provider.stop_container()

    assert output == "$(HOME)"


# What goes wrong


def test_a_missing_image_is_reported_at_once() -> None:
    message = failing("no-such-image:1", image_pull_policy="Never")

    assert "of 'no-such-image:1' cannot be started (ErrImageNeverPull)" in message
    assert "use 'IfNotPresent'" in message


def test_an_image_that_cannot_be_pulled_is_reported_at_once() -> None:
    message = failing("127.0.0.1:1/no-such-image:1")

    assert "cannot be started (ErrImagePull)" in message or "(ImagePullBackOff)" in message
    assert "127.0.0.1:1" in message
    assert "Push the image" in message


def test_an_invalid_image_name_is_reported_at_once() -> None:
    assert "(InvalidImageName)" in failing("No Such Image")


def test_a_pod_too_large_for_every_node_is_reported_with_the_schedulers_message() -> None:
    message = failing(memory="900t", memory_request="800t", schedule_timeout_s=1)

    assert "finds no node to run on (Unschedulable)" in message
    assert "Insufficient memory" in message


def test_a_missing_node_is_reported_with_the_schedulers_message() -> None:
    message = failing(node_selector={"no-such": "node"}, schedule_timeout_s=1)

    assert "node(s) didn't match" in message


def test_a_server_that_exits_shows_its_last_lines() -> None:
    code = "for i in range(40): print('line', i)\nraise SystemExit(7)"

    message = failing(command=["python", "-c", code])

    lines = "\n".join(f"line {i}" for i in range(20, 40))
    assert message.endswith(
        f"of 'envweave-base:latest' exited with code 7. Its last lines:\n{lines}"
    )


def test_a_server_that_runs_out_of_memory_is_reported() -> None:
    code = "print('so much', flush=True); x = bytearray(2**30); x[:] = b'1' * 2**30"

    message = failing(command=["python", "-c", code], memory="64m")

    assert "ran out of memory: it needed more than 64 MiB, and was killed (OOMKilled" in message
    assert message.endswith("so much")


def test_a_server_that_starts_too_slowly_is_reported_with_its_log() -> None:
    code = "print('soon', flush=True); import time; time.sleep(60)"

    message = failing(command=["python", "-c", code], timeout_s=8)

    assert message.endswith("did not answer within 8 s. Its last lines:\nsoon")


def test_a_missing_program_is_reported() -> None:
    assert "no-such-program" in failing(command=["no-such-program"])


def test_an_image_that_runs_as_root_is_refused_with_the_option_that_allows_it() -> None:
    message = failing("envweave-python:3.11")

    assert "CreateContainerConfigError" in message
    assert "user='1000:1000'" in message


def test_a_missing_namespace_is_reported() -> None:
    with pytest.raises(StartupError, match=r'namespace.*"no-such" not found'):
        KubernetesProvider(namespace="no-such").start_container(ECHO)


def test_a_refusal_of_the_cluster_is_reported() -> None:
    with pytest.raises(
        StartupError, match=r"could not be made in the namespace 'default'.*invalid"
    ):
        KubernetesProvider(tolerations=[{"operator": "Never"}]).start_container(ECHO)


def test_a_pod_is_deleted_after_its_ttl() -> None:
    message = failing(command=["python", "-c", "import time; time.sleep(100)"], ttl_s=10)

    assert "more than ttl_s=10 seconds (DeadlineExceeded)" in message


def test_an_environment_that_cannot_be_made_raises_as_in_this_process() -> None:
    provider = KubernetesProvider(**QUICK)
    config = {"id": "counter-v0", "kwargs": {"done_att": 2}}
    try:
        base_url = provider.start_container(BASE, env_vars={"ENVWEAVE_CONFIG": json.dumps(config)})

        with pytest.raises(OptionError, match="'done_att' is neither an option") as caught:
            provider.wait_for_ready(base_url, READY_S)
    finally:
        provider.stop_container()

    assert caught.value.__notes__ == ["Raised in a container of 'envweave-base:latest'."]

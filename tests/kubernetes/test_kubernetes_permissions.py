"""The permissions that the guide lists are enough; `watch` is optional."""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from containers import ECHO, READY_S, names, need_own_cluster, official
from hostile_servers import CuttingProxy

import envweave as ew
from envweave import KubernetesProvider
from envweave.errors import StartupError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kubernetes,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("pods"),
]

PAGE = (Path(__file__).parents[2] / "docs/guides/kubernetes.md").read_text()
(ROLE,) = re.findall(r"^```text\n(apiVersion: rbac.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Callable[[dict[str, Any]], str]]:
    """Return what makes a user with a role, and returns the kubeconfig of that user."""
    from kubernetes import client

    who = f"tester-{secrets.token_hex(4)}"
    with official() as api:
        rbac = client.RbacAuthorizationV1Api(api.api_client)

        def admit(role: dict[str, Any]) -> str:
            about = {"metadata": {"name": who}}
            api.create_namespaced_service_account("default", about)
            rbac.create_namespaced_role("default", {**role, **about})
            bound = {
                **about,
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": who},
                "subjects": [{"kind": "ServiceAccount", "name": who, "namespace": "default"}],
            }
            rbac.create_namespaced_role_binding("default", bound)
            asked = {"spec": {"expirationSeconds": 3600, "audiences": None}}
            token = api.create_namespaced_service_account_token(who, "default", asked).status.token
            config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
            for one in config["users"]:
                one["user"] = {"token": token}
            (tmp_path / "config").write_text(yaml.safe_dump(config))
            return str(tmp_path / "config")

        yield admit
        rbac.delete_namespaced_role_binding(who, "default")
        rbac.delete_namespaced_role(who, "default")
        api.delete_namespaced_service_account(who, "default")


@pytest.mark.parametrize("may_watch", [True, False])
def test_the_guides_role_is_enough(
    limited: Callable[[dict[str, Any]], str], *, may_watch: bool
) -> None:
    role = yaml.safe_load(ROLE)
    if not may_watch:
        for rule in role["rules"]:
            rule["verbs"] = [verb for verb in rule["verbs"] if verb != "watch"]
    provider = KubernetesProvider(
        kubeconfig=limited(role), service=True, cpu_request=0.05, memory_request="32m"
    )

    try:
        base_url = provider.start_container(ECHO)
        provider.wait_for_ready(base_url, READY_S)
        with ew.make(base_url, token=provider.token) as env:
            env.reset()
            reward = env.step({"message": "hi"}).reward
        name = provider.pod
    finally:
        provider.stop_container()

    assert reward == 0.2
    assert name not in [*names("pods"), *names("secrets"), *names("services")]


def test_a_missing_permission_is_named(limited: Callable[[dict[str, Any]], str]) -> None:
    role = yaml.safe_load(ROLE)
    role["rules"] = [one for one in role["rules"] if "secrets" not in one["resources"]]

    with pytest.raises(
        StartupError, match=r"cannot create resource .secrets.*Ask for this permission"
    ):
        KubernetesProvider(kubeconfig=limited(role)).start_container(ECHO)


def test_a_broken_watch_is_restarted(tmp_path: Path) -> None:
    need_own_cluster()
    config = Path(os.environ["KUBECONFIG"]).read_text()
    (port,) = re.findall(r"127\.0\.0\.1:(\d+)", config)
    proxy = CuttingProxy(("127.0.0.1", int(port)), seed=0, mean_bytes=10**9)
    (tmp_path / "config").write_text(config.replace(f":{port}", f":{proxy.port}"))
    nowhere = {"node_selector": {"no-such": "node"}, "schedule_timeout_s": 3, "stop_timeout_s": 0}
    provider = KubernetesProvider(kubeconfig=str(tmp_path / "config"), **nowhere)
    messages: list[str] = []

    def wait(base_url: str) -> None:
        with pytest.raises(StartupError) as caught:
            provider.wait_for_ready(base_url, READY_S)
        messages.append(str(caught.value))

    with proxy:
        try:
            waiting = threading.Thread(target=wait, args=(provider.start_container(ECHO),))
            waiting.start()
            while waiting.is_alive():
                proxy.cut_all()
                waiting.join(0.5)
        finally:
            provider.stop_container()

    assert proxy.cuts > 0
    assert "finds no node to run on (Unschedulable)" in messages[0]

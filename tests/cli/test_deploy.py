"""`envweave deploy`: the printed manifests, and invalid arguments."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml


@pytest.fixture
def run(envweave: Any) -> Callable[..., Any]:
    """Runs `envweave deploy` in this process."""
    return lambda *arguments: envweave("deploy", *arguments)


@pytest.fixture
def manifests(run: Any) -> Callable[..., dict[str, Any]]:
    """Returns the manifests of a dry run by their kind."""

    def printed(*arguments: str) -> dict[str, Any]:
        ran = run(*arguments, "--dry-run")
        assert ran.code == 0, ran.stderr
        return {one["kind"]: one for one in yaml.safe_load_all(ran.stdout)}

    return printed


def test_a_dry_run_prints_the_manifests(manifests: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVWEAVE_TOKEN", "mine")

    made = manifests("counter-v0", "--arg", "done_at=5", "--memory", "512m", "--cpus", "0.5")

    report = json.loads(made["Secret"]["stringData"]["ENVWEAVE_CONFIG"])
    template = made["Deployment"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert list(made) == ["Secret", "Deployment", "Service"]
    assert {one["metadata"]["name"] for one in made.values()} == {"counter-v0"}
    assert made["Secret"]["stringData"]["ENVWEAVE_TOKEN"] == "mine"
    assert (report["id"], report["kwargs"]) == ("counter-v0", {"done_at": 5})
    assert "counter-v0.default.svc" in report["options"]["allowed_hosts"]
    assert container["image"] == "counter-env:latest"
    assert container["resources"]["limits"] == {"memory": str(2**29), "cpu": "500m"}
    assert template["spec"]["automountServiceAccountToken"] is False
    chosen = made["Deployment"]["spec"]["selector"]["matchLabels"]
    assert chosen.items() <= template["metadata"]["labels"].items()
    assert made["Service"]["spec"]["selector"] == chosen


def test_the_same_as_json_for_programs(run: Any) -> None:
    ran = run("echo-v0", "--image", "registry.example/echo:1", "--dry-run", "--json")

    listed = json.loads(ran.stdout)
    assert [one["kind"] for one in listed["items"]] == ["Secret", "Deployment", "Service"]


def test_a_namespace_is_part_of_its_name(manifests: Any) -> None:
    made = manifests("echo-v0", "--namespace", "envs", "--max-sessions", "7")

    report = json.loads(made["Secret"]["stringData"]["ENVWEAVE_CONFIG"])
    assert {one["metadata"]["namespace"] for one in made.values()} == {"envs"}
    assert "echo-v0.envs.svc" in report["options"]["allowed_hosts"]
    assert report["options"]["max_sessions"] == 7


def test_a_server_with_another_configuration_is_restarted(
    manifests: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def marks(token: str, *arguments: str) -> str:
        monkeypatch.setenv("ENVWEAVE_TOKEN", token)
        template = manifests("counter-v0", *arguments)["Deployment"]["spec"]["template"]
        return json.dumps(template["metadata"]["annotations"])

    first = marks("mine")

    assert marks("mine") == first
    assert len({first, marks("other"), marks("mine", "--arg", "done_at=5")}) == 3


def test_no_two_deployments_have_the_same_token(
    manifests: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ENVWEAVE_TOKEN", raising=False)

    tokens = {manifests("echo-v0")["Secret"]["stringData"]["ENVWEAVE_TOKEN"] for _ in range(2)}

    assert len(tokens) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pkg://my_module:MyEnv"], "No image is known for 'pkg://my_module:MyEnv'"),
        (
            ["echo-v0", "--memory", "lots"],
            "memory must be a size in bytes, or a string such as '512m', got 'lots'",
        ),
        (["echo-v0", "--namespace", "A B"], "namespace='A B' is not a valid Kubernetes name"),
        (["123-v0"], "No service name can be made"),
        (["echo-v0", "--name", "My Echo"], "--name 'My Echo' is not a valid service name"),
    ],
)
def test_an_invalid_deployment_is_refused(run: Any, arguments: list[str], message: str) -> None:
    ran = run(*arguments, "--dry-run")

    assert ran.code != 0
    assert message in " ".join(ran.stderr.split())

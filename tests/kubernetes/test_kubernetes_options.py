"""Valid and invalid options of a pod, and the manifests made from them."""

from __future__ import annotations

from typing import Any

import pytest

from envweave import KubernetesProvider
from envweave.errors import CallOrderError, OptionError
from envweave.providers.kubernetes.manifests import owned, pod, secret, spec
from envweave.providers.kubernetes.options import KubernetesOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memroy": "1g"}, r"no option 'memroy'\. Did you mean 'memory'\?"),
        ({"memory": "lots"}, r"memory must be a size .*, got 'lots'"),
        ({"memory": "1m"}, r"memory must be at least 16 MiB"),
        ({"memory_request": "3g"}, r"memory_request='3g' is more than memory='2g'"),
        ({"memory_request": ""}, r"memory_request must be a size .*, got ''"),
        ({"tmp_size": 1}, r"tmp_size must be at least 4 KiB, got 1"),
        ({"cpus": 0}, r"cpus must be a number >= .*, got 0"),
        ({"cpus": float("nan")}, r"cpus must be a number >= .*, got nan"),
        ({"cpus": True}, r"cpus must be a number >= .*, got True"),
        ({"cpu_request": 3}, r"cpu_request=3 is more than cpus=2.0"),
        ({"ttl_s": 1}, r"ttl_s must be a number >= 10, got 1"),
        ({"ttl_s": float("inf")}, r"ttl_s must be a number >= .*, got inf"),
        ({"stop_timeout_s": -1}, r"stop_timeout_s must be a number >= 0, got -1"),
        ({"container_port": 70000}, r"container_port must be an integer .*, got 70000"),
        ({"read_only": 1}, r"read_only must be True or False, got 1"),
        ({"service": "yes"}, r"service must be True or False, got 'yes'"),
        ({"access": "tunnel"}, r"access must be one of 'forward', 'cluster', got 'tunnel'"),
        (
            {"image_pull_policy": "never"},
            r"image_pull_policy must be one of .*, got 'never'.*'Never'\?",
        ),
        ({"user": "alice"}, r"user must be a number, .*got 'alice'"),
        ({"command": "python"}, r"command must be a list of strings, got 'python'"),
        ({"capabilities": "CHOWN"}, r"capabilities must be a list of strings, got 'CHOWN'"),
        ({"namespace": "My_Space"}, r"namespace='My_Space' is not a valid Kubernetes name"),
        ({"kubeconfig": " "}, r"kubeconfig must be a non-empty string, got ' '"),
        ({"labels": {"a b": "c"}}, r"labels=\{'a b': 'c'\} is not a valid Kubernetes label"),
        ({"labels": {"envweave.owner": "me"}}, r"such labels are set by envweave"),
        ({"labels": ["a"]}, r"labels must be a dict of strings, got \['a'\]"),
        (
            {"node_selector": {"gpu": True}},
            r"node_selector=\{'gpu': True\} is not a valid Kubernetes label",
        ),
        ({"tolerations": {"key": "gpu"}}, r"tolerations must be a list of dicts"),
        ({"env_vars": {"A": 1}}, r"env_vars: A must be a string without NUL, got int"),
        ({"pod_spec": {"restartPolicy": "Always"}}, r"It is always 'Never'"),
        ({"pod_spec": {"nodeSelector": {}}}, r"is set by envweave\. Use node_selector"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        KubernetesProvider(**options)


def test_a_pod_has_few_privileges() -> None:
    pod_spec = spec("name", "echo-env:1", KubernetesOptions(), {"TOKEN": "secret"})
    (container,) = pod_spec["containers"]

    assert pod_spec["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": []},
        "privileged": False,
        "readOnlyRootFilesystem": True,
    }
    assert pod_spec["automountServiceAccountToken"] is False
    assert container["resources"] == {
        "limits": {"memory": str(2 * 2**30), "cpu": "2000m"},
        "requests": {"memory": str(2**29), "cpu": "500m"},
    }
    assert "secret" not in str({**pod_spec, "containers": [{**container, "env": None}]})
    assert container["env"] == [
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "name", "key": "TOKEN"}}}
    ]


def test_options_are_in_the_manifest() -> None:
    options = KubernetesOptions(
        user="1000:2000",
        capabilities=["CHOWN"],
        command=["serve"],
        memory="1g",
        memory_request="512m",
        cpu_request=0.5,
        container_port=9000,
        node_selector={"pool": "envs"},
        tolerations=[{"key": "gpu", "operator": "Exists"}],
        pull_secrets=["mine"],
        runtime_class="gvisor",
        service_account="envs",
        labels={"team": "rl"},
        pod_spec={"priorityClassName": "low"},
        ttl_s=60.5,
    )

    made = pod("name", "echo-env:1", options, {}, owned(options))

    pod_spec = made["spec"]
    (container,) = pod_spec["containers"]
    assert pod_spec["securityContext"]["runAsUser"] == 1000
    assert pod_spec["securityContext"]["runAsGroup"] == 2000
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    assert container["command"] == ["serve"]
    assert container["resources"]["requests"] == {"memory": str(2**29), "cpu": "500m"}
    assert container["ports"] == [{"containerPort": 9000, "name": "http"}]
    assert pod_spec["nodeSelector"] == {"pool": "envs"}
    assert pod_spec["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert pod_spec["imagePullSecrets"] == [{"name": "mine"}]
    assert (pod_spec["runtimeClassName"], pod_spec["serviceAccountName"]) == ("gvisor", "envs")
    assert pod_spec["priorityClassName"] == "low"
    assert (pod_spec["restartPolicy"], pod_spec["activeDeadlineSeconds"]) == ("Never", 61)
    assert made["metadata"]["labels"]["team"] == "rl"
    assert made["metadata"]["labels"]["envweave.owner"] == ""


def test_a_pod_runs_as_root_only_if_requested() -> None:
    def may_not_be_root(**options: Any) -> bool:
        pod_spec = spec("name", "image", KubernetesOptions(**options), {})
        return bool(pod_spec["securityContext"]["runAsNonRoot"])

    assert [may_not_be_root(), may_not_be_root(user="5"), may_not_be_root(user="0")] == [
        True,
        True,
        False,
    ]


def test_a_variable_that_no_pod_can_have_is_refused() -> None:
    with pytest.raises(OptionError, match="'1=A' is not a valid name"):
        KubernetesOptions(env_vars={"1=A": ""})
    with pytest.raises(OptionError, match="'%' is not a valid name in a pod"):
        secret("name", {"%": ""}, {})


def test_a_ttl_beyond_the_calendar_is_limited() -> None:
    options = KubernetesOptions(ttl_s=1e300)

    made = pod("name", "image", options, {}, owned(options))

    assert made["spec"]["activeDeadlineSeconds"] == 2**31 - 1


def test_calls_in_the_wrong_order_are_refused() -> None:
    provider = KubernetesProvider()
    provider.stop_container()

    assert (provider.pod, provider.token, provider.namespace) == (None, None, None)
    assert provider.why_gone() is None
    with pytest.raises(CallOrderError, match="No pod was started"):
        provider.wait_for_ready("http://127.0.0.1:1")
    with pytest.raises(OptionError, match="is not the name of an image"):
        provider.start_container(" ")
    with pytest.raises(OptionError, match="access='cluster' uses none"):
        provider.start_container("echo-env:1", 8000, access="cluster")


def test_a_copy_of_the_provider_has_the_same_options() -> None:
    provider = KubernetesProvider(memory="1g").another()

    with pytest.raises(OptionError, match="memory_request='2g' is more than memory='1g'"):
        provider.start_container("echo-env:1", memory_request="2g")

"""What a pod can be given, what it cannot, and what the cluster is told of it."""

from __future__ import annotations

from typing import Any

import pytest

from envweave.errors import CallOrderError, OptionError
from envweave.providers.kubernetes.manifests import owned, pod, secret, spec
from envweave.providers.kubernetes.options import KubernetesOptions
from envweave.providers.kubernetes.provider import KubernetesProvider


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"memroy": "1g"}, r"no option 'memroy'\. Did you mean 'memory'\?"),
        ({"memory": "lots"}, r"memory='lots' is no size"),
        ({"memory": "1m"}, r"less than 16 MiB"),
        ({"memory_request": "3g"}, r"memory_request='3g' is more than memory='2g'"),
        ({"memory_request": ""}, r"memory_request='' is no size"),
        ({"tmp_size": 1}, r"tmp_size=1 is less than 4 KiB"),
        ({"cpus": 0}, r"cpus=0 is no number"),
        ({"cpus": float("nan")}, r"cpus=nan is no number"),
        ({"cpus": True}, r"cpus=True is no number"),
        ({"cpu_request": 3}, r"cpu_request=3 is more than cpus=2.0"),
        ({"ttl_s": 1}, r"ttl_s=1 is no number of 10 or more"),
        ({"ttl_s": float("inf")}, r"ttl_s=inf is no number"),
        ({"stop_timeout_s": -1}, r"stop_timeout_s=-1 is no number of 0 or more"),
        ({"container_port": 70000}, r"container_port=70000 is no whole number"),
        ({"read_only": 1}, r"read_only=1 is neither True nor False"),
        ({"service": "yes"}, r"service='yes' is neither True nor False"),
        ({"access": "tunnel"}, r"access='tunnel' is none of 'forward', 'cluster'"),
        ({"image_pull_policy": "never"}, r"image_pull_policy='never' is none .*'Never'\?"),
        ({"user": "alice"}, r"user='alice' is no number"),
        ({"command": "python"}, r"command='python' is no list of texts"),
        ({"capabilities": "CHOWN"}, r"capabilities='CHOWN' is no list"),
        ({"namespace": "My_Space"}, r"namespace='My_Space' is no name in Kubernetes"),
        ({"kubeconfig": " "}, r"kubeconfig=' ' is no text"),
        ({"labels": {"a b": "c"}}, r"labels=\{'a b': 'c'\} is no label"),
        ({"labels": {"envweave.owner": "me"}}, r"such labels are set by envweave"),
        ({"labels": ["a"]}, r"labels=\['a'\] is no dict"),
        ({"node_selector": {"gpu": True}}, r"node_selector=\{'gpu': True\} is no label"),
        ({"tolerations": {"key": "gpu"}}, r"tolerations=.* is no list of dicts"),
        ({"env_vars": {"A": 1}}, r"env_vars: A has a int"),
        ({"pod_spec": {"restartPolicy": "Always"}}, r"It is always 'Never'"),
        ({"pod_spec": {"nodeSelector": {}}}, r"is set by envweave\. Use node_selector"),
    ],
)
def test_what_no_pod_can_be_given_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        KubernetesProvider(**options)


def test_a_pod_has_as_few_rights_as_it_can_do_with() -> None:
    told = spec("name", "echo-env:1", KubernetesOptions(), {"TOKEN": "secret"})
    (container,) = told["containers"]

    assert told["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": []},
        "privileged": False,
        "readOnlyRootFilesystem": True,
    }
    assert told["automountServiceAccountToken"] is False
    assert container["resources"] == {
        "limits": {"memory": str(2 * 2**30), "cpu": "2000m"},
        "requests": {"memory": str(2**29), "cpu": "500m"},
    }
    assert "secret" not in str({**told, "containers": [{**container, "env": None}]})
    assert container["env"] == [
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "name", "key": "TOKEN"}}}
    ]


def test_what_is_wanted_is_told_to_the_cluster() -> None:
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

    told = made["spec"]
    (container,) = told["containers"]
    assert told["securityContext"]["runAsUser"] == 1000
    assert told["securityContext"]["runAsGroup"] == 2000
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    assert container["command"] == ["serve"]
    assert container["resources"]["requests"] == {"memory": str(2**29), "cpu": "500m"}
    assert container["ports"] == [{"containerPort": 9000, "name": "http"}]
    assert told["nodeSelector"] == {"pool": "envs"}
    assert told["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert told["imagePullSecrets"] == [{"name": "mine"}]
    assert (told["runtimeClassName"], told["serviceAccountName"]) == ("gvisor", "envs")
    assert told["priorityClassName"] == "low"
    assert (told["restartPolicy"], told["activeDeadlineSeconds"]) == ("Never", 61)
    assert made["metadata"]["labels"]["team"] == "rl"
    assert made["metadata"]["labels"]["envweave.owner"] == ""


def test_root_is_a_pods_user_only_if_that_is_said() -> None:
    def may_not_be_root(**options: Any) -> bool:
        told = spec("name", "image", KubernetesOptions(**options), {})
        return bool(told["securityContext"]["runAsNonRoot"])

    assert [may_not_be_root(), may_not_be_root(user="5"), may_not_be_root(user="0")] == [
        True,
        True,
        False,
    ]


def test_a_variable_that_no_pod_can_have_is_refused() -> None:
    with pytest.raises(OptionError, match="'1=A' is no name of an environment variable"):
        KubernetesOptions(env_vars={"1=A": ""})
    with pytest.raises(OptionError, match="'%' is no name of a variable in a pod"):
        secret("name", {"%": ""}, {})


def test_a_life_beyond_all_calendars_has_an_end() -> None:
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
    with pytest.raises(OptionError, match="is no image's name"):
        provider.start_container(" ")
    with pytest.raises(OptionError, match="access='cluster' uses none"):
        provider.start_container("echo-env:1", 8000, access="cluster")


def test_another_has_the_same_options() -> None:
    provider = KubernetesProvider(memory="1g").another()

    with pytest.raises(OptionError, match="memory_request='2g' is more than memory='1g'"):
        provider.start_container("echo-env:1", memory_request="2g")

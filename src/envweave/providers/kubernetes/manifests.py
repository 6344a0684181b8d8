"""The manifests of a pod, its secret and its service, as plain data."""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from envweave.errors import OptionError
from envweave.providers.cleanup import OWNER, Owner
from envweave.providers.docker.options import parse_size
from envweave.providers.kubernetes.options import KubernetesOptions

CONTAINER = "server"
"""The name of a pod's container."""

EXPIRES = "envweave.expires"
"""The annotation with the time when a pod expires."""

APP = {"app.kubernetes.io/managed-by": "envweave"}

_VARIABLE = re.compile(r"[-._A-Za-z][-._A-Za-z0-9]*")
_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_SECONDS = 2**31 - 1


def secret(name: str, values: Mapping[str, str], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the secret with a server's environment variables.

    Raises:
        OptionError: One has a name that is invalid in a pod.
    """
    for variable in values:
        if not _VARIABLE.fullmatch(variable):
            raise OptionError(
                f"env_vars: {variable!r} is not a valid name in a pod. Use letters, digits, '_', "
                "'-' and '.'."
            )
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, **about},
        "type": "Opaque",
        "stringData": dict(values),
    }


def pod(
    name: str,
    image: str,
    options: KubernetesOptions,
    variables: Mapping[str, str],
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a pod that runs a server once, and is never started again."""
    labels = {**about.get("labels", {}), "envweave.pod": name}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **about, "labels": labels},
        "spec": {
            "restartPolicy": "Never",  # its episodes would be lost
            "activeDeadlineSeconds": min(_MOST_SECONDS, math.ceil(options.ttl_s)),
            **spec(name, image, options, variables),
        },
    }


def spec(
    secret_name: str, image: str, options: KubernetesOptions, variables: Mapping[str, str]
) -> dict[str, Any]:
    """Return the spec of a pod with few privileges."""
    user, group = options.user_and_group
    identity: dict[str, Any] = {"runAsNonRoot": user != 0}
    if user is not None:
        identity["runAsUser"] = user
    if group is not None:
        identity["runAsGroup"] = group
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": options.image_pull_policy,
        "env": [_variable(one, secret_name) for one in variables],
        "ports": [{"containerPort": options.port, "name": "http"}],
        "resources": options.resources(),
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": options.port},
            "periodSeconds": 1,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": list(options.capabilities)},
            "privileged": False,
            "readOnlyRootFilesystem": options.read_only,
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - the pod's own
    }
    if options.command is not None:
        container["command"] = list(options.command)
    tmp = {"medium": "Memory", "sizeLimit": str(parse_size("tmp_size", options.tmp_size))}
    pod_spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": round(options.stop_timeout_s),
        "securityContext": {**identity, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": tmp}],
        "nodeSelector": dict(options.node_selector),
        "tolerations": [dict(one) for one in options.tolerations],
        "imagePullSecrets": [{"name": one} for one in options.pull_secrets],
        **options.pod_spec,
    }
    if options.runtime_class is not None:
        pod_spec["runtimeClassName"] = options.runtime_class
    if options.service_account is not None:
        pod_spec["serviceAccountName"] = options.service_account
    return {key: value for key, value in pod_spec.items() if value != [] and value != {}}


def service(
    name: str, selector: Mapping[str, str], port: int, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the service by which a pod is reached inside its cluster."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, **about},
        "spec": {
            "selector": dict(selector),
            "ports": [{"name": "http", "port": port, "targetPort": port}],
        },
    }


def owned(options: KubernetesOptions) -> dict[str, Any]:
    """Return labels and annotations with the owner and the expiry of an object."""
    owner = Owner.here()
    now = datetime.now(UTC)
    # A longer time could overflow the calendar.
    ends = now + timedelta(seconds=min(options.ttl_s, 100 * 365 * 86400.0))
    # Values of labels are too short: the label only marks the object, and the owner is annotated.
    # Not its machine: machines that share a cluster may share a name and a machine id too.
    annotations = {
        **{key: value for key, value in owner.labels().items() if "machine" not in key},
        "envweave.created": now.isoformat(timespec="seconds"),
        EXPIRES: ends.isoformat(timespec="seconds"),
    }
    host = _NOT_IN_LABELS.sub("-", socket.gethostname())[:63].strip("-._")
    labels = {**options.labels, **APP, OWNER: "", "envweave.host": host}
    return {"labels": labels, "annotations": annotations}


def owned_by(made: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch by which an object is deleted together with a pod."""
    reference = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": made["metadata"]["name"],
        "uid": made["metadata"]["uid"],
    }
    return {"metadata": {"ownerReferences": [reference]}}


def _variable(name: str, secret_name: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret_name, "key": name}}}

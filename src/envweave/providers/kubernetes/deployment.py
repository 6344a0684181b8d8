"""The manifests of a permanent server: a secret, a deployment and a service."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from envweave.providers.docker.options import CONFIG
from envweave.providers.kubernetes.cluster import (
    Cluster,
    ClusterRefusedError,
    NoSuchObjectError,
    TakenError,
)
from envweave.providers.kubernetes.manifests import APP, secret, service, spec
from envweave.providers.kubernetes.options import KubernetesOptions

TOKEN = "ENVWEAVE_TOKEN"  # noqa: S105 - the name of a variable
CONFIG_DIGEST = "envweave.config-digest"
"""The annotation that changes with a server's configuration, so that a change restarts it: a pod
reads its secret only once."""

KINDS = {"Secret": "secrets", "Deployment": "deployments", "Service": "services"}


def objects(
    name: str,
    image: str,
    options: KubernetesOptions,
    config: Mapping[str, Any],
    token: str,
    namespace: str = "default",
) -> list[dict[str, Any]]:
    """Return the manifests of a server that is restarted when it ends.

    There is one replica: an episode lives in one server's memory. When that ends, its clients get
    the error that their sessions are gone.

    Args:
        name: The name of all objects.
        image: The image to run.
        options: The options of its pod.
        config: The server's configuration, with the keys of `envweave.cli.server_main`.
        token: The access token for clients.
        namespace: The namespace, which is part of its host names.
    """
    labels = {**options.labels, **APP, "app.kubernetes.io/name": name}
    about: dict[str, Any] = {"labels": labels}
    if options.namespace is not None:
        about["namespace"] = namespace = options.namespace
    names = [name, f"{name}.{namespace}", f"{name}.{namespace}.svc"]
    own = {"allowed_hosts": [*names, f"{names[-1]}.cluster.local"], **(config.get("options") or {})}
    server_env = {CONFIG: json.dumps({**config, "options": own}), TOKEN: token}
    variables = {**options.env_vars, **server_env}
    selector = {"app.kubernetes.io/name": name}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, **about},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {
                    "labels": labels,
                    "annotations": {CONFIG_DIGEST: _digest(name, variables)},
                },
                "spec": spec(name, image, options, variables),
            },
        },
    }
    return [
        secret(name, variables, about),
        deployment,
        service(name, selector, options.port, about),
    ]


def _digest(name: str, variables: Mapping[str, str]) -> str:
    """Return a digest of the configuration from which a token is slow to guess."""
    data = json.dumps(sorted(variables.items())).encode()
    return hashlib.scrypt(data, salt=name.encode(), n=2**14, r=8, p=1, dklen=16).hex()


def token_of(cluster: Cluster, name: str) -> str | None:
    """Return the token of an existing deployment; `None` if there is none, or no permission."""
    try:
        data = cluster.get("secrets", name).get("data") or {}
    except (NoSuchObjectError, ClusterRefusedError):
        return None
    return base64.b64decode(data.get(TOKEN, "")).decode(errors="replace") or None


def apply(cluster: Cluster, manifests: Iterable[Mapping[str, Any]]) -> list[str]:
    """Create or change each object, and return a line about each.

    Raises:
        StartupError: The cluster does not answer, or refuses an object.
    """
    lines = []
    for one in manifests:
        kind, name = KINDS[one["kind"]], one["metadata"]["name"]
        try:
            cluster.create(kind, one)
            lines.append(f"{one['kind'].lower()} {name} made")
        except TakenError:
            cluster.change(kind, name, one)
            lines.append(f"{one['kind'].lower()} {name} changed")
    return lines


def as_yaml(manifests: Iterable[Mapping[str, Any]]) -> str:
    """Return manifests as `kubectl apply -f -` takes them."""
    return "---\n".join("\n".join(_lines(one)) + "\n" for one in manifests)


def _lines(value: Any) -> list[str]:
    """Return plain data as lines of YAML; strings are written as in JSON, which is YAML too."""
    if isinstance(value, Mapping) and value:
        return [line for key, one in value.items() for line in _under(f"{_text(key)}:", one)]
    if isinstance(value, list) and value:
        return [line for one in value for line in _item(_lines(one))]
    return [json.dumps(value)]


def _under(head: str, value: Any) -> list[str]:
    lines = _lines(value)
    if isinstance(value, Mapping | list) and value:
        return [head, *(f"  {line}" for line in lines)]
    return [f"{head} {lines[0]}"]


def _item(lines: list[str]) -> list[str]:
    return [f"- {lines[0]}", *(f"  {line}" for line in lines[1:])]


def _text(key: Any) -> str:
    return str(key) if str(key).replace("_", "").isalnum() else json.dumps(str(key))

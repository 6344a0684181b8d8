"""A server that stays in a cluster, as manifests: a secret, a deployment and a service."""

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
TOLD = "envweave.told"
"""The annotation that changes with what a server is told, so that a change starts it anew: a pod
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
    """Return what a server needs that stays, and is started again when it ends.

    There is one of it: an episode lives in one server's memory. When that ends, its callers are
    told that their sessions are gone.

    Args:
        name: What all of it is called.
        image: What to run.
        options: What it is given.
        config: What the server is told, with the keys of `envweave.cli.server_main`.
        token: What callers must show.
        namespace: Where it is, as far as its callers' names for it depend on that.
    """
    labels = {**options.labels, **APP, "app.kubernetes.io/name": name}
    about: dict[str, Any] = {"labels": labels}
    if options.namespace is not None:
        about["namespace"] = namespace = options.namespace
    names = [name, f"{name}.{namespace}", f"{name}.{namespace}.svc"]
    own = {"allowed_hosts": [*names, f"{names[-1]}.cluster.local"], **(config.get("options") or {})}
    told = {CONFIG: json.dumps({**config, "options": own}), TOKEN: token}
    variables = {**options.env_vars, **told}
    chosen = {"app.kubernetes.io/name": name}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, **about},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": chosen},
            "template": {
                "metadata": {"labels": labels, "annotations": {TOLD: _digest(name, variables)}},
                "spec": spec(name, image, options, variables),
            },
        },
    }
    return [
        secret(name, variables, about),
        deployment,
        service(name, chosen, options.port, about),
    ]


def _digest(name: str, variables: Mapping[str, str]) -> str:
    """Return what tells apart what servers are told, and is slow to guess a token from."""
    told = json.dumps(sorted(variables.items())).encode()
    return hashlib.scrypt(told, salt=name.encode(), n=2**14, r=8, p=1, dklen=16).hex()


def token_of(cluster: Cluster, name: str) -> str | None:
    """Return the token of what is deployed already; `None` if there is none that we may read."""
    try:
        kept = cluster.get("secrets", name).get("data") or {}
    except (NoSuchObjectError, ClusterRefusedError):
        return None
    return base64.b64decode(kept.get(TOKEN, "")).decode(errors="replace") or None


def apply(cluster: Cluster, manifests: Iterable[Mapping[str, Any]]) -> list[str]:
    """Make what is not there, change what is, and return a line on each.

    Raises:
        StartupError: The cluster does not answer, or will not have it.
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
    """Return plain data as lines of YAML; texts are written as in JSON, which is YAML too."""
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

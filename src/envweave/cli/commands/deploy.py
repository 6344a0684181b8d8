"""`envweave deploy`: deploy the server of an environment to a Kubernetes cluster."""

from __future__ import annotations

import os
import re
import secrets
from typing import Annotated, Any

import typer

from envweave.cli import arguments, output
from envweave.errors import OptionError

_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def deploy_command(
    env_id: arguments.EnvId,
    image: Annotated[
        str | None,
        typer.Option(
            help="Image that serves it, as the cluster pulls it; default: NAME-env:latest.",
            metavar="IMAGE",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name in the cluster; default: from the ID."),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(help="Namespace; default: that of the current context.")
    ] = None,
    memory: Annotated[str, typer.Option(help="Memory limit.", metavar="SIZE")] = "2g",
    cpus: Annotated[float, typer.Option(help="CPU limit, in cores.", metavar="N", min=0.01)] = 2.0,
    max_sessions: Annotated[
        int | None,
        typer.Option(help="Maximum number of concurrent sessions.", metavar="N", min=1),
    ] = None,
    runtime_class: Annotated[
        str | None, typer.Option(help="Runtime class, such as gvisor.", metavar="NAME")
    ] = None,
    arg: arguments.Keywords = None,
    kubeconfig: Annotated[
        str | None,
        typer.Option(help="Path of the kubeconfig file; default: KUBECONFIG."),
    ] = None,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig file.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", metavar="", help="Print the manifests and change nothing."),
    ] = False,
    json: arguments.Json = False,
) -> int:
    """Serve an environment in a Kubernetes cluster until it is deleted there.

    Creates a deployment of one pod, a service, and a secret with the token that clients must
    send: ENVWEAVE_TOKEN if that is set, else the existing one, else a random one. Deploying again
    restarts the pod if anything has changed. With --dry-run only the manifests are printed, for
    `kubectl apply -f -`.
    """
    from envweave.providers.kubernetes.deployment import apply, as_yaml, objects, token_of
    from envweave.providers.kubernetes.options import KubernetesOptions

    called = _make_name(env_id) if name is None else name
    if not _NAME.fullmatch(called):
        raise OptionError(
            f"--name {called!r} is not a valid service name: it must begin with a lower-case "
            "letter, and have only lower-case letters, digits and '-', 63 at most."
        )
    options = KubernetesOptions(
        memory=memory,
        cpus=cpus,
        namespace=namespace,
        runtime_class=runtime_class,
        kubeconfig=kubeconfig,
        context=context,
    )
    server: dict[str, Any] = {} if max_sessions is None else {"max_sessions": max_sessions}
    config = {"id": env_id, "kwargs": arguments.read_keywords(arg), "options": server}
    given = os.environ.get("ENVWEAVE_TOKEN", "").strip()
    run = image or _find_image(env_id)
    if dry_run:
        made = objects(called, run, options, config, given or secrets.token_urlsafe(24))
        if json:
            output.write_json({"apiVersion": "v1", "kind": "List", "items": made})
        else:
            typer.echo(as_yaml(made), nl=False)
        return 0
    from envweave.providers.kubernetes.cluster import Cluster

    cluster = Cluster(kubeconfig, context, namespace)
    try:
        token = given or token_of(cluster, called) or secrets.token_urlsafe(24)
        made = objects(called, run, options, config, token, cluster.namespace)
        lines = apply(cluster, made)
    finally:
        cluster.close()
    url = f"http://{called}.{cluster.namespace}.svc:{options.port}"
    if json:
        output.write_json({"name": called, "namespace": cluster.namespace, "url": url})
        return 0
    where = output.console()
    for line in lines:
        where.print(line, soft_wrap=True)
    space = f"--namespace {cluster.namespace}"
    for line in (
        f"URL in the cluster: {url}",
        f"Status: kubectl {space} rollout status deployment/{called}",
        f"From here: kubectl {space} port-forward service/{called} {options.port}:{options.port}",
        f"Token: kubectl {space} get secret {called} "
        "-o jsonpath='{.data.ENVWEAVE_TOKEN}' | base64 -d",
        f"Remove: kubectl {space} delete deployment,service,secret {called}",
    ):
        where.print(line, soft_wrap=True)
    return 0


def _make_name(env_id: str) -> str:
    """Return the name of an environment in a cluster."""
    found = _NOT_IN_NAMES.sub("-", env_id.lower()).strip("-")[:50].rstrip("-")
    if not found or not found[0].isalpha():
        raise OptionError(f"No service name can be made from {env_id!r}. Pass --name.")
    return found


def _find_image(env_id: str) -> str:
    from envweave.providers.docker.options import image_of

    found = image_of(env_id)
    if found is None:
        raise OptionError(f"No image is known for {env_id!r}. Pass --image.")
    return found

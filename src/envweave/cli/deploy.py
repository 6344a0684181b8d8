"""`envweave deploy`: an environment's server in a Kubernetes cluster, to stay."""

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
            help="The image that serves it, as the cluster finds it; NAME-env:latest if left out.",
            metavar="IMAGE",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="What it is called in the cluster; by its ID if left out."),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(help="Where; where the current context says if left out.")
    ] = None,
    memory: Annotated[
        str, typer.Option(help="How much memory it may have.", metavar="SIZE")
    ] = "2g",
    cpus: Annotated[
        float, typer.Option(help="How many cores' worth of time.", metavar="N", min=0.01)
    ] = 2.0,
    max_sessions: Annotated[
        int | None,
        typer.Option(help="How many sessions there may be at once.", metavar="N", min=1),
    ] = None,
    runtime_class: Annotated[
        str | None, typer.Option(help="What runs it, such as gvisor.", metavar="NAME")
    ] = None,
    arg: arguments.Keywords = None,
    kubeconfig: Annotated[
        str | None,
        typer.Option(help="The file that tells of the cluster; KUBECONFIG if left out."),
    ] = None,
    context: Annotated[str | None, typer.Option(help="Which of the file's contexts.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", metavar="", help="Print the manifests, and change nothing."),
    ] = False,
    json: arguments.Json = False,
) -> int:
    """Serve an environment in a Kubernetes cluster, until it is deleted there.

    It is a deployment of one pod, a service, and a secret with the token that callers must show:
    ENVWEAVE_TOKEN if that is set, else the one it has already, else one that nobody can guess.
    What is deployed anew is started anew if anything has changed. With --dry-run nothing but the
    manifests is printed, for `kubectl apply -f -`.
    """
    from envweave.providers.kubernetes.deployment import apply, as_yaml, objects, token_of
    from envweave.providers.kubernetes.options import KubernetesOptions

    called = _name_of(env_id) if name is None else name
    if not _NAME.fullmatch(called):
        raise OptionError(
            f"--name {called!r} is no name for a service in a cluster: a letter, then lower-case "
            "letters, digits and '-', at most 63 in all."
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
    run = image or _image_of(env_id)
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
        f"In the cluster it is at {url}.",
        f"When it is there: kubectl {space} rollout status deployment/{called}",
        f"From here: kubectl {space} port-forward service/{called} {options.port}:{options.port}",
        f"Its token: kubectl {space} get secret {called} "
        "-o jsonpath='{.data.ENVWEAVE_TOKEN}' | base64 -d",
        f"Its end: kubectl {space} delete deployment,service,secret {called}",
    ):
        where.print(line, soft_wrap=True)
    return 0


def _name_of(env_id: str) -> str:
    """Return what an environment is called in a cluster."""
    found = _NOT_IN_NAMES.sub("-", env_id.lower()).strip("-")[:50].rstrip("-")
    if not found or not found[0].isalpha():
        raise OptionError(f"{env_id!r} makes no name for a service in a cluster. Say --name.")
    return found


def _image_of(env_id: str) -> str:
    from envweave.providers.docker.options import image_of

    found = image_of(env_id)
    if found is None:
        raise OptionError(f"Which image has {env_id!r}? Say --image.")
    return found

"""`KubernetesProvider`: a server in a pod of a Kubernetes cluster."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import partial
from typing import Any, final

from envweave.errors import CallOrderError, OptionError
from envweave.lifetime import AtExit, CloseGuard
from envweave.providers.base import WatchedProvider
from envweave.providers.docker.options import CONFIG, check_image_name, variables
from envweave.providers.kubernetes.cleanup import sweep
from envweave.providers.kubernetes.cluster import Cluster
from envweave.providers.kubernetes.options import KubernetesOptions, check_names
from envweave.providers.kubernetes.pod import Pod

TOKEN = "ENVWEAVE_TOKEN"  # noqa: S105 - the name of a variable

_CONFIG = '{"options": {"drain_s": 0}}'
"""The default configuration: a client that stops the server no longer needs its episodes."""


@final
class KubernetesProvider(WatchedProvider):
    """Starts a server in a pod with few privileges.

    By default the pod's root file system is read-only, it is not root and cannot become root, has
    no token of the cluster, and its memory and CPU time are limited. It is reached through the API
    server, at a local port and with the server's token; or, from inside the cluster, at the pod's
    address, with `access="cluster"`.

    ```python
    from envweave.providers.kubernetes.provider import KubernetesProvider

    provider = KubernetesProvider(memory="512m", namespace="envs")

    def play():
        with EchoEnv.from_docker_image("registry.example/echo-env:1.0", provider) as env:
            return env.reset()
    ```

    A pod that ends is never started again: its episodes are lost, and their errors say why. It is
    deleted by `stop_container` and when the process ends. If the process was killed, the next
    process on the same machine that starts a pod deletes it; after `ttl_s` seconds the cluster
    ends it in any case.

    Args:
        **options: The fields of `KubernetesOptions`, such as `memory="512m"`, `cpus=1.0`,
            `namespace="envs"` or `node_selector={"pool": "envs"}`.

    Raises:
        OptionError: There is no such option, or its value is invalid.
    """

    def __init__(self, **options: Any) -> None:
        self._options = KubernetesOptions(**check_names(options))
        self._cluster: Cluster | None = None
        self._pod: Pod | None = None
        self._unstopped: CloseGuard | None = None
        self._token: str | None = None

    @property
    def token(self) -> str | None:
        """The access token of the server that was started."""
        return self._token

    @property
    def pod(self) -> str | None:
        """The name of the pod; `None` while there is none."""
        return None if self._pod is None else self._pod.name

    @property
    def namespace(self) -> str | None:
        """The namespace of the pod; `None` while there is none."""
        return None if self._cluster is None else self._cluster.namespace

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> str:
        """Start a pod, and return its base URL. Its server need not answer yet.

        Args:
            image: Its name, such as `"registry.example/echo-env:1.0"`, as the cluster finds it.
            port: The local port to forward to it; by default, a free one.
            env_vars: The server's environment variables. `ENVWEAVE_TOKEN` is a random one,
                unless given.
            **kwargs: Options for this pod alone.

        Raises:
            StartupError: The API server does not answer, or refuses the pod. Nothing is left
                running.
            OptionError: There is no such option, or its value is invalid.
            CallOrderError: A pod is running already.
        """
        if self._pod is not None:
            raise CallOrderError(
                "The provider has started a pod already. Stop it first, or use a separate provider "
                "for each."
            )
        check_image_name(image)
        options = self._options.changed(kwargs)
        if port is not None and options.access != "forward":
            raise OptionError(
                f"port={port} is a local port, and access={options.access!r} uses none. Leave one "
                "of them out."
            )
        given = {
            CONFIG: _CONFIG,
            TOKEN: secrets.token_urlsafe(24),
            **options.env_vars,
            **variables(env_vars),
        }
        cluster = Cluster(options.kubeconfig, options.context, options.namespace)
        try:
            sweep(cluster)
            pod = Pod(cluster, image, options, port, given)
        except BaseException:
            cluster.close()
            raise
        self._cluster, self._pod, self._token = cluster, pod, given[TOKEN] or None
        self._unstopped = CloseGuard(
            self,
            partial(_remove, pod, cluster),
            f"The pod {pod.name} was dropped without stop_container(). Close what it was started "
            "for.",
            at_exit=AtExit.WARN,
        )
        return pod.base_url

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """Block until the server at `base_url` answers `/health`.

        Raises:
            EnvWeaveError: The environment cannot be made.
            StartupError: The pod cannot start or exited, or `timeout_s` seconds passed. The
                message says why, and ends with the pod's last log lines if there are any.
        """
        if self._pod is None:
            raise CallOrderError(f"No pod was started for {base_url!r}.")
        self._pod.wait_until_ready(timeout_s)

    def why_gone(self) -> str | None:
        """Return why the server is gone for good; `None` if it may still answer."""
        return None if self._pod is None else self._pod.why_gone()

    def another(self) -> KubernetesProvider:
        """Return another provider with the same options, without a pod yet."""
        provider = KubernetesProvider()
        provider._options = self._options
        return provider

    def stop_container(self) -> None:
        """Stop the pod and delete it. May be called twice."""
        pod, self._pod = self._pod, None
        cluster, self._cluster = self._cluster, None
        self._token = None
        if pod is None or cluster is None:
            return
        try:
            pod.stop()
        finally:
            if self._unstopped is not None:
                self._unstopped.disarm()
            cluster.close()


def _remove(pod: Pod, cluster: Cluster) -> None:
    pod.remove()
    cluster.close()

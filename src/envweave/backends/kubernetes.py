"""`backend="kubernetes"`: at a server in a pod that is started for the caller.

It is `backend="docker_http"` with another provider: all environments of a vector or a pool share
one pod, unless `isolation="container"`. If a pod is lost, its episodes are lost; the next reset
starts another one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from envweave.backends import docker_http
from envweave.backends.remote import refuse_mode
from envweave.errors import OptionError
from envweave.registry import EnvSpec, MakeOptions
from envweave.vector.transport import AsyncTransport, Transport

if TYPE_CHECKING:
    from envweave.vector import BatchTransport

RECONNECTS = True
"""A transport that lost its session opens another at its next reset; it need not be replaced."""


def connect(spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions) -> Transport:
    """Connect a sync caller to one session."""
    return docker_http.connect(spec, kwargs, in_pods(options))


def connect_async(spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions) -> AsyncTransport:
    """Connect an async caller to one session."""
    return docker_http.connect_async(spec, kwargs, in_pods(options))


def connect_pool(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, size: int
) -> list[AsyncTransport]:
    """Connect an async caller to many sessions, each by itself."""
    return docker_http.connect_pool(spec, kwargs, in_pods(options), size)


def connect_vector(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, num_envs: int
) -> BatchTransport:
    """Connect a vector to many sessions, all in one frame if they share a pod."""
    refuse_mode(options, "kubernetes")
    return docker_http.connect_vector(spec, kwargs, in_pods(options), num_envs)


def in_pods(options: MakeOptions) -> MakeOptions:
    """Return the options with a provider that starts pods.

    Raises:
        OptionError: The caller's provider does not.
    """
    from envweave.providers.kubernetes.provider import KubernetesProvider

    given = options.remote.provider
    if given is not None and not isinstance(given, KubernetesProvider):
        raise OptionError(
            f"provider={given!r} does not start pods, which backend='kubernetes' needs. Pass a "
            "KubernetesProvider(), or leave one of them out."
        )
    remote = dataclasses.replace(options.remote, provider=given or KubernetesProvider())
    return dataclasses.replace(options, remote=remote)

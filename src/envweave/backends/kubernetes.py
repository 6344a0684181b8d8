"""`backend="kubernetes"`: at a server in a pod, which is started for the caller.

It is `backend="docker_http"` with another provider: one pod has all the environments of a vector or
a pool, unless each shall have its own. A pod that is lost ends the episodes that ran there; the
next reset has another one started.
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

GOES_ON = True
"""A transport whose environment is lost opens another session at its next reset; nobody need
connect anew."""


def connect(spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions) -> Transport:
    """Carry a sync caller's calls to one session."""
    return docker_http.connect(spec, kwargs, in_pods(options))


def connect_async(spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions) -> AsyncTransport:
    """Carry an async caller's calls to one session."""
    return docker_http.connect_async(spec, kwargs, in_pods(options))


def connect_pool(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, size: int
) -> list[AsyncTransport]:
    """Carry an async caller's calls to many sessions, each by itself."""
    return docker_http.connect_pool(spec, kwargs, in_pods(options), size)


def connect_vector(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, num_envs: int
) -> BatchTransport:
    """Carry a vector's calls to many sessions, all in one frame if they share a pod."""
    refuse_mode(options, "kubernetes")
    return docker_http.connect_vector(spec, kwargs, in_pods(options), num_envs)


def in_pods(options: MakeOptions) -> MakeOptions:
    """Return the same with a provider that starts pods.

    Raises:
        OptionError: The caller's own starts none.
    """
    from envweave.providers.kubernetes.provider import KubernetesProvider

    given = options.remote.provider
    if given is not None and not isinstance(given, KubernetesProvider):
        raise OptionError(
            f"provider={given!r} starts no pods, and backend='kubernetes' runs there. Pass a "
            "KubernetesProvider(), or leave one of them out."
        )
    remote = dataclasses.replace(options.remote, provider=given or KubernetesProvider())
    return dataclasses.replace(options, remote=remote)

"""`backend="docker_http"`: at a server in a container that is started for the caller.

All environments of a vector or a pool share one container, unless `isolation="container"`. If a
container is lost, its episodes are lost; the next reset starts another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from envweave.backends.remote import (
    Connected,
    connect_batch,
    connect_many,
    connect_one,
    connect_separate,
    encoding_of,
    refuse_mode,
)
from envweave.client.managed_server import ManagedServer, start_all, stop_all
from envweave.client.server_info import Server
from envweave.errors import OptionError
from envweave.providers.import_paths import import_path, server_config
from envweave.registry import EnvSpec, MakeOptions
from envweave.vector.transport import AsyncTransport, Transport

if TYPE_CHECKING:
    from envweave.providers import ContainerProvider
    from envweave.vector import BatchTransport

SCHEME = "docker://"
RECONNECTS = True
"""A transport that lost its session opens another at its next reset; it need not be replaced."""


def connect(spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions) -> Transport:
    """Connect a sync caller to one session."""
    with _start_containers(spec, kwargs, options, 1) as servers:
        return connect_one(servers[0], spec, options)


def connect_async(spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions) -> AsyncTransport:
    """Connect an async caller to one session."""
    return connect_pool(spec, kwargs, options, 1)[0]


def connect_pool(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, size: int
) -> list[AsyncTransport]:
    """Connect an async caller to many sessions, each by itself."""
    count, sessions = (size, 1) if options.remote.isolation == "container" else (1, size)
    with _start_containers(spec, kwargs, options, sessions, count) as servers:
        return [
            transport
            for server in servers
            for transport in connect_many(server, spec, options, sessions)
        ]


def connect_vector(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, num_envs: int
) -> BatchTransport:
    """Connect a vector to many sessions, all in one frame if they share a container."""
    refuse_mode(options, "docker_http")
    if options.remote.isolation == "container":
        with _start_containers(spec, kwargs, options, 1, num_envs) as servers:
            return connect_separate(servers, spec, options)
    with _start_containers(spec, kwargs, options, num_envs) as servers:
        return connect_batch(servers[0], spec, options, num_envs)


@contextmanager
def _start_containers(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, sessions: int, count: int = 1
) -> Iterator[list[Connected]]:
    """Start `count` containers for `sessions` sessions each; stop them if the block raises."""
    remote = options.remote
    encoding, image = encoding_of(remote), image_for(spec, options)
    env_vars = {"ENVWEAVE_CONFIG": json.dumps(_server_config(spec, kwargs, options, sessions))}
    if remote.token is not None:
        env_vars["ENVWEAVE_TOKEN"] = remote.token
    providers = providers_for(remote.provider, count)
    servers = start_all(
        lambda provider: ManagedServer(
            provider, partial(provider.start_container, image, env_vars=env_vars), remote.token
        ),
        providers,
    )
    try:
        yield [
            Connected(Server(server.address, encoding, server.token, server), server.stop)
            for server in servers
        ]
    except BaseException:
        stop_all(servers)
        raise


def providers_for(given: Any, count: int) -> list[ContainerProvider]:
    """Return providers for `count` containers.

    Raises:
        OptionError: The provider does not start containers, or only one.
    """
    first = provider_for(given)
    if count == 1:
        return [first]
    from envweave.providers.base import WatchedProvider

    if not isinstance(first, WatchedProvider):
        raise OptionError(
            f"isolation='container' needs {count} containers, and provider={first!r} has one at "
            "a time. Use one with another(), such as LocalDockerProvider()."
        )
    return [first, *(first.another() for _ in range(count - 1))]


def provider_for(given: Any) -> ContainerProvider:
    """Return the provider of a container.

    Raises:
        OptionError: What is given does not start containers.
    """
    from envweave.providers import ContainerProvider, SubprocessProvider
    from envweave.providers.docker.provider import LocalDockerProvider
    from envweave.providers.docker.warm_pool import WarmPool

    if given is None:
        return LocalDockerProvider()
    if isinstance(given, WarmPool):
        return given.provider()
    if not isinstance(given, ContainerProvider) or isinstance(given, SubprocessProvider):
        raise OptionError(
            f"provider={given!r} does not start containers. Pass one that does, such as "
            "LocalDockerProvider(), or leave it out."
        )
    return given


def image_for(spec: EnvSpec, options: MakeOptions) -> str:
    """Return the image to run: the one that is given, or the default image of the ID.

    Raises:
        OptionError: None is given, and the ID has no default image.
    """
    image = options.remote.docker_image
    if image is not None:
        if not isinstance(image, str) or not image.strip():
            raise OptionError(
                f"docker_image={image!r} is not the name of an image. Use one such as "
                "'echo-env:latest'."
            )
        return image
    if spec.id.startswith(SCHEME):
        return spec.id.removeprefix(SCHEME)
    from envweave.providers.docker.options import image_of

    found = image_of(spec.id)
    if found is None:
        raise OptionError(
            f"{spec.id!r} has no default image. Pass docker_image='NAME'; `envweave build ID -t "
            "NAME` makes one."
        )
    return found


def _server_config(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, sessions: int
) -> dict[str, Any]:
    """Return the configuration of the server in the container."""
    from envweave.server.options import ServerOptions

    server: dict[str, Any] = {
        "drain_s": 0,  # a client that stops the server no longer needs its episodes
        "max_sessions": max(ServerOptions().max_sessions, sessions),
    }
    if options.workers is not None:
        server["workers"] = options.workers
    if not spec.is_made_elsewhere:
        return {**server_config(spec, kwargs), "options": server}
    # The image knows what it serves; the ID only names the image.
    config = server_config(EnvSpec(spec.id, ""), {**spec.kwargs, **kwargs})
    del config["id"]
    transform = None if spec.transform is None else import_path(spec.transform, "transform")
    return {
        **config,
        "max_episode_steps": spec.max_episode_steps,
        "transform": transform,
        "options": server,
    }

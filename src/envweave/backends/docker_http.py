"""`backend="docker_http"`: at a server in a container, which is started for the caller.

One container has all the environments of a vector or a pool, unless each shall have its own. A
container that is lost ends the episodes that ran there; the next reset has another one started.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from envweave.backends.remote import (
    Connected,
    connect_apart,
    connect_batch,
    connect_many,
    connect_one,
    encoding_of,
    refuse_mode,
)
from envweave.client.managed_server import ManagedServer, start_all, stop_all
from envweave.client.server_info import Server
from envweave.errors import OptionError
from envweave.providers.import_paths import import_path, served_as
from envweave.registry import EnvSpec, MakeOptions
from envweave.vector.transport import AsyncTransport, Transport

if TYPE_CHECKING:
    from envweave.providers import ContainerProvider
    from envweave.vector import BatchTransport

SCHEME = "docker://"
GOES_ON = True
"""A transport whose environment is lost opens another session at its next reset; nobody need
connect anew."""


def connect(spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions) -> Transport:
    """Carry a sync caller's calls to one session."""
    with _started(spec, kwargs, options, 1) as places:
        return connect_one(places[0], spec, options)


def connect_async(spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions) -> AsyncTransport:
    """Carry an async caller's calls to one session."""
    return connect_pool(spec, kwargs, options, 1)[0]


def connect_pool(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, size: int
) -> list[AsyncTransport]:
    """Carry an async caller's calls to many sessions, each by itself."""
    count, sessions = (size, 1) if options.remote.isolation == "container" else (1, size)
    with _started(spec, kwargs, options, sessions, count) as places:
        return [
            transport
            for reached in places
            for transport in connect_many(reached, spec, options, sessions)
        ]


def connect_vector(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, num_envs: int
) -> BatchTransport:
    """Carry a vector's calls to many sessions, all in one frame if they share a container."""
    refuse_mode(options, "docker_http")
    if options.remote.isolation == "container":
        with _started(spec, kwargs, options, 1, num_envs) as places:
            return connect_apart(places, spec, options)
    with _started(spec, kwargs, options, num_envs) as places:
        return connect_batch(places[0], spec, options, num_envs)


@contextmanager
def _started(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, sessions: int, count: int = 1
) -> Iterator[list[Connected]]:
    """Start containers for so many sessions each; all are stopped if anything fails."""
    remote = options.remote
    encoding, image = encoding_of(remote), image_for(spec, options)
    told = {"ENVWEAVE_CONFIG": json.dumps(_told(spec, kwargs, options, sessions))}
    if remote.token is not None:
        told["ENVWEAVE_TOKEN"] = remote.token
    providers = providers_for(remote.provider, count)
    places = start_all(
        lambda one: ManagedServer(
            one, partial(one.start_container, image, env_vars=told), remote.token
        ),
        providers,
    )
    try:
        yield [Connected(Server(one.address, encoding, one.token, one), one.stop) for one in places]
    except BaseException:
        stop_all(places)
        raise


def providers_for(given: Any, count: int) -> list[ContainerProvider]:
    """Return who starts so many containers.

    Raises:
        OptionError: What is given starts none, or one only.
    """
    first = provider_for(given)
    if count == 1:
        return [first]
    from envweave.providers.base import WatchedProvider

    if not isinstance(first, WatchedProvider):
        raise OptionError(
            f"isolation='container' needs {count} containers, and provider={first!r} has one at "
            "a time. Use one that knows another(), such as LocalDockerProvider()."
        )
    return [first, *(first.another() for _ in range(count - 1))]


def provider_for(given: Any) -> ContainerProvider:
    """Return who starts a container.

    Raises:
        OptionError: What is given starts none.
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
            f"provider={given!r} starts no containers. Pass one that does, such as "
            "LocalDockerProvider(), or leave it out."
        )
    return given


def image_for(spec: EnvSpec, options: MakeOptions) -> str:
    """Return which image to run: the one that is named, or by an ID's own name.

    Raises:
        OptionError: None is named, and the ID has no name that an image could have.
    """
    image = options.remote.docker_image
    if image is not None:
        if not isinstance(image, str) or not image.strip():
            raise OptionError(
                f"docker_image={image!r} is no image's name. Use one such as 'echo-env:latest'."
            )
        return image
    if spec.id.startswith(SCHEME):
        return spec.id.removeprefix(SCHEME)
    from envweave.providers.docker.options import image_of

    found = image_of(spec.id)
    if found is None:
        raise OptionError(
            f"Which image has {spec.id!r}? Say docker_image='NAME'; `envweave build ID -t NAME` "
            "makes one."
        )
    return found


def _told(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, sessions: int
) -> dict[str, Any]:
    """Return what the server in the container is told."""
    from envweave.server.options import ServerOptions

    server: dict[str, Any] = {
        "drain_s": 0,  # who stops it has no more use for its episodes
        "max_sessions": max(ServerOptions().max_sessions, sessions),
    }
    if options.workers is not None:
        server["workers"] = options.workers
    if not spec.is_made_elsewhere:
        return {**served_as(spec, kwargs), "options": server}
    # The image knows what it serves; the ID is only a name for the image.
    told = served_as(EnvSpec(spec.id, ""), {**spec.kwargs, **kwargs})
    del told["id"]
    transform = None if spec.transform is None else import_path(spec.transform, "transform")
    return {
        **told,
        "max_episode_steps": spec.max_episode_steps,
        "transform": transform,
        "options": server,
    }

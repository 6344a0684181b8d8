"""`backend="http"`: at a server that runs already, or is started for the caller.

If a server that was started is lost, its episodes are lost; the next reset starts another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from envweave.backends.remote import (
    Connected,
    connect_batch,
    connect_many,
    connect_one,
    encoding_of,
    refuse_mode,
    token_of,
)
from envweave.client.address import parse_address
from envweave.client.managed_server import ManagedServer
from envweave.client.server_info import Server
from envweave.errors import OptionError
from envweave.registry import EnvSpec, MakeOptions
from envweave.vector.transport import AsyncTransport, Transport

if TYPE_CHECKING:
    from envweave.vector import BatchTransport

RECONNECTS = True
"""A transport that lost its session opens another at its next reset; it need not be replaced."""


def connect(spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions) -> Transport:
    """Connect a sync caller to one session."""
    with _open_server(spec, kwargs, options) as reached:
        return connect_one(reached, spec, options)


def connect_async(spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions) -> AsyncTransport:
    """Connect an async caller to one session."""
    return connect_pool(spec, kwargs, options, 1)[0]


def connect_pool(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, size: int
) -> list[AsyncTransport]:
    """Connect an async caller to many sessions, each by itself, over one connection."""
    with _open_server(spec, kwargs, options, size) as reached:
        return connect_many(reached, spec, options, size)


def connect_vector(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, num_envs: int
) -> BatchTransport:
    """Connect a vector to many sessions, all in one frame."""
    refuse_mode(options, "http")
    with _open_server(spec, kwargs, options, num_envs) as reached:
        return connect_batch(reached, spec, options, num_envs)


@contextmanager
def _open_server(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, sessions: int = 1
) -> Iterator[Connected]:
    """Yield the server that is named, or start one for `sessions` sessions.

    A server that was started is stopped if the block raises.
    """
    remote = options.remote
    encoding, token = encoding_of(remote), token_of(remote)
    url = spec.id if remote.base_url is None and spec.backend == "http" else remote.base_url
    if url is not None:
        if options.workers is not None:
            raise OptionError(
                f"workers={options.workers} is an option of the server, which runs already. Start "
                "it with `envweave serve ID --workers N`."
            )
        yield Connected(Server(parse_address(url), encoding, token))
        return
    managed = _start(spec, kwargs, options, sessions, token)
    try:
        yield Connected(Server(managed.address, encoding, managed.token, managed), managed.stop)
    except BaseException:
        managed.stop()
        raise


def _start(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, sessions: int, token: str | None
) -> ManagedServer:
    from envweave.providers import ContainerProvider, SubprocessProvider
    from envweave.server.options import ServerOptions

    provider = options.remote.provider
    if provider is None:
        server: dict[str, Any] = {"max_sessions": max(ServerOptions().max_sessions, sessions)}
        if options.workers is not None:
            server["workers"] = options.workers
        if options.remote.token is not None:
            server["token"] = options.remote.token
        provider = SubprocessProvider(python=options.remote.python, **server)
    elif not isinstance(provider, ContainerProvider):
        raise OptionError(
            f"provider must be a ContainerProvider, such as SubprocessProvider(), got {provider!r}."
        )
    elif options.workers is not None:
        raise OptionError(
            f"workers={options.workers} is an option of the provider's server. Pass it to the "
            "provider."
        )
    if isinstance(provider, SubprocessProvider):
        return ManagedServer(provider, partial(provider.start, spec, kwargs), token)
    return ManagedServer(provider, partial(provider.start_container, spec.id, **kwargs), token)

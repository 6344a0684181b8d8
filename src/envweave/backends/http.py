"""`backend="http"`: at a server, which runs already or is started for the caller."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envweave.client.address import parse_address
from envweave.client.alone import RemoteDriver
from envweave.client.served import Served, Server
from envweave.environment.hinted import class_hints
from envweave.errors import OptionError, suggest
from envweave.registry import EnvSpec, Options
from envweave.transports import AsyncTransport, Transport
from envweave.wire.encoding import ENCODINGS
from envweave.wire.schemas import Types

if TYPE_CHECKING:
    from envweave.vector import BatchTransport

GOES_ON = True
"""A transport whose environment is lost opens another session at its next reset; nobody need
connect anew."""


def connect(spec: EnvSpec, kwargs: Mapping[str, Any], options: Options) -> Transport:
    """Carry a sync caller's calls to one session."""
    with _reached(spec, kwargs, options) as place:
        connection = place.server.connect(place.stop)
        try:
            served = Served(place.server, connection.ask("describe"), _types(spec))
            return RemoteDriver(
                connection, served, autoreset=options.autoreset, timeout_s=options.timeout_s
            )
        except BaseException:
            connection.end()
            raise


def connect_async(spec: EnvSpec, kwargs: Mapping[str, Any], options: Options) -> AsyncTransport:
    """Carry an async caller's calls to one session."""
    return connect_pool(spec, kwargs, options, 1)[0]


def connect_pool(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: Options, size: int
) -> list[AsyncTransport]:
    """Carry an async caller's calls to many sessions, each by itself, over one connection."""
    from envweave.client.together import AsyncRemoteDriver, SharedLine

    with _reached(spec, kwargs, options, size) as place:
        served = Served(place.server, place.server.ask("describe", {}), _types(spec))
        line = SharedLine(place.server.connect_async(size), place.stop)
    return [
        AsyncRemoteDriver(line, served, autoreset=options.autoreset, timeout_s=options.timeout_s)
        for _ in range(size)
    ]


def connect_vector(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: Options, num_envs: int
) -> BatchTransport:
    """Carry a vector's calls to many sessions, all in one frame."""
    from envweave.client.vector import RemoteTransport

    if options.mode is not None:
        raise OptionError(
            f"mode={options.mode!r} is a way to run in this process. Leave it out, or leave out "
            "backend='http'."
        )
    with _reached(spec, kwargs, options, num_envs) as place:
        connection = place.server.connect(place.stop)
        try:
            served = Served(place.server, connection.ask("describe"), _types(spec))
            return RemoteTransport(
                connection,
                served,
                num_envs,
                autoreset=options.autoreset,
                timeout_s=options.timeout_s,
            )
        except BaseException:
            connection.end()
            raise


@dataclass(frozen=True, slots=True)
class _Place:
    """A server, and how to stop it if it was started for this caller."""

    server: Server
    stop: Callable[[], None] | None = None


@contextmanager
def _reached(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: Options, sessions: int = 1
) -> Iterator[_Place]:
    """Give the server that is named, or start one for so many sessions.

    One that was started is stopped if anything fails.
    """
    remote = options.remote
    if remote.encoding not in ENCODINGS:
        raise OptionError(
            f"encoding={remote.encoding!r} is none of {', '.join(map(repr, ENCODINGS))}."
            f"{suggest(str(remote.encoding), ENCODINGS)}"
        )
    encoding = ENCODINGS[remote.encoding]
    url = spec.id if remote.base_url is None and spec.backend == "http" else remote.base_url
    token = remote.token or os.environ.get("ENVWEAVE_TOKEN", "").strip() or None
    if url is not None:
        if options.workers is not None:
            raise OptionError(
                f"workers={options.workers} are the server's, and it runs already. Start it with "
                "`envweave serve ID --workers N`."
            )
        yield _Place(Server(parse_address(url), encoding, token))
        return
    base_url, stop = _start(spec, kwargs, options, sessions)
    try:
        yield _Place(Server(parse_address(base_url), encoding, token), stop)
    except BaseException:
        stop()
        raise


def _start(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: Options, sessions: int
) -> tuple[str, Callable[[], None]]:
    from envweave.providers import ContainerProvider, SubprocessProvider
    from envweave.server.options import ServerOptions

    provider = options.remote.provider
    if provider is None:
        wanted: dict[str, Any] = {"max_sessions": max(ServerOptions().max_sessions, sessions)}
        if options.workers is not None:
            wanted["workers"] = options.workers
        if options.remote.token is not None:
            wanted["token"] = options.remote.token
        provider = SubprocessProvider(**wanted)
    elif not isinstance(provider, ContainerProvider):
        raise OptionError(
            f"provider={provider!r} starts no servers. Pass a ContainerProvider, such as "
            "SubprocessProvider()."
        )
    elif options.workers is not None:
        raise OptionError(
            f"workers={options.workers} belong to the provider's server. Pass them to the provider."
        )
    if isinstance(provider, SubprocessProvider):
        return provider.start(spec, kwargs), provider.stop_container
    base_url = provider.start_container(spec.id, **kwargs)
    try:
        provider.wait_for_ready(base_url)
    except BaseException:
        provider.stop_container()
        raise
    return base_url, provider.stop_container


def _types(spec: EnvSpec) -> Types:
    """Return the author's classes, where they are known here; nothing is made."""
    return Types() if spec.backend is not None else Types(*class_hints(spec.load()))

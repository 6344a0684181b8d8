"""Connects to servers: one session, a pool, or a vector."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envweave.adapters.openenv import is_foreign, openenv_hints
from envweave.client.env import RemoteDriver
from envweave.client.server_info import Server, ServerInfo
from envweave.environment.introspection import class_hints
from envweave.errors import OptionError, suggest
from envweave.registry import EnvSpec, MakeOptions, Remote
from envweave.vector.transport import AsyncTransport, Transport
from envweave.wire.description import Types
from envweave.wire.encoding import ENCODINGS, Encoding

if TYPE_CHECKING:
    from envweave.client.connection import BlockingConnection
    from envweave.vector import BatchTransport


@dataclass(frozen=True, slots=True)
class Connected:
    """A server, and how to stop it if it was started for this caller."""

    server: Server
    stop: Callable[[], None] | None = None


def connect_one(connected: Connected, spec: EnvSpec, options: MakeOptions) -> Transport:
    """Connect a sync caller to one session."""
    connection = connected.server.connect(connected.stop)
    try:
        served = ServerInfo(
            connected.server, connection.call_server("describe"), types_of(spec, options.remote)
        )
        return RemoteDriver(
            connection,
            served,
            autoreset=options.autoreset,
            timeout_s=options.timeout_s,
            wait_s=options.remote.wait_s,
        )
    except BaseException:
        connection.end()
        raise


def connect_many(
    connected: Connected, spec: EnvSpec, options: MakeOptions, size: int
) -> list[AsyncTransport]:
    """Connect an async caller to many separate sessions over one connection."""
    from envweave.client.async_env import AsyncRemoteDriver, SharedConnection

    server = connected.server
    description = server.call("describe", {})
    connection = server.connect_async(size)
    served = ServerInfo(server, description, types_of(spec, options.remote), connection.call_server)
    shared = SharedConnection(connection, connected.stop)
    return [
        AsyncRemoteDriver(
            shared,
            served,
            autoreset=options.autoreset,
            timeout_s=options.timeout_s,
            wait_s=options.remote.wait_s,
        )
        for _ in range(size)
    ]


def connect_batch(
    connected: Connected, spec: EnvSpec, options: MakeOptions, num_envs: int
) -> BatchTransport:
    """Connect a vector to many sessions, all in one frame."""
    from envweave.client.vector.vector import RemoteTransport

    connection = connected.server.connect(connected.stop)
    try:
        served = ServerInfo(
            connected.server, connection.call_server("describe"), types_of(spec, options.remote)
        )
        return RemoteTransport(
            connection,
            served,
            num_envs,
            autoreset=options.autoreset,
            timeout_s=options.timeout_s,
            wait_s=options.remote.wait_s,
        )
    except BaseException:
        connection.end()
        raise


def connect_separate(
    connected: Sequence[Connected], spec: EnvSpec, options: MakeOptions
) -> BatchTransport:
    """Connect a vector to one session at each of several servers."""
    from envweave.client.multi_server import MultiServerConnection
    from envweave.client.vector.vector import RemoteTransport

    connections: list[BlockingConnection] = []
    try:
        for one in connected:
            connections.append(one.server.connect(one.stop))  # noqa: PERF401 - ended below
        server, description = connected[0].server, connections[0].call_server("describe")
        return RemoteTransport(
            MultiServerConnection(connections),
            ServerInfo(server, description, types_of(spec, options.remote)),
            len(connected),
            autoreset=options.autoreset,
            timeout_s=options.timeout_s,
            wait_s=options.remote.wait_s,
        )
    except BaseException:
        for connection in connections:
            connection.end()
        raise


def refuse_mode(options: MakeOptions, backend: str) -> None:
    """Refuse `mode`, which is for vectors in this process."""
    if options.mode is not None:
        raise OptionError(
            f"mode={options.mode!r} is for vectors in this process. Leave it out, or leave out "
            f"backend={backend!r}."
        )


def encoding_of(remote: Remote) -> Encoding:
    """Return the encoding of messages.

    Raises:
        OptionError: There is no such encoding.
    """
    if remote.encoding not in ENCODINGS:
        raise OptionError(
            f"encoding must be one of {', '.join(map(repr, ENCODINGS))}, got {remote.encoding!r}."
            f"{suggest(str(remote.encoding), ENCODINGS)}"
        )
    return ENCODINGS[remote.encoding]


def token_of(remote: Remote) -> str | None:
    """Return the access token: the caller's, or `$ENVWEAVE_TOKEN`."""
    return remote.token or os.environ.get("ENVWEAVE_TOKEN", "").strip() or None


def types_of(spec: EnvSpec, remote: Remote) -> Types:
    """Return the author's classes, if they can be imported here; no environment is made."""
    if spec.is_made_elsewhere or remote.python is not None:
        return Types()
    factory = spec.load()
    if isinstance(factory, type) and is_foreign(factory):
        return Types(*openenv_hints(factory))
    return Types(*class_hints(factory))

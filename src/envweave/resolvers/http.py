"""`http://host:port`, `https://host/prefix`, `unix:///path.sock`: a server that runs already."""

from __future__ import annotations

from functools import partial

from envweave.client.address import parse_address
from envweave.errors import OptionError
from envweave.registry import EnvSpec, Registry


def resolve_http(rest: str, registry: Registry) -> EnvSpec:  # noqa: ARG001 - a resolver's signature
    """Return what stands for the environments of a server.

    Raises:
        EnvIdError: It is no URL of a server.
    """
    return _spec(f"http://{rest}")


def resolve_https(rest: str, registry: Registry) -> EnvSpec:  # noqa: ARG001
    """The same, behind TLS."""
    return _spec(f"https://{rest}")


def resolve_unix(rest: str, registry: Registry) -> EnvSpec:  # noqa: ARG001
    """The same, on a unix socket."""
    return _spec(f"unix://{rest}")


def _spec(url: str) -> EnvSpec:
    address = parse_address(url)
    return EnvSpec(
        url,
        partial(_refuse, url),
        backend="http",
        description=f"What the server at {address.url} runs",
    )


def _refuse(url: str, **_: object) -> None:
    raise OptionError(f"{url!r} is made by its server, and cannot be made here.")

"""`openenv://host:port`: an OpenEnv server; `openenv://https://host` for one behind TLS."""

from __future__ import annotations

from envweave.client.address import parse_address
from envweave.client.openenv import OpenEnvServer
from envweave.errors import EnvIdError
from envweave.registry import EnvSpec, Registry


def resolve_openenv(rest: str, registry: Registry) -> EnvSpec:  # noqa: ARG001 - a resolver's signature
    """Return the recipe of an OpenEnv server's environments.

    Raises:
        EnvIdError: It is no address of a server.
    """
    url = rest if "://" in rest else f"http://{rest}"
    address = parse_address(url)
    if address.socket_path is not None:
        raise EnvIdError(
            f"'openenv://{rest}' is no address of an OpenEnv server. Use 'openenv://host:port', or "
            "'openenv://https://host'."
        )
    return EnvSpec(
        f"openenv://{rest}",
        OpenEnvServer(url),
        description=f"What the OpenEnv server at {address.url} runs",
        takes_token=True,
    )

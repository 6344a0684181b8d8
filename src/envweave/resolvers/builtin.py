"""The schemes of envweave itself: `pkg`, `local`, `http`, `https`, `unix`, `docker`, `openenv`."""

from __future__ import annotations

from functools import partial

from envweave.client.address import parse_address
from envweave.client.openenv.environment import OpenEnvServer
from envweave.errors import EnvIdError, OptionError
from envweave.registry import EnvSpec, Registry


def resolve_pkg(rest: str, registry: Registry) -> EnvSpec:  # noqa: ARG001 - a resolver's signature
    """`pkg://module:attribute`: a class or function, imported when it is made."""
    module, _, attribute = rest.partition(":")
    if not module or not attribute:
        raise EnvIdError(f"'pkg://{rest}' names no environment. Use 'pkg://module:attribute'.")
    return EnvSpec(f"pkg://{rest}", rest)


def resolve_local(rest: str, registry: Registry) -> EnvSpec:
    """`local://name`: an environment that this process has registered."""
    return registry.get(rest, announced=False)


def resolve_http(rest: str, registry: Registry) -> EnvSpec:  # noqa: ARG001 - a resolver's signature
    """`http://host[:port]`: the environment of a server.

    Raises:
        EnvIdError: It is not the URL of a server.
    """
    return _spec(f"http://{rest}")


def resolve_https(rest: str, registry: Registry) -> EnvSpec:  # noqa: ARG001
    """`https://host[:port]`: the environment of a server, over TLS."""
    return _spec(f"https://{rest}")


def resolve_unix(rest: str, registry: Registry) -> EnvSpec:  # noqa: ARG001
    """`unix:///path`: the environment of a server on a unix socket."""
    return _spec(f"unix://{rest}")


def _spec(url: str) -> EnvSpec:
    address = parse_address(url)
    return EnvSpec(
        url,
        partial(_refuse, url),
        backend="http",
        description=f"The environment of the server at {address.url}",
    )


def _refuse(url: str, **_: object) -> None:
    raise OptionError(f"{url!r} runs at its server, and cannot be made in this process.")


def resolve_docker(rest: str, registry: Registry) -> EnvSpec:  # noqa: ARG001 - a resolver's signature
    """`docker://image`: the environment of a Docker image.

    Raises:
        EnvIdError: It names no image.
    """
    image = rest.strip()
    if not image or any(character.isspace() for character in image):
        raise EnvIdError(
            f"'docker://{rest}' names no image. Use one such as 'docker://echo-env:latest'."
        )
    return EnvSpec(
        f"docker://{image}",
        partial(_refuse_image, image),
        backend="docker_http",
        description=f"The environment of the image {image}",
    )


def _refuse_image(image: str, **_: object) -> None:
    raise OptionError(
        f"'docker://{image}' runs in a container, and cannot be made in this process."
    )


def resolve_openenv(rest: str, registry: Registry) -> EnvSpec:  # noqa: ARG001 - a resolver's signature
    """`openenv://host[:port]`: the environment of an OpenEnv server.

    Raises:
        EnvIdError: It is not the address of a server.
    """
    url = rest if "://" in rest else f"http://{rest}"
    address = parse_address(url)
    if address.socket_path is not None:
        raise EnvIdError(
            f"'openenv://{rest}' is not the address of an OpenEnv server. Use "
            "'openenv://host:port', or 'openenv://https://host'."
        )
    return EnvSpec(
        f"openenv://{rest}",
        OpenEnvServer(url),
        description=f"The environment of the OpenEnv server at {address.url}",
        takes_token=True,
    )

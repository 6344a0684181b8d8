"""`docker://image:tag`: what an image serves, in a container that is started for the caller."""

from __future__ import annotations

from functools import partial

from envweave.errors import EnvIdError, OptionError
from envweave.registry import EnvSpec, Registry


def resolve_docker(rest: str, registry: Registry) -> EnvSpec:  # noqa: ARG001 - a resolver's signature
    """Return what stands for the environments of an image.

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
        description=f"What a container of {image} runs",
    )


def _refuse_image(image: str, **_: object) -> None:
    raise OptionError(f"'docker://{image}' is made in a container, and cannot be made here.")

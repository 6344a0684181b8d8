"""What an image says of itself, and what a container of it cannot do."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, final

from envweave.errors import OptionError, suggest
from envweave.providers.docker_options import DockerOptions
from envweave.registry.plugins import ENVS, plugin_names

CONFIG = "ENVWEAVE_CONFIG"
"""The variable by which a server in a container is told what to serve, and how."""

SERVER_LABEL = "envweave.server"
"""The label of images whose server is told so, and can listen on a unix socket."""

ENV_LABEL = "envweave.env"
"""The label that says what they serve where nobody says anything else."""

DOCKERFILES = {
    "envweave-base:latest": "docker/base/Dockerfile",
    "envweave-codefix:latest": "docker/codefix_env_server/Dockerfile",
    "envweave-gsm8k:latest": "docker/gsm8k_env_server/Dockerfile",
    "envweave-lineworld:latest": "docker/lineworld_env_server/Dockerfile",
    "coding-env:latest": "docker/coding_env_server/Dockerfile",
    "echo-env:latest": "docker/echo_env_server/Dockerfile",
}
"""The images of this project, and the files in its checkout that they are built from."""

_IMAGES = {
    "codefix-v0": "envweave-codefix:latest",
    "gsm8k-v0": "envweave-gsm8k:latest",
    "gsm8k-choice-v0": "envweave-gsm8k:latest",
    "lineworld-v0": "envweave-lineworld:latest",
}
_NAME = re.compile(r"(?P<name>[a-z0-9]+(?:[._-][a-z0-9]+)*?)(?:-v\d+)?")


def image_of(env_id: str) -> str | None:
    """Return the default image of an ID; `None` if no image can have its name."""
    found = _NAME.fullmatch(env_id)
    return _IMAGES.get(env_id, None if found is None else f"{found['name']}-env:latest")


def build_command(image: str) -> str | None:
    """Return the command that builds an image of this project; `None` for any other image."""
    file = DOCKERFILES.get(_with_tag(image))
    return None if file is None else f"docker build -t {image} -f {file} ."


def missing_image_message(image: str, present: Iterable[str]) -> str:
    """Return what to say of an image that is missing, and how to get it.

    Args:
        image: Its name.
        present: The tags of the images on this machine.
    """
    missing = f"There is no image {image!r} on this machine."
    command = build_command(image)
    if command is not None:
        return f"{missing} Build it in a checkout of envweave: `{command}`."
    for env_id in plugin_names(ENVS):
        if image_of(env_id) == _with_tag(image):
            return f"{missing} Build it: `envweave build {env_id}`."
    known = [tag.removesuffix(":latest") for tag in (*present, *DOCKERFILES)]
    return (
        f"{missing}{suggest(image.removesuffix(':latest'), known)} Build it: `envweave build ID -t "
        f"{image}` with the ID of your environment, or `docker build -t {image} .` with your "
        f"Dockerfile; or fetch it: `docker pull {image}`."
    )


def _with_tag(image: str) -> str:
    return image if ":" in image.rpartition("/")[2] else f"{image}:latest"


@final
class Image:
    """An image, as the engine describes it.

    Attributes:
        port: Where its server listens, if it says so of exactly one port.
        is_ours: Whether its server is told by variables what to do.
        env_id: What its server serves, if the image says so.
    """

    def __init__(self, name: str, about: Mapping[str, Any]) -> None:
        config = about.get("Config") or {}
        ports = [one.partition("/")[0] for one in config.get("ExposedPorts") or {}]
        self._name = name
        self._user = str(config.get("User") or "")
        self.port = int(ports[0]) if len(ports) == 1 and ports[0].isdigit() else None
        labels = config.get("Labels") or {}
        self.is_ours = SERVER_LABEL in labels
        self.env_id: str | None = labels.get(ENV_LABEL)

    def refuse_untold(self, options: DockerOptions, env_vars: Mapping[str, str]) -> None:
        """Refuse what the server of another kind of image would never know.

        Raises:
            OptionError: It is wanted without a network; or with keywords for its environment.
        """
        if self.is_ours:
            return
        if not options.has_network:
            raise OptionError(
                f"network='none' needs a server that listens on a unix socket, and {self._name!r} "
                "is not built on envweave-base. Leave it out, or build it with `envweave build`."
            )
        for name, value in _wishes(env_vars.get(CONFIG, "")).items():
            raise OptionError(
                f"{name}={value!r} cannot be told to {self._name!r}, which is not built on "
                "envweave-base and makes its environments itself. Leave it out, or build it with "
                "`envweave build`."
            )

    def warn_of_root(self, user: str | None) -> None:
        """Warn of a server that is root, where nobody said that it shall be."""
        if user is None and self._user.partition(":")[0] in ("", "0", "root"):
            warnings.warn(
                f"The image {self._name!r} runs as root. Give it a USER, or pass user='1000:1000'; "
                "user='root' says that it shall be so.",
                stacklevel=2,
            )


def _wishes(config: str) -> dict[str, Any]:
    """Return what the environment, or its episodes, shall be like."""
    try:
        told = json.loads(config or "{}")
    except ValueError:
        return {}
    told = told if isinstance(told, dict) else {}
    more = {name: told.get(name) for name in ("max_episode_steps", "transform")}
    given = {name: value for name, value in more.items() if value is not None}
    return {**(told.get("kwargs") or {}), **given}

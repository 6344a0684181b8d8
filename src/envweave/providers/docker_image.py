"""What an image says of itself, and what a container of it cannot do."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from typing import Any, final

from envweave.errors import OptionError
from envweave.providers.docker_options import DockerOptions

CONFIG = "ENVWEAVE_CONFIG"
"""The variable by which a server in a container is told what to serve, and how."""

SERVER_LABEL = "envweave.server"
"""The label of images whose server is told so, and can listen on a unix socket."""

ENV_LABEL = "envweave.env"
"""The label that says what they serve where nobody says anything else."""

_NAME = re.compile(r"(?P<name>[a-z0-9]+(?:[._-][a-z0-9]+)*?)(?:-v\d+)?")


def image_of(env_id: str) -> str | None:
    """Return the image that an ID has by its own name; `None` if no image can be called so."""
    found = _NAME.fullmatch(env_id)
    return None if found is None else f"{found['name']}-env:latest"


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

"""How much a container may have, and how little of the machine it sees."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from envweave.errors import OptionError, suggest
from envweave.registry.plugins import ENVS, plugin_names

_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([bkmgt]?)i?b?", re.IGNORECASE)
_LEAST_MEMORY = 16 * 2**20  # less than a Python needs to say so
_VARIABLE = re.compile(r"[^=\0\s]+")
_CPU_PERIOD_US = 100_000
_LOG = {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "1"}}
"""What a container prints is kept on the engine's disk, and so it is bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerOptions:
    """What a container is given.

    Attributes:
        memory: How much memory, in bytes or as `"512m"`; there is no swap on top.
        cpus: How many cores' worth of time.
        pids: How many processes and threads.
        tmp_size: How large its `/tmp` may be, which is in memory, and is counted there.
        shm_size: How large its shared memory may be.
        network: `"bridge"`, where the server has a port of loopback and can reach the network;
            `"none"`, where it has a unix socket and no network at all; or a network's name.
        read_only: Whether the file system of the image cannot be written to.
        user: Who the server is: `"1000"`, `"1000:1000"`; left out, whom the image says.
        capabilities: The rights of root that are not taken away, such as `"CHOWN"`.
        volumes: Folders of this machine and where they are mounted, to be read only;
            `"/data:rw"` may be written to.
        env_vars: The server's environment variables; those given to `start_container` come on
            top.
        command: What to run instead of what the image says.
        container_port: Where the server listens inside; left out, where the image says, or 8000.
        init: Whether a small program collects the processes that others left.
        docker_host: Where the engine is; left out, where `docker` itself looks.
    """

    memory: int | str = "2g"
    cpus: float = 2.0
    pids: int = 1024
    tmp_size: int | str = "256m"
    shm_size: int | str = "64m"
    network: str = "bridge"
    read_only: bool = True
    user: str | None = None
    capabilities: Sequence[str] = ()
    volumes: Mapping[str, str] = field(default_factory=dict)
    env_vars: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] | None = None
    container_port: int | None = None
    init: bool = True
    docker_host: str | None = None

    def __post_init__(self) -> None:
        """Refuse what no container can be given."""
        _refuse_little("memory", size_of("memory", self.memory), _LEAST_MEMORY)
        _refuse_little("tmp_size", size_of("tmp_size", self.tmp_size), 4096)
        _refuse_little("shm_size", size_of("shm_size", self.shm_size), 4096)
        is_number = isinstance(self.cpus, int | float) and not isinstance(self.cpus, bool)
        if not is_number or not 0.01 <= self.cpus < math.inf:
            raise OptionError(f"cpus={self.cpus!r} is no number of 0.01 or more, such as 1.5.")
        _refuse_count("pids", self.pids, 1, 2**22)
        if self.container_port is not None:
            _refuse_count("container_port", self.container_port, 1, 65535)
        for name in ("read_only", "init"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name}={getattr(self, name)!r} is neither True nor False.")
        _refuse_text("network", self.network)
        if self.network == "host":
            raise OptionError(
                "network='host' would give the container this machine's own network. Use 'bridge', "
                "'none', or the name of a network that `docker network create` made."
            )
        for name in ("user", "docker_host"):
            if getattr(self, name) is not None:
                _refuse_text(name, getattr(self, name))
        for name in ("capabilities", "command"):
            value = getattr(self, name)
            if isinstance(value, str) or not all(isinstance(one, str) for one in value or ()):
                raise OptionError(f"{name}={value!r} is no list of texts.")
        variables(self.env_vars)
        for source, target in self.volumes.items():
            inside = str(target).removesuffix(":rw")
            if not os.path.isabs(source) or not os.path.isabs(inside) or ":" in source + inside:  # noqa: PTH117 - the target is no path of this machine
                raise OptionError(
                    f"volumes={{{source!r}: {target!r}}} are no two absolute paths. Use "
                    "{'/on/this/machine': '/in/the/container'}, with ':rw' at its end to write."
                )

    def changed(self, changes: Mapping[str, Any]) -> DockerOptions:
        """Return the same with some options changed.

        Raises:
            OptionError: There is no such option, or it cannot have this value.
        """
        return dataclasses.replace(self, **known(changes))

    @property
    def has_network(self) -> bool:
        """Whether the server is reached by a port, and not by a unix socket."""
        return self.network != "none"

    def host_config(self) -> dict[str, Any]:
        """Return what the engine is told of it."""
        memory = size_of("memory", self.memory)
        tmp = f"rw,noexec,nosuid,nodev,size={size_of('tmp_size', self.tmp_size)},mode=1777"
        return {
            "NetworkMode": self.network,
            "ReadonlyRootfs": self.read_only,
            "CapDrop": ["ALL"],
            "CapAdd": list(self.capabilities),
            "SecurityOpt": ["no-new-privileges"],
            "Memory": memory,
            "MemorySwap": memory,
            "CpuPeriod": _CPU_PERIOD_US,
            # A quota may be larger than the machine, whose number of cores nobody has to know.
            "CpuQuota": int(self.cpus * _CPU_PERIOD_US),
            "PidsLimit": self.pids,
            "Tmpfs": {"/tmp": tmp},  # noqa: S108 - the container's own
            "ShmSize": size_of("shm_size", self.shm_size),
            "Binds": [_bind(source, target) for source, target in self.volumes.items()],
            "LogConfig": _LOG,
            "Init": self.init,
            "RestartPolicy": {"Name": "no"},
        }


def known(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options that there are.

    Raises:
        OptionError: One that there is not; the nearest is named.
    """
    names = [one.name for one in dataclasses.fields(DockerOptions)]
    for name in options:
        if name not in names:
            hint = suggest(name, names) or f" There are: {', '.join(names)}."
            raise OptionError(f"A container has no option {name!r}.{hint}")
    return dict(options)


def size_of(name: str, value: Any) -> int:
    """Return a number of bytes, or refuse it."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise OptionError(f"{name}={value!r} is no size. Use bytes, or a text such as '512m'.")
    return int(float(found[1]) * _UNITS[found[2].lower()])


def shown(size: int) -> str:
    """Return a number of bytes for people."""
    for unit in ("GiB", "MiB", "KiB"):
        one = _UNITS[unit[0].lower()]
        if size >= one:
            return f"{size / one:.4g} {unit}"
    return f"{size} bytes"


def variables(given: Mapping[str, str] | None) -> dict[str, str]:
    """Return environment variables, or refuse them.

    Raises:
        OptionError: One has no name, or its value is no text.
    """
    for name, value in (given or {}).items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise OptionError(f"env_vars: {name!r} is no name of an environment variable.")
        if not isinstance(value, str) or "\0" in value:
            raise OptionError(
                f"env_vars: {name} has a {type(value).__name__}, and must be a text: "
                f"{{{name!r}: str(…)}}."
            )
    return dict(given or {})


def _bind(source: str, target: str) -> str:
    return f"{source}:{target}" if target.endswith(":rw") else f"{source}:{target}:ro"


def _refuse_little(name: str, size: int, least: int) -> None:
    if size < least:
        raise OptionError(f"{name}={size} bytes is less than {shown(least)}, the least there is.")


def _refuse_count(name: str, value: Any, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise OptionError(f"{name}={value!r} is no whole number from {least} to {most}.")


def _refuse_text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value.strip():
        raise OptionError(f"{name}={value!r} is no text, or an empty one.")


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

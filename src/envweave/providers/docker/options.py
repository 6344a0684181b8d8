"""The options of a container, and the images of this project."""

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
_LEAST_MEMORY = 16 * 2**20  # too little for Python to start
_VARIABLE = re.compile(r"[^=\0\s]+")
_CPU_PERIOD_US = 100_000
_LOG = {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "1"}}
"""A container's log is kept on the engine's disk, so it is bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerOptions:
    """The options of a container.

    Attributes:
        memory: Memory limit, in bytes or as `"512m"`; no additional swap.
        cpus: CPU limit, in cores.
        pids: Limit on processes and threads.
        tmp_size: Size of `/tmp`, which is in memory and counts towards `memory`.
        shm_size: Size of shared memory.
        network: `"bridge"`: the server listens on a local port and can reach the network;
            `"none"`: it listens on a unix socket and has no network; or the name of a network.
        read_only: Whether the file system of the image is read-only.
        user: The user of the server: `"1000"`, `"1000:1000"`; by default, the image's.
        capabilities: Linux capabilities that are not dropped, such as `"CHOWN"`.
        volumes: Folders of this machine and their mount points, read-only; `"/data:rw"` is
            writable.
        env_vars: The server's environment variables; those passed to `start_container` take
            precedence.
        command: The command to run instead of the image's.
        container_port: The port that the server listens on inside; by default, the image's, or
            8000.
        init: Whether an init process reaps orphaned processes.
        docker_host: The URL of the engine; by default, that of the `docker` command.
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
        """Refuse invalid values."""
        _check_minimum("memory", parse_size("memory", self.memory), _LEAST_MEMORY)
        _check_minimum("tmp_size", parse_size("tmp_size", self.tmp_size), 4096)
        _check_minimum("shm_size", parse_size("shm_size", self.shm_size), 4096)
        is_number = isinstance(self.cpus, int | float) and not isinstance(self.cpus, bool)
        if not is_number or not 0.01 <= self.cpus < math.inf:
            raise OptionError(f"cpus must be a number >= 0.01, such as 1.5, got {self.cpus!r}.")
        _check_int("pids", self.pids, 1, 2**22)
        if self.container_port is not None:
            _check_int("container_port", self.container_port, 1, 65535)
        for name in ("read_only", "init"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} must be True or False, got {getattr(self, name)!r}.")
        _check_string("network", self.network)
        if self.network == "host":
            raise OptionError(
                "network='host' would give the container this machine's own network. Use 'bridge', "
                "'none', or the name of a network from `docker network create`."
            )
        for name in ("user", "docker_host"):
            if getattr(self, name) is not None:
                _check_string(name, getattr(self, name))
        for name in ("capabilities", "command"):
            value = getattr(self, name)
            if isinstance(value, str) or not all(isinstance(one, str) for one in value or ()):
                raise OptionError(f"{name} must be a list of strings, got {value!r}.")
        variables(self.env_vars)
        for source, target in self.volumes.items():
            inside = str(target).removesuffix(":rw")
            if not os.path.isabs(source) or not os.path.isabs(inside) or ":" in source + inside:  # noqa: PTH117 - the target is not a path of this machine
                raise OptionError(
                    f"volumes must map absolute paths, got {{{source!r}: {target!r}}}. Use "
                    "{'/on/this/machine': '/in/the/container'}, with ':rw' appended to write."
                )

    def changed(self, changes: Mapping[str, Any]) -> DockerOptions:
        """Return the same with some options changed.

        Raises:
            OptionError: There is no such option, or its value is invalid.
        """
        return dataclasses.replace(self, **check_names(changes))

    @property
    def has_network(self) -> bool:
        """Whether the server is reached at a port, rather than a unix socket."""
        return self.network != "none"

    def host_config(self) -> dict[str, Any]:
        """Return the `HostConfig` of the engine's API."""
        memory = parse_size("memory", self.memory)
        tmp = f"rw,noexec,nosuid,nodev,size={parse_size('tmp_size', self.tmp_size)},mode=1777"
        return {
            "NetworkMode": self.network,
            "ReadonlyRootfs": self.read_only,
            "CapDrop": ["ALL"],
            "CapAdd": list(self.capabilities),
            "SecurityOpt": ["no-new-privileges"],
            "Memory": memory,
            "MemorySwap": memory,
            "CpuPeriod": _CPU_PERIOD_US,
            # A quota may exceed the number of cores, so that need not be known.
            "CpuQuota": int(self.cpus * _CPU_PERIOD_US),
            "PidsLimit": self.pids,
            "Tmpfs": {"/tmp": tmp},  # noqa: S108 - the container's own
            "ShmSize": parse_size("shm_size", self.shm_size),
            "Binds": [_bind(source, target) for source, target in self.volumes.items()],
            "LogConfig": _LOG,
            "Init": self.init,
            "RestartPolicy": {"Name": "no"},
        }


def check_names(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, if all their names exist.

    Raises:
        OptionError: One does not; the message has the nearest name.
    """
    names = [field.name for field in dataclasses.fields(DockerOptions)]
    for name in options:
        if name not in names:
            hint = suggest(name, names) or f" Known: {', '.join(names)}."
            raise OptionError(f"A container has no option {name!r}.{hint}")
    return dict(options)


def parse_size(name: str, value: Any) -> int:
    """Return a number of bytes, or refuse it."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise OptionError(
            f"{name} must be a size in bytes, or a string such as '512m', got {value!r}."
        )
    return int(float(found[1]) * _UNITS[found[2].lower()])


def format_size(size: int) -> str:
    """Return a number of bytes in a readable unit."""
    for unit in ("GiB", "MiB", "KiB"):
        factor = _UNITS[unit[0].lower()]
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size} bytes"


def check_image_name(image: Any) -> None:
    """Refuse an empty name of an image, or one that is not a string.

    Raises:
        OptionError: It is not a name.
    """
    if not isinstance(image, str) or not image.strip():
        raise OptionError(
            f"{image!r} is not the name of an image. Use one such as 'echo-env:latest'."
        )


def variables(given: Mapping[str, str] | None) -> dict[str, str]:
    """Return environment variables, or refuse them.

    Raises:
        OptionError: A name is invalid, or a value is not a string.
    """
    for name, value in (given or {}).items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise OptionError(f"env_vars: {name!r} is not a valid name.")
        if not isinstance(value, str) or "\0" in value:
            raise OptionError(
                f"env_vars: {name} must be a string without NUL, got {type(value).__name__}. Use "
                f"{{{name!r}: str(…)}}."
            )
    return dict(given or {})


def _bind(source: str, target: str) -> str:
    return f"{source}:{target}" if target.endswith(":rw") else f"{source}:{target}:ro"


def _check_minimum(name: str, size: int, least: int) -> None:
    if size < least:
        raise OptionError(f"{name} must be at least {format_size(least)}, got {size} bytes.")


def _check_int(name: str, value: Any, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise OptionError(f"{name} must be an integer from {least} to {most}, got {value!r}.")


def _check_string(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value.strip():
        raise OptionError(f"{name} must be a non-empty string, got {value!r}.")


CONFIG = "ENVWEAVE_CONFIG"
"""The environment variable with the configuration of a server in a container."""

SERVER_LABEL = "envweave.server"
"""The label of images whose server reads `CONFIG`, and can listen on a unix socket."""

ENV_LABEL = "envweave.env"
"""The label with the ID that an image serves by default."""

DOCKERFILES = {
    "envweave-base:latest": "docker/base/Dockerfile",
    "envweave-codefix:latest": "docker/codefix_env_server/Dockerfile",
    "envweave-gsm8k:latest": "docker/gsm8k_env_server/Dockerfile",
    "envweave-lineworld:latest": "docker/lineworld_env_server/Dockerfile",
    "coding-env:latest": "docker/coding_env_server/Dockerfile",
    "echo-env:latest": "docker/echo_env_server/Dockerfile",
}
"""The images of this project, and the Dockerfiles in its repository."""

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
    """Return the error message for a missing image, with the way to get it.

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
        port: The port of its server, if it exposes exactly one.
        is_ours: Whether its server is configured by `CONFIG`.
        env_id: The ID that its server serves, if it has the label.
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

    def check_supported(self, options: DockerOptions, env_vars: Mapping[str, str]) -> None:
        """Refuse options that need a server configured by `CONFIG`, if the image has none.

        Raises:
            OptionError: `network="none"`, or keywords for its environment.
        """
        if self.is_ours:
            return
        if not options.has_network:
            raise OptionError(
                f"network='none' needs a server that listens on a unix socket, and {self._name!r} "
                "is not built on envweave-base. Leave it out, or build it with `envweave build`."
            )
        for name, value in _env_options(env_vars.get(CONFIG, "")).items():
            raise OptionError(
                f"{name}={value!r} cannot be passed to {self._name!r}, which is not built on "
                "envweave-base and makes its environments itself. Leave it out, or build it with "
                "`envweave build`."
            )

    def warn_about_root(self, user: str | None) -> None:
        """Warn if the server runs as root, unless `user` says so."""
        if user is None and self._user.partition(":")[0] in ("", "0", "root"):
            warnings.warn(
                f"The image {self._name!r} runs as root. Give it a USER, or pass user='1000:1000'; "
                "user='root' silences this warning.",
                stacklevel=2,
            )


def _env_options(config: str) -> dict[str, Any]:
    """Return the options of the environment and its episodes."""
    try:
        options = json.loads(config or "{}")
    except ValueError:
        return {}
    options = options if isinstance(options, dict) else {}
    episode = {name: options.get(name) for name in ("max_episode_steps", "transform")}
    given = {name: value for name, value in episode.items() if value is not None}
    return {**(options.get("kwargs") or {}), **given}

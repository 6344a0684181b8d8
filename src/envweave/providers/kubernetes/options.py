"""The options of a pod: its resources, where it may run, and how it is reached."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envweave.errors import OptionError, suggest
from envweave.providers.docker.options import format_size, parse_size, variables

ACCESS = ("forward", "cluster")
PULL_POLICIES = ("IfNotPresent", "Always", "Never")

_LEAST_MEMORY = 16 * 2**20  # too little for Python to start
_LEAST_TTL_S = 10.0
_USER = re.compile(r"(\d+)(?::(\d+))?")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?)?")

OWN_KEYS = {
    "activeDeadlineSeconds": "ttl_s",
    "automountServiceAccountToken": "service_account",
    "containers": "command, memory and cpus",
    "imagePullSecrets": "pull_secrets",
    "nodeSelector": "node_selector",
    "restartPolicy": None,
    "runtimeClassName": "runtime_class",
    "securityContext": "user",
    "serviceAccountName": "service_account",
    "tolerations": "tolerations",
    "volumes": "tmp_size",
}
"""The keys of a pod's spec that are set here, and by which option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """The options of a pod.

    Attributes:
        memory: Memory limit, in bytes or as `"512m"`.
        cpus: CPU limit, in cores.
        memory_request: Memory that a node must have free; by default a quarter of `memory`.
        cpu_request: Cores that a node must have free; by default a quarter of `cpus`.
        tmp_size: Size of `/tmp`, which is in memory and counts towards `memory`.
        read_only: Whether the file system of the image is read-only.
        user: The numeric user of the server: `"1000"`, `"1000:1000"`; by default the image's,
            which must not be root.
        capabilities: Linux capabilities that are not dropped, such as `"CHOWN"`.
        env_vars: The server's environment variables, stored in a secret; those passed to
            `start_container` take precedence.
        command: The command to run instead of the image's.
        container_port: The port that the server listens on inside; by default 8000.
        ttl_s: After how many seconds the cluster ends the pod, even if its owner is gone.
        stop_timeout_s: How long its server may take to close its environments before it is killed;
            0 kills it at once.
        schedule_timeout_s: How long it may wait for a node with enough room; increase it if nodes
            are added on demand.
        access: `"forward"` reaches the pod through the API server; `"cluster"` at its own address,
            for clients inside the cluster.
        service: Whether to create a service too, whose address `access="cluster"` then uses.
        namespace: The namespace; by default that of the current context, or `"default"`.
        node_selector: The labels that its node must have.
        tolerations: The taints that its node may have, as in a manifest.
        labels: Additional labels.
        image_pull_policy: `"IfNotPresent"`, `"Always"` or `"Never"`.
        pull_secrets: The names of secrets for the registry.
        runtime_class: The runtime class, such as `"gvisor"`; by default the cluster's.
        service_account: The service account. The pod gets no token for it.
        pod_spec: Additional keys of its spec, as in a manifest.
        kubeconfig: The kubeconfig file; by default `$KUBECONFIG`, `~/.kube/config`, or the
            configuration inside a cluster.
        context: The context in it; by default the current one.
    """

    memory: int | str = "2g"
    cpus: float = 2.0
    memory_request: int | str | None = None
    cpu_request: float | None = None
    tmp_size: int | str = "256m"
    read_only: bool = True
    user: str | None = None
    capabilities: Sequence[str] = ()
    env_vars: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] | None = None
    container_port: int | None = None
    ttl_s: float = 24 * 3600.0
    stop_timeout_s: float = 5.0
    schedule_timeout_s: float = 5.0
    access: str = "forward"
    service: bool = False
    namespace: str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    image_pull_policy: str = "IfNotPresent"
    pull_secrets: Sequence[str] = ()
    runtime_class: str | None = None
    service_account: str | None = None
    pod_spec: Mapping[str, Any] = field(default_factory=dict)
    kubeconfig: str | None = None
    context: str | None = None

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        self._check_amounts()
        if self.container_port is not None:
            _check_int("container_port", self.container_port, 1, 65535)
        for name in ("read_only", "service"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} must be True or False, got {getattr(self, name)!r}.")
        _check_choice("access", self.access, ACCESS)
        _check_choice("image_pull_policy", self.image_pull_policy, PULL_POLICIES)
        for name in ("namespace", "runtime_class", "service_account"):
            _check_name(name, getattr(self, name))
        for name in ("kubeconfig", "context"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise OptionError(f"{name} must be a non-empty string, got {value!r}.")
        if self.user is not None and not _USER.fullmatch(str(self.user)):
            raise OptionError(
                f"user must be a number, such as '1000', or '1000:1000' with a group, got "
                f"{self.user!r}."
            )
        for name in ("capabilities", "command", "pull_secrets"):
            value = getattr(self, name)
            if isinstance(value, str) or not all(isinstance(one, str) for one in value or ()):
                raise OptionError(f"{name} must be a list of strings, got {value!r}.")
        variables(self.env_vars)
        self._check_labels()
        is_list = isinstance(self.tolerations, Sequence) and not isinstance(self.tolerations, str)
        if not is_list or not all(isinstance(one, Mapping) for one in self.tolerations):
            raise OptionError(
                "tolerations must be a list of dicts, such as "
                f"[{{'key': 'gpu', 'operator': 'Exists'}}], got {self.tolerations!r}."
            )
        self._check_pod_spec()

    def _check_amounts(self) -> None:
        memory = parse_size("memory", self.memory)
        if memory < _LEAST_MEMORY:
            raise OptionError(
                f"memory must be at least {format_size(_LEAST_MEMORY)}, got {memory} bytes."
            )
        if parse_size("tmp_size", self.tmp_size) < 4096:
            raise OptionError(f"tmp_size must be at least 4 KiB, got {self.tmp_size!r}.")
        _check_number("cpus", self.cpus, 0.01)
        _check_number("ttl_s", self.ttl_s, _LEAST_TTL_S)
        for name in ("stop_timeout_s", "schedule_timeout_s"):
            _check_number(name, getattr(self, name), 0)
        if (
            self.memory_request is not None
            and parse_size("memory_request", self.memory_request) > memory
        ):
            raise OptionError(
                f"memory_request={self.memory_request!r} is more than memory={self.memory!r}."
            )
        if self.cpu_request is not None:
            _check_number("cpu_request", self.cpu_request, 0.001)
            if self.cpu_request > self.cpus:
                raise OptionError(
                    f"cpu_request={self.cpu_request!r} is more than cpus={self.cpus!r}."
                )

    def _check_labels(self) -> None:
        for name in ("node_selector", "labels"):
            given = getattr(self, name)
            if not isinstance(given, Mapping):
                raise OptionError(f"{name} must be a dict of strings, got {given!r}.")
            for key, value in given.items():
                is_label = isinstance(key, str) and _KEY.fullmatch(key)
                if not is_label or not isinstance(value, str) or not _VALUE.fullmatch(value):
                    raise OptionError(
                        f"{name}={{{key!r}: {value!r}}} is not a valid Kubernetes label: use at "
                        "most 63 letters, digits, '-', '_' and '.'."
                    )
                if name == "labels" and key.startswith("envweave."):
                    raise OptionError(f"labels={{{key!r}: …}}: such labels are set by envweave.")

    def _check_pod_spec(self) -> None:
        if not isinstance(self.pod_spec, Mapping):
            raise OptionError(f"pod_spec must be a dict, got {self.pod_spec!r}.")
        for key in self.pod_spec:
            if key in OWN_KEYS:
                option = OWN_KEYS[key]
                hint = f"Use {option}." if option else "It is always 'Never'."
                raise OptionError(f"pod_spec={{{key!r}: …}} is set by envweave. {hint}")

    def changed(self, changes: Mapping[str, Any]) -> KubernetesOptions:
        """Return the same with some options changed.

        Raises:
            OptionError: There is no such option, or its value is invalid.
        """
        return dataclasses.replace(self, **check_names(changes))

    @property
    def port(self) -> int:
        """The port that the server listens on inside."""
        return self.container_port or 8000

    @property
    def user_and_group(self) -> tuple[int | None, int | None]:
        """The numeric user and group of the server, if given."""
        found = _USER.fullmatch(str(self.user)) if self.user is not None else None
        if found is None:
            return None, None
        return int(found[1]), None if found[2] is None else int(found[2])

    def resources(self) -> dict[str, dict[str, str]]:
        """Return its limits and requests, as in a manifest."""
        memory = parse_size("memory", self.memory)
        default = memory // 4 if self.memory_request is None else None
        cpus = self.cpus / 4 if self.cpu_request is None else self.cpu_request
        return {
            "limits": {"memory": str(memory), "cpu": _milli(self.cpus)},
            "requests": {
                "memory": str(default or parse_size("memory_request", self.memory_request)),
                "cpu": _milli(cpus),
            },
        }


def check_names(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, if all their names exist.

    Raises:
        OptionError: One does not; the message has the nearest name.
    """
    names = [field.name for field in dataclasses.fields(KubernetesOptions)]
    for name in options:
        if name not in names:
            hint = suggest(name, names) or f" Known: {', '.join(names)}."
            raise OptionError(f"A pod has no option {name!r}.{hint}")
    return dict(options)


def _milli(cpus: float) -> str:
    return f"{max(1, round(cpus * 1000))}m"


def _check_number(name: str, value: Any, least: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value < math.inf:
        raise OptionError(f"{name} must be a number >= {least:g}, got {value!r}.")


def _check_int(name: str, value: Any, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise OptionError(f"{name} must be an integer from {least} to {most}, got {value!r}.")


def _check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise OptionError(
            f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}."
            f"{suggest(str(value), choices)}"
        )


def _check_name(name: str, value: Any) -> None:
    if value is not None and (not isinstance(value, str) or not _NAME.fullmatch(value)):
        raise OptionError(
            f"{name}={value!r} is not a valid Kubernetes name: use lower-case letters, digits and "
            "'-'."
        )

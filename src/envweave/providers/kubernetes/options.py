"""How much a pod may have, where it may run, and how it is reached."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envweave.errors import OptionError, suggest
from envweave.providers.docker.options import shown, size_of, variables

ACCESS = ("forward", "cluster")
PULL_POLICIES = ("IfNotPresent", "Always", "Never")

_LEAST_MEMORY = 16 * 2**20  # less than a Python needs to say so
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
"""What of a pod is set here, and by which option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """What a pod is given.

    Attributes:
        memory: How much memory, in bytes or as `"512m"`.
        cpus: How many cores' worth of time.
        memory_request: How much memory a node must have left for it; a quarter of `memory` if
            left out.
        cpu_request: How many cores a node must have left for it; a quarter of `cpus` if left out.
        tmp_size: How large its `/tmp` may be, which is in memory, and is counted there.
        read_only: Whether the file system of the image cannot be written to.
        user: Who the server is, in numbers: `"1000"`, `"1000:1000"`; left out, whom the image
            says, who may not be root.
        capabilities: The rights of root that are not taken away, such as `"CHOWN"`.
        env_vars: The server's environment variables; those given to `start_container` come on
            top. They travel in a secret.
        command: What to run instead of what the image says.
        container_port: Where the server listens inside; left out, 8000.
        ttl_s: After how many seconds the cluster ends the pod, whatever becomes of its owner.
        stop_timeout_s: How long its server may take to close its environments, before it is killed;
            0 kills it at once.
        schedule_timeout_s: How long it may wait for a node that has room; more where nodes are
            added on demand.
        access: `"forward"` reaches the pod through the API server; `"cluster"` by its own address,
            for callers inside the cluster.
        service: Whether it has a service as well, whose address `access="cluster"` then uses.
        namespace: Where; left out, where the current context says, or `"default"`.
        node_selector: The labels that its node must have.
        tolerations: The taints that its node may have, as Kubernetes writes them.
        labels: More labels for it.
        image_pull_policy: `"IfNotPresent"`, `"Always"` or `"Never"`.
        pull_secrets: The names of secrets that the registry asks for.
        runtime_class: What runs it, such as `"gvisor"`; left out, what the cluster says.
        service_account: Who it is to the cluster. It is given no token to say so.
        pod_spec: Whatever else its spec shall have, as Kubernetes writes it.
        kubeconfig: The file that tells of the cluster; left out, `$KUBECONFIG`,
            `~/.kube/config`, or, inside a cluster, that one.
        context: Which of its contexts; left out, the current one.
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
        """Refuse what no pod can be given."""
        self._check_amounts()
        if self.container_port is not None:
            _refuse_count("container_port", self.container_port, 1, 65535)
        for name in ("read_only", "service"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name}={getattr(self, name)!r} is neither True nor False.")
        _refuse_choice("access", self.access, ACCESS)
        _refuse_choice("image_pull_policy", self.image_pull_policy, PULL_POLICIES)
        for name in ("namespace", "runtime_class", "service_account"):
            _refuse_name(name, getattr(self, name))
        for name in ("kubeconfig", "context"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise OptionError(f"{name}={value!r} is no text, or an empty one.")
        if self.user is not None and not _USER.fullmatch(str(self.user)):
            raise OptionError(
                f"user={self.user!r} is no number, and a pod's user must be one: '1000', or "
                "'1000:1000' with its group."
            )
        for name in ("capabilities", "command", "pull_secrets"):
            value = getattr(self, name)
            if isinstance(value, str) or not all(isinstance(one, str) for one in value or ()):
                raise OptionError(f"{name}={value!r} is no list of texts.")
        variables(self.env_vars)
        self._check_labels()
        is_list = isinstance(self.tolerations, Sequence) and not isinstance(self.tolerations, str)
        if not is_list or not all(isinstance(one, Mapping) for one in self.tolerations):
            raise OptionError(
                f"tolerations={self.tolerations!r} is no list of dicts. Use such as "
                "[{'key': 'gpu', 'operator': 'Exists'}]."
            )
        self._check_pod_spec()

    def _check_amounts(self) -> None:
        memory = size_of("memory", self.memory)
        if memory < _LEAST_MEMORY:
            raise OptionError(
                f"memory={memory} bytes is less than {shown(_LEAST_MEMORY)}, the least there is."
            )
        if size_of("tmp_size", self.tmp_size) < 4096:
            raise OptionError(f"tmp_size={self.tmp_size!r} is less than 4 KiB, the least there is.")
        _refuse_number("cpus", self.cpus, 0.01)
        _refuse_number("ttl_s", self.ttl_s, _LEAST_TTL_S)
        for name in ("stop_timeout_s", "schedule_timeout_s"):
            _refuse_number(name, getattr(self, name), 0)
        if self.memory_request is not None:
            wanted = size_of("memory_request", self.memory_request)
            if wanted > memory:
                raise OptionError(
                    f"memory_request={self.memory_request!r} is more than memory={self.memory!r}."
                )
        if self.cpu_request is not None:
            _refuse_number("cpu_request", self.cpu_request, 0.001)
            if self.cpu_request > self.cpus:
                raise OptionError(
                    f"cpu_request={self.cpu_request!r} is more than cpus={self.cpus!r}."
                )

    def _check_labels(self) -> None:
        for name in ("node_selector", "labels"):
            given = getattr(self, name)
            if not isinstance(given, Mapping):
                raise OptionError(f"{name}={given!r} is no dict of texts.")
            for key, value in given.items():
                is_label = isinstance(key, str) and _KEY.fullmatch(key)
                if not is_label or not isinstance(value, str) or not _VALUE.fullmatch(value):
                    raise OptionError(
                        f"{name}={{{key!r}: {value!r}}} is no label of Kubernetes: letters, "
                        "digits, '-', '_' and '.', and at most 63 of them."
                    )
                if name == "labels" and key.startswith("envweave."):
                    raise OptionError(f"labels={{{key!r}: …}}: such labels are set by envweave.")

    def _check_pod_spec(self) -> None:
        if not isinstance(self.pod_spec, Mapping):
            raise OptionError(f"pod_spec={self.pod_spec!r} is no dict.")
        for key in self.pod_spec:
            if key in OWN_KEYS:
                option = OWN_KEYS[key]
                hint = f"Use {option}." if option else "It is always 'Never'."
                raise OptionError(f"pod_spec={{{key!r}: …}} is set by envweave. {hint}")

    def changed(self, changes: Mapping[str, Any]) -> KubernetesOptions:
        """Return the same with some options changed.

        Raises:
            OptionError: There is no such option, or it cannot have this value.
        """
        return dataclasses.replace(self, **known(changes))

    @property
    def port(self) -> int:
        """Where the server listens inside."""
        return self.container_port or 8000

    @property
    def user_and_group(self) -> tuple[int | None, int | None]:
        """Who the server is, in numbers, where it is said."""
        found = _USER.fullmatch(str(self.user)) if self.user is not None else None
        if found is None:
            return None, None
        return int(found[1]), None if found[2] is None else int(found[2])

    def resources(self) -> dict[str, dict[str, str]]:
        """Return how much it may have, and how much a node must have left, as Kubernetes has it."""
        memory = size_of("memory", self.memory)
        asked = memory // 4 if self.memory_request is None else None
        cpus = self.cpus / 4 if self.cpu_request is None else self.cpu_request
        return {
            "limits": {"memory": str(memory), "cpu": _milli(self.cpus)},
            "requests": {
                "memory": str(asked or size_of("memory_request", self.memory_request)),
                "cpu": _milli(cpus),
            },
        }


def known(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options that there are.

    Raises:
        OptionError: One that there is not; the nearest is named.
    """
    names = [one.name for one in dataclasses.fields(KubernetesOptions)]
    for name in options:
        if name not in names:
            hint = suggest(name, names) or f" There are: {', '.join(names)}."
            raise OptionError(f"A pod has no option {name!r}.{hint}")
    return dict(options)


def _milli(cpus: float) -> str:
    return f"{max(1, round(cpus * 1000))}m"


def _refuse_number(name: str, value: Any, least: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value < math.inf:
        raise OptionError(f"{name}={value!r} is no number of {least:g} or more.")


def _refuse_count(name: str, value: Any, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise OptionError(f"{name}={value!r} is no whole number from {least} to {most}.")


def _refuse_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise OptionError(
            f"{name}={value!r} is none of {', '.join(map(repr, choices))}."
            f"{suggest(str(value), choices)}"
        )


def _refuse_name(name: str, value: Any) -> None:
    if value is not None and (not isinstance(value, str) or not _NAME.fullmatch(value)):
        raise OptionError(
            f"{name}={value!r} is no name in Kubernetes: lower-case letters, digits and '-'."
        )

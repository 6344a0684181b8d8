"""What is to be expected of a pod, by what the cluster says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from envweave.providers.docker_options import shown, size_of
from envweave.providers.kubernetes_manifests import CONTAINER
from envweave.providers.kubernetes_options import KubernetesOptions

_OUT_OF_MEMORY = "OOMKilled"
_PULLS = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ErrImagePullBackOff")
_HOPELESS = (
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    *_PULLS,
)


class Outlook(Enum):
    """What is to be expected of a pod."""

    WAITING = "waiting"
    WITHOUT_NODE = "without node"
    RUNNING = "running"
    HOPELESS = "hopeless"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be expected of a pod, and why.

    Attributes:
        outlook: In short. A pod that is `HOPELESS` never ran; one that is `OVER` did, or its end
            is decided.
        why: How a sentence goes on that begins with the pod's name; empty if all is well.
        is_told: Whether its own last lines may say more.
    """

    outlook: Outlook
    why: str = ""
    is_told: bool = False


def judge(pod: Mapping[str, Any], options: KubernetesOptions) -> Verdict:
    """Return what is to be expected of a pod, as the cluster has it."""
    status = pod.get("status") or {}
    phase = status.get("phase")
    state = state_of(pod)
    if phase in ("Failed", "Succeeded") or "terminated" in state:
        return _over(status, state.get("terminated") or {}, options)
    if (pod.get("metadata") or {}).get("deletionTimestamp"):
        because = _condition(status, "DisruptionTarget")
        why = f" ({because['message']})" if because.get("message") else ""
        return Verdict(Outlook.OVER, f"was deleted by somebody else{why}", is_told=True)
    if "running" in state:
        return Verdict(Outlook.RUNNING)
    waiting = state.get("waiting") or {}
    if waiting.get("reason") in _HOPELESS:
        return Verdict(Outlook.HOPELESS, _hopeless(waiting, options))
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        told = _joined(scheduled.get("message")) or "the scheduler does not say why"
        return Verdict(
            Outlook.WITHOUT_NODE,
            f"finds no node to run on (Unschedulable): {told}. Ask for less, with "
            "KubernetesProvider(memory_request=…, cpu_request=…), or give node_selector and "
            "tolerations that fit",
        )
    return Verdict(Outlook.WAITING, _waiting(waiting))


def state_of(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the server in a pod does, whatever else a cluster has put there beside it."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    found = (one.get("state") for one in statuses if one.get("name") == CONTAINER)
    return next(found, None) or {}


def _over(
    status: Mapping[str, Any], ended: Mapping[str, Any], options: KubernetesOptions
) -> Verdict:
    reason, message = status.get("reason"), _joined(status.get("message"))
    code = ended.get("exitCode")
    if reason == "DeadlineExceeded":
        return Verdict(
            Outlook.OVER,
            f"was ended by the cluster: it was there for more than ttl_s={options.ttl_s:g} seconds "
            "(DeadlineExceeded). Give it more, with KubernetesProvider(ttl_s=…)",
        )
    if ended.get("reason") == _OUT_OF_MEMORY:
        limit = shown(size_of("memory", options.memory))
        why = (
            f"ran out of memory: it needed more than {limit}, and was killed (OOMKilled, exit code "
            f"{code}). Give it more, with KubernetesProvider(memory=…)"
        )
        return Verdict(Outlook.OVER, why, is_told=True)
    if reason and reason != "Completed":  # Evicted, NodeLost, Shutdown, Preempting, …
        told = f": {message}" if message else ""
        return Verdict(Outlook.OVER, f"was ended by the cluster ({reason}){told}", is_told=True)
    if ended.get("reason") in ("StartError", "ContainerCannotRun"):
        why = f"could not be started: {_joined(ended.get('message'))}"
        return Verdict(Outlook.HOPELESS, why)
    if code is None:
        phase = status.get("phase")
        return Verdict(Outlook.OVER, f"has ended ({phase}){f': {message}' if message else ''}")
    said = f" ({ended['signal']})" if ended.get("signal") else ""
    return Verdict(Outlook.OVER, f"exited with code {code}{said}", is_told=True)


def _hopeless(waiting: Mapping[str, Any], options: KubernetesOptions) -> str:
    reason, message = waiting["reason"], _joined(waiting.get("message"))
    told = f"cannot be started ({reason}): {message or 'the cluster does not say why'}"
    if reason == "ErrImageNeverPull":
        return (
            f"{told}. The image is not on the node, and image_pull_policy='Never' forbids to fetch "
            "it. Put it there, or use 'IfNotPresent'"
        )
    if reason in _PULLS:
        return (
            f"{told}. Push the image to a registry that the cluster can read; one that asks for a "
            "password needs pull_secrets=[…]"
        )
    if reason == "InvalidImageName":
        return f"{told}. Use a name such as 'registry.example/echo-env:1.0'"
    if reason == "CreateContainerConfigError" and "runAsNonRoot" in message:
        return (
            f"{told}. Give the image a USER in numbers, or pass user='1000:1000'; user='0' says "
            "that it shall be root"
        )
    if options.runtime_class is not None:
        return f"{told}. It was to be run by runtime_class={options.runtime_class!r}"
    return told


def _waiting(waiting: Mapping[str, Any]) -> str:
    reason, message = waiting.get("reason"), _joined(waiting.get("message"))
    if not reason:
        return "waits for a node"
    return f"waits ({reason})" + (f": {message}" if message else "")


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found = [one for one in status.get("conditions") or [] if one.get("type") == kind]
    return found[0] if found else {}


def _joined(said: Any) -> str:
    return " ".join(str(said or "").split()).rstrip(".")

"""One pod: started, reached, looked at, and deleted."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, final

from envweave.errors import EnvWeaveError, StartupError
from envweave.providers.docker.options import shown, size_of
from envweave.providers.health import LINES_READ, answers_health, error_in, log_tail
from envweave.providers.kubernetes.cleanup import delete_later
from envweave.providers.kubernetes.cluster import (
    CALL_S,
    LOOK_S,
    Cluster,
    ClusterError,
    ClusterRefusedError,
    NoSuchObjectError,
)
from envweave.providers.kubernetes.manifests import CONTAINER, owned, owned_by, pod, secret, service
from envweave.providers.kubernetes.options import KubernetesOptions
from envweave.providers.kubernetes.port_forward import PortForward

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
class PodVerdict:
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


def judge(pod: Mapping[str, Any], options: KubernetesOptions) -> PodVerdict:
    """Return what is to be expected of a pod, as the cluster has it."""
    status = pod.get("status") or {}
    phase = status.get("phase")
    state = state_of(pod)
    if phase in ("Failed", "Succeeded") or "terminated" in state:
        return _over(status, state.get("terminated") or {}, options)
    if (pod.get("metadata") or {}).get("deletionTimestamp"):
        because = _condition(status, "DisruptionTarget")
        why = f" ({because['message']})" if because.get("message") else ""
        return PodVerdict(Outlook.OVER, f"was deleted by somebody else{why}", is_told=True)
    if "running" in state:
        return PodVerdict(Outlook.RUNNING)
    waiting = state.get("waiting") or {}
    if waiting.get("reason") in _HOPELESS:
        return PodVerdict(Outlook.HOPELESS, _hopeless(waiting, options))
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        told = _joined(scheduled.get("message")) or "the scheduler does not say why"
        return PodVerdict(
            Outlook.WITHOUT_NODE,
            f"finds no node to run on (Unschedulable): {told}. Ask for less, with "
            "KubernetesProvider(memory_request=…, cpu_request=…), or give node_selector and "
            "tolerations that fit",
        )
    return PodVerdict(Outlook.WAITING, _waiting(waiting))


def state_of(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the server in a pod does, whatever else a cluster has put there beside it."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    found = (one.get("state") for one in statuses if one.get("name") == CONTAINER)
    return next(found, None) or {}


def _over(
    status: Mapping[str, Any], ended: Mapping[str, Any], options: KubernetesOptions
) -> PodVerdict:
    reason, message = status.get("reason"), _joined(status.get("message"))
    code = ended.get("exitCode")
    if reason == "DeadlineExceeded":
        return PodVerdict(
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
        return PodVerdict(Outlook.OVER, why, is_told=True)
    if reason and reason != "Completed":  # Evicted, NodeLost, Shutdown, Preempting, …
        told = f": {message}" if message else ""
        return PodVerdict(Outlook.OVER, f"was ended by the cluster ({reason}){told}", is_told=True)
    if ended.get("reason") in ("StartError", "ContainerCannotRun"):
        why = f"could not be started: {_joined(ended.get('message'))}"
        return PodVerdict(Outlook.HOPELESS, why)
    if code is None:
        phase = status.get("phase")
        return PodVerdict(Outlook.OVER, f"has ended ({phase}){f': {message}' if message else ''}")
    said = f" ({ended['signal']})" if ended.get("signal") else ""
    return PodVerdict(Outlook.OVER, f"exited with code {code}{said}", is_told=True)


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


logger = logging.getLogger("envweave.providers")

SILENCE_S = 6.0
"""How long the API server may be out of reach before what is behind it counts as lost."""

SAME_SILENCE_S = 30.0
"""How far apart two looks may be that find it out of reach, to be of one silence."""

ADDRESS_S = 60.0
"""How long a pod may take until it has an address of its own."""

_POLL_S = 0.02
_LOOK_EVERY_S = 0.5
_WATCH_S = 30.0


@final
class Pod:
    """A pod with a server in it, which is deleted by `remove`, and by nothing else before its time.

    Args:
        cluster: Where it runs.
        image: From which image.
        options: What it is given.
        port: The port of loopback where callers will find it; `None` for one that is free.
        env_vars: The server's environment variables, which travel in a secret.

    Attributes:
        name: What the cluster calls it.
        base_url: Where its server will answer.

    Raises:
        StartupError: It could not be started. Nothing is left behind.
    """

    def __init__(
        self,
        cluster: Cluster,
        image: str,
        options: KubernetesOptions,
        port: int | None,
        env_vars: Mapping[str, str],
    ) -> None:
        self._cluster = cluster
        self._image = image
        self._options = options
        self._owner = os.getpid()
        self._forward: PortForward | None = None
        self._was_reached = False
        self._silence = Silence()
        self.name = f"envweave-{secrets.token_hex(6)}"
        about = owned(options)
        kept = secret(self.name, env_vars, about)
        try:
            cluster.create("secrets", kept)
            made = cluster.create("pods", pod(self.name, image, options, env_vars, about))
            self._made = made
            cluster.change("secrets", self.name, owned_by(made))
            self.base_url = self._opened(made, about, port)
        except BaseException as error:
            self.remove()
            if isinstance(error, ClusterRefusedError | NoSuchObjectError):
                raise StartupError(
                    f"A pod of {image!r} could not be made in the namespace "
                    f"{cluster.namespace!r}: {error}."
                ) from None
            raise

    def _opened(self, made: Mapping[str, Any], about: Mapping[str, Any], port: int | None) -> str:
        """Return where the server will answer."""
        inside, address = self._options.port, None
        if self._options.service:
            chosen = {"envweave.pod": self.name}
            wanted = service(self.name, chosen, inside, {**about, **owned_by(made)["metadata"]})
            address = self._cluster.create("services", wanted)["spec"]["clusterIP"]
        if self._options.access == "forward":
            self._forward = PortForward(
                self._line, port, is_lost=lambda: self.why_gone() is not None
            )
            return f"http://127.0.0.1:{self._forward.port}"
        if address is None:
            found = self._await(_address_of, time.monotonic() + ADDRESS_S)
            if found is None:
                raise StartupError(
                    f"{self._which()} {self._verdict().why or 'has no address'}, and has done so "
                    f"for {ADDRESS_S:g} s."
                )
            address = _address_of(found)
        return (
            f"http://[{address}]:{inside}" if ":" in str(address) else f"http://{address}:{inside}"
        )

    def _line(self) -> Any:
        """Return a socket that leads to the server."""
        found = self._cluster.connect(self.name, self._options.port)
        self._silence.end()
        return found

    # Whether it is well

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until its server answers.

        Raises:
            EnvWeaveError: What the server cannot be made for, as it would be raised here.
            StartupError: It cannot start, it exited, or `timeout_s` seconds passed.
        """
        ends_s = time.monotonic() + timeout_s
        if self._await(_runs, ends_s) is None:
            raise StartupError(
                f"{self._which()} {self._verdict().why or 'does not run'}, and has done so for "
                f"{timeout_s:g} s."
            )
        look_s = time.monotonic() + _LOOK_EVERY_S
        while not answers_health(self.base_url, max(0.1, ends_s - time.monotonic())):
            now_s = time.monotonic()
            if now_s >= look_s or now_s >= ends_s:
                self._refuse_gone(self._judged(self._look(self._made)))
                look_s = time.monotonic() + _LOOK_EVERY_S
            if now_s >= ends_s:
                raise StartupError(
                    f"{self._which()} runs, but its server did not answer within {timeout_s:g} s."
                    f"{log_tail(self._last_lines())}"
                )
            time.sleep(_POLL_S)
        self._was_reached = True

    def _await(
        self, is_enough: Callable[[Mapping[str, Any]], object], ends_s: float
    ) -> dict[str, Any] | None:
        """Watch it until it is as it should be, and return it; `None` if that took too long.

        Raises:
            EnvWeaveError: It never will be.
        """
        without_node_s: float | None = None
        found = self._look(self._made)
        while True:
            if found is not None and is_enough(found):
                return found
            verdict = self._judged(found)
            self._refuse_gone(verdict)
            now_s = time.monotonic()
            if verdict.outlook is not Outlook.WITHOUT_NODE:
                without_node_s = None
            elif without_node_s is None:
                without_node_s = now_s
            if (
                without_node_s is not None
                and now_s >= without_node_s + self._options.schedule_timeout_s
            ):
                raise StartupError(f"{self._which()} {verdict.why}.")
            if now_s >= ends_s:
                return None
            wakes_s = min(ends_s, now_s + _WATCH_S)
            if without_node_s is not None:
                wakes_s = min(wakes_s, without_node_s + self._options.schedule_timeout_s)
            found = self._next(found, max(0.0, wakes_s - now_s))

    def _seen(self, timeout_s: float = CALL_S) -> dict[str, Any] | None:
        try:
            return self._cluster.get("pods", self.name, timeout_s)
        except NoSuchObjectError:
            return None

    def _look(self, known: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return it as it is; as it was known to be while the API server is briefly away."""
        try:
            found = self._seen(LOOK_S)
        except ClusterError:
            if self._silence.has_lasted(time.monotonic()):
                raise
            return known
        self._silence.end()
        return found

    def _next(self, found: dict[str, Any] | None, timeout_s: float) -> dict[str, Any] | None:
        """Return it as it is after its next change, or when the time has come."""
        if found is None or timeout_s < 1.0:  # of which a watch knows nothing
            time.sleep(min(timeout_s, _POLL_S * 5))
            return self._look(found)
        version = str(found["metadata"]["resourceVersion"])
        changes = self._cluster.changes("pods", self.name, version, timeout_s)
        try:
            with contextlib.closing(changes):  # type: ignore[type-var] # it is a generator
                for one in changes:
                    return one
        except ClusterError as error:
            logger.debug("watching %s ended: %s", self.name, error)
        time.sleep(_POLL_S * 5)  # nobody may watch here, or not for long
        return self._look(found)

    def why_gone(self) -> str | None:
        """Return why its server will never answer again; `None` if it may."""
        try:
            verdict = self._verdict(LOOK_S)
        except ClusterError as error:
            # The pod lives on without the API server, which may be back in a moment.
            if not self._silence.has_lasted(time.monotonic()):
                return None
            return f"{self._which()} is out of reach. {error}"
        except StartupError as error:
            return f"{self._which()} is out of reach: {error}."
        self._silence.end()
        if verdict.outlook not in (Outlook.OVER, Outlook.HOPELESS):
            return None
        return str(self._gone(verdict))

    def _verdict(self, timeout_s: float = LOOK_S) -> PodVerdict:
        return self._judged(self._seen(timeout_s))

    def _judged(self, found: Mapping[str, Any] | None) -> PodVerdict:
        if found is None:
            return PodVerdict(Outlook.OVER, "was deleted by somebody else")
        return judge(found, self._options)

    def _refuse_gone(self, verdict: PodVerdict) -> None:
        if verdict.outlook in (Outlook.OVER, Outlook.HOPELESS):
            raise self._gone(verdict)

    def _gone(self, verdict: PodVerdict) -> EnvWeaveError:
        lines = self._last_lines() if verdict.is_told else []
        told_inside = None if self._was_reached else error_in(lines, self._image)
        if told_inside is not None:
            return told_inside
        end = log_tail(lines) if verdict.is_told else ""
        return StartupError(f"{self._which()} {verdict.why}.{end}")

    def _which(self) -> str:
        return f"The pod {self.name} of {self._image!r}"

    def _last_lines(self) -> list[str]:
        try:
            return self._cluster.last_lines(self.name, LINES_READ, LOOK_S)
        except StartupError:
            return []

    # Its end

    def stop(self) -> None:
        """End it in order if it can be, and delete it. May be called twice."""
        if self._owner != os.getpid():
            return
        try:
            grace_s = round(self._options.stop_timeout_s)
            if grace_s > 0:
                self._cluster.delete("pods", self.name, grace_s)
                self._await_end(time.monotonic() + grace_s)
        except StartupError as error:
            logger.warning("stopping %s failed: %s", self.name, error)
        finally:
            self.remove()

    def _await_end(self, ends_s: float) -> None:
        """Wait until its server has ended, which is long before the cluster forgets the pod."""
        found = self._seen()
        while found is not None and not _has_ended(found) and time.monotonic() < ends_s:
            found = self._next(found, max(1.0, ends_s - time.monotonic()))

    def remove(self) -> None:
        """Delete it, whatever it does. May be called twice.

        A forked copy of the process that started it leaves it alone.
        """
        if self._owner != os.getpid():
            return
        forward, self._forward = self._forward, None
        if forward is not None:
            forward.close()
        kinds = ["services", "pods", "secrets"] if self._options.service else ["pods", "secrets"]
        for kind in kinds:
            try:
                self._cluster.delete(kind, self.name)
            except StartupError as error:
                # Whoever starts a pod next deletes it; if nobody does, its time runs out.
                delete_later(self._cluster, kind, self.name)
                logger.warning("%s could not be deleted: %s", self.name, error)


@final
class Silence:
    """How long an API server has been out of reach, by when somebody found it so.

    Nobody looks while all goes well, so what was found long ago is not the same silence.
    """

    def __init__(self) -> None:
        self._began_s = self._last_s = -math.inf

    def has_lasted(self, now_s: float) -> bool:
        """Take note that it is out of reach; whether it has been for long."""
        if now_s - self._last_s > SAME_SILENCE_S:
            self._began_s = now_s
        self._last_s = now_s
        return now_s - self._began_s >= SILENCE_S

    def end(self) -> None:
        """Take note that it answered."""
        self._last_s = -math.inf


def _address_of(found: Mapping[str, Any]) -> Any:
    return (found.get("status") or {}).get("podIP")


def _runs(found: Mapping[str, Any]) -> bool:
    is_deleted = bool(found["metadata"].get("deletionTimestamp"))
    return "running" in state_of(found) and not is_deleted


def _has_ended(found: Mapping[str, Any]) -> bool:
    return "terminated" in state_of(found) or not state_of(found)

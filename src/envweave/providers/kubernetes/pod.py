"""One pod with a server: starting, watching and deleting it."""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, final

from envweave.errors import EnvWeaveError, StartupError
from envweave.lifetime import OwnerProcess
from envweave.providers.docker.options import format_size, parse_size
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
    """What to expect of a pod."""

    WAITING = "waiting"
    WITHOUT_NODE = "without node"
    RUNNING = "running"
    HOPELESS = "hopeless"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class PodVerdict:
    """What to expect of a pod, and why.

    Attributes:
        outlook: A pod that is `HOPELESS` never ran; one that is `OVER` has ended, or is about to.
        why: The predicate of a sentence about the pod; empty if all is well.
        has_log: Whether its last log lines may say more.
    """

    outlook: Outlook
    why: str = ""
    has_log: bool = False


def judge(pod: Mapping[str, Any], options: KubernetesOptions) -> PodVerdict:
    """Return what to expect of a pod, from its status."""
    status = pod.get("status") or {}
    phase = status.get("phase")
    state = state_of(pod)
    if phase in ("Failed", "Succeeded") or "terminated" in state:
        return _judge_ended(status, state.get("terminated") or {}, options)
    if (pod.get("metadata") or {}).get("deletionTimestamp"):
        because = _condition(status, "DisruptionTarget")
        why = f" ({because['message']})" if because.get("message") else ""
        return PodVerdict(Outlook.OVER, f"was deleted by another client{why}", has_log=True)
    if "running" in state:
        return PodVerdict(Outlook.RUNNING)
    waiting = state.get("waiting") or {}
    if waiting.get("reason") in _HOPELESS:
        return PodVerdict(Outlook.HOPELESS, _describe_hopeless(waiting, options))
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        message = _join_lines(scheduled.get("message")) or "the scheduler gives no reason"
        return PodVerdict(
            Outlook.WITHOUT_NODE,
            f"finds no node to run on (Unschedulable): {message}. Request less, with "
            "KubernetesProvider(memory_request=…, cpu_request=…), or pass a matching node_selector "
            "and tolerations",
        )
    return PodVerdict(Outlook.WAITING, _describe_waiting(waiting))


def state_of(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of the server's container; a cluster may add other containers."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    found = (one.get("state") for one in statuses if one.get("name") == CONTAINER)
    return next(found, None) or {}


def _judge_ended(
    status: Mapping[str, Any], ended: Mapping[str, Any], options: KubernetesOptions
) -> PodVerdict:
    reason, message = status.get("reason"), _join_lines(status.get("message"))
    code = ended.get("exitCode")
    if reason == "DeadlineExceeded":
        return PodVerdict(
            Outlook.OVER,
            f"was ended by the cluster: it existed for more than ttl_s={options.ttl_s:g} seconds "
            "(DeadlineExceeded). Give it more, with KubernetesProvider(ttl_s=…)",
        )
    if ended.get("reason") == _OUT_OF_MEMORY:
        limit = format_size(parse_size("memory", options.memory))
        why = (
            f"ran out of memory: it needed more than {limit}, and was killed (OOMKilled, exit code "
            f"{code}). Give it more, with KubernetesProvider(memory=…)"
        )
        return PodVerdict(Outlook.OVER, why, has_log=True)
    if reason and reason != "Completed":  # Evicted, NodeLost, Shutdown, Preempting, …
        suffix = f": {message}" if message else ""
        return PodVerdict(
            Outlook.OVER, f"was ended by the cluster ({reason}){suffix}", has_log=True
        )
    if ended.get("reason") in ("StartError", "ContainerCannotRun"):
        why = f"could not be started: {_join_lines(ended.get('message'))}"
        return PodVerdict(Outlook.HOPELESS, why)
    if code is None:
        phase = status.get("phase")
        return PodVerdict(Outlook.OVER, f"has ended ({phase}){f': {message}' if message else ''}")
    signal = f" ({ended['signal']})" if ended.get("signal") else ""
    return PodVerdict(Outlook.OVER, f"exited with code {code}{signal}", has_log=True)


def _describe_hopeless(waiting: Mapping[str, Any], options: KubernetesOptions) -> str:
    reason, message = waiting["reason"], _join_lines(waiting.get("message"))
    why = f"cannot be started ({reason}): {message or 'the cluster gives no reason'}"
    if reason == "ErrImageNeverPull":
        return (
            f"{why}. The image is not on the node, and image_pull_policy='Never' forbids pulling "
            "it. Put it there, or use 'IfNotPresent'"
        )
    if reason in _PULLS:
        return (
            f"{why}. Push the image to a registry that the cluster can read; one with a password "
            "needs pull_secrets=[…]"
        )
    if reason == "InvalidImageName":
        return f"{why}. Use a name such as 'registry.example/echo-env:1.0'"
    if reason == "CreateContainerConfigError" and "runAsNonRoot" in message:
        return (
            f"{why}. Give the image a numeric USER, or pass user='1000:1000'; user='0' runs it as "
            "root"
        )
    if options.runtime_class is not None:
        return f"{why}. Its runtime_class is {options.runtime_class!r}"
    return why


def _describe_waiting(waiting: Mapping[str, Any]) -> str:
    reason, message = waiting.get("reason"), _join_lines(waiting.get("message"))
    if not reason:
        return "waits for a node"
    return f"waits ({reason})" + (f": {message}" if message else "")


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found = [one for one in status.get("conditions") or [] if one.get("type") == kind]
    return found[0] if found else {}


def _join_lines(message: Any) -> str:
    return " ".join(str(message or "").split()).rstrip(".")


logger = logging.getLogger("envweave.providers")

OUTAGE_S = 6.0
"""How long the API server may be unreachable before a pod counts as lost."""

SAME_OUTAGE_S = 30.0
"""How far apart two failed calls may be, to count as one outage."""

ADDRESS_S = 60.0
"""How long a pod may take until it has an address."""

_POLL_S = 0.02
_LOOK_EVERY_S = 0.5
_WATCH_S = 30.0


@final
class Pod:
    """A pod with a server in it. Before it expires, only `stop` and `remove` delete it.

    Args:
        cluster: The cluster that runs it.
        image: The image to run.
        options: The options of the pod.
        port: The local port to forward to it; `None` for a free one.
        env_vars: The server's environment variables, stored in a secret.

    Attributes:
        name: The name of the pod.
        base_url: The URL of its server.

    Raises:
        StartupError: It could not be started. Nothing is left running.
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
        self._owner = OwnerProcess()
        self._forward: PortForward | None = None
        self._was_reached = False
        self._outage = Outage()
        self.name = f"envweave-{secrets.token_hex(6)}"
        about = owned(options)
        variables = secret(self.name, env_vars, about)
        try:
            cluster.create("secrets", variables)
            made = cluster.create("pods", pod(self.name, image, options, env_vars, about))
            self._made = made
            cluster.change("secrets", self.name, owned_by(made))
            self.base_url = self._expose(made, about, port)
        except BaseException as error:
            self.remove()
            if isinstance(error, ClusterRefusedError | NoSuchObjectError):
                raise StartupError(
                    f"A pod of {image!r} could not be made in the namespace "
                    f"{cluster.namespace!r}: {error}."
                ) from None
            raise

    def _expose(self, made: Mapping[str, Any], about: Mapping[str, Any], port: int | None) -> str:
        """Return the URL of the server."""
        inside, address = self._options.port, None
        if self._options.service:
            selector = {"envweave.pod": self.name}
            metadata = {**about, **owned_by(made)["metadata"]}
            manifest = service(self.name, selector, inside, metadata)
            address = self._cluster.create("services", manifest)["spec"]["clusterIP"]
        if self._options.access == "forward":
            self._forward = PortForward(
                self._connect, port, is_lost=lambda: self.why_gone() is not None
            )
            return f"http://127.0.0.1:{self._forward.port}"
        if address is None:
            found = self._await(_get_address, time.monotonic() + ADDRESS_S)
            if found is None:
                raise StartupError(
                    f"{self._which()} has no address after {ADDRESS_S:g} s{self._reason()}."
                )
            address = _get_address(found)
        return (
            f"http://[{address}]:{inside}" if ":" in str(address) else f"http://{address}:{inside}"
        )

    def _connect(self) -> Any:
        """Return a socket to the server."""
        found = self._cluster.connect(self.name, self._options.port)
        self._outage.end()
        return found

    # Health

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until its server answers.

        Raises:
            EnvWeaveError: The environment cannot be made.
            StartupError: The pod cannot start or exited, or `timeout_s` seconds passed.
        """
        ends_s = time.monotonic() + timeout_s
        if self._await(_runs, ends_s) is None:
            raise StartupError(
                f"{self._which()} did not start within {timeout_s:g} s{self._reason()}."
            )
        look_s = time.monotonic() + _LOOK_EVERY_S
        while not answers_health(self.base_url, max(0.1, ends_s - time.monotonic())):
            now_s = time.monotonic()
            if now_s >= look_s or now_s >= ends_s:
                self._refuse_gone(self._judge(self._look(self._made)))
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
        """Watch the pod until it is as it should be, and return it; `None` after the time limit.

        Raises:
            EnvWeaveError: It never will be.
        """
        without_node_s: float | None = None
        found = self._look(self._made)
        while True:
            if found is not None and is_enough(found):
                return found
            verdict = self._judge(found)
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

    def _get(self, timeout_s: float = CALL_S) -> dict[str, Any] | None:
        try:
            return self._cluster.get("pods", self.name, timeout_s)
        except NoSuchObjectError:
            return None

    def _look(self, known: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the pod; its last known state during a short outage of the API server."""
        try:
            found = self._get(LOOK_S)
        except ClusterError:
            if self._outage.has_lasted(time.monotonic()):
                raise
            return known
        self._outage.end()
        return found

    def _next(self, found: dict[str, Any] | None, timeout_s: float) -> dict[str, Any] | None:
        """Return the pod after its next change, or after `timeout_s`."""
        if found is None or timeout_s < 1.0:  # a watch takes whole seconds
            time.sleep(min(timeout_s, _POLL_S * 5))
            return self._look(found)
        version = str(found["metadata"]["resourceVersion"])
        changes = self._cluster.changes("pods", self.name, version, timeout_s)
        try:
            with contextlib.closing(changes):  # type: ignore[type-var] # it is a generator
                for changed in changes:
                    return changed
        except ClusterError as error:
            logger.debug("watching %s ended: %s", self.name, error)
        time.sleep(_POLL_S * 5)  # watching is not permitted, or ended early
        return self._look(found)

    def why_gone(self) -> str | None:
        """Return why its server is gone for good; `None` if it may still answer."""
        try:
            verdict = self._verdict(LOOK_S)
        except ClusterError as error:
            # The pod runs on without the API server, which may be back in a moment.
            if not self._outage.has_lasted(time.monotonic()):
                return None
            return f"{self._which()} cannot be reached. {error}"
        except StartupError as error:
            return f"{self._which()} cannot be reached: {error}."
        self._outage.end()
        if verdict.outlook not in (Outlook.OVER, Outlook.HOPELESS):
            return None
        return str(self._gone(verdict))

    def _verdict(self, timeout_s: float = LOOK_S) -> PodVerdict:
        return self._judge(self._get(timeout_s))

    def _reason(self) -> str:
        """Return the end of a sentence: why the pod does not run yet, if that is known."""
        why = self._verdict().why
        return f": it {why}" if why else ""

    def _judge(self, found: Mapping[str, Any] | None) -> PodVerdict:
        if found is None:
            return PodVerdict(Outlook.OVER, "was deleted by another client")
        return judge(found, self._options)

    def _refuse_gone(self, verdict: PodVerdict) -> None:
        if verdict.outlook in (Outlook.OVER, Outlook.HOPELESS):
            raise self._gone(verdict)

    def _gone(self, verdict: PodVerdict) -> EnvWeaveError:
        lines = self._last_lines() if verdict.has_log else []
        reported = None if self._was_reached else error_in(lines, self._image)
        if reported is not None:
            return reported
        end = log_tail(lines) if verdict.has_log else ""
        return StartupError(f"{self._which()} {verdict.why}.{end}")

    def _which(self) -> str:
        return f"The pod {self.name} of {self._image!r}"

    def _last_lines(self) -> list[str]:
        try:
            return self._cluster.last_lines(self.name, LINES_READ, LOOK_S)
        except StartupError:
            return []

    # Stopping

    def stop(self) -> None:
        """Stop it gracefully if possible, and delete it. May be called twice."""
        if not self._owner.is_current:
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
        """Wait until its server has ended, which is long before the pod is gone."""
        found = self._get()
        while found is not None and not _has_ended(found) and time.monotonic() < ends_s:
            found = self._next(found, max(1.0, ends_s - time.monotonic()))

    def remove(self) -> None:
        """Delete it at once. May be called twice.

        Does nothing in a forked copy of the process that started it.
        """
        if not self._owner.is_current:
            return
        forward, self._forward = self._forward, None
        if forward is not None:
            forward.close()
        kinds = ["services", "pods", "secrets"] if self._options.service else ["pods", "secrets"]
        for kind in kinds:
            try:
                self._cluster.delete(kind, self.name)
            except StartupError as error:
                # The next process that starts a pod deletes it; otherwise it expires.
                delete_later(self._cluster, kind, self.name)
                logger.warning("%s could not be deleted: %s", self.name, error)


@final
class Outage:
    """How long an API server has been unreachable, from the times of failed calls.

    There are no calls while all goes well, so a failure long ago is not the same outage.
    """

    def __init__(self) -> None:
        self._began_s = self._last_s = -math.inf

    def has_lasted(self, now_s: float) -> bool:
        """Record a failed call; return whether the outage has lasted `OUTAGE_S`."""
        if now_s - self._last_s > SAME_OUTAGE_S:
            self._began_s = now_s
        self._last_s = now_s
        return now_s - self._began_s >= OUTAGE_S

    def end(self) -> None:
        """Record that the API server answered."""
        self._last_s = -math.inf


def _get_address(found: Mapping[str, Any]) -> Any:
    return (found.get("status") or {}).get("podIP")


def _runs(found: Mapping[str, Any]) -> bool:
    is_deleted = bool(found["metadata"].get("deletionTimestamp"))
    return "running" in state_of(found) and not is_deleted


def _has_ended(found: Mapping[str, Any]) -> bool:
    return "terminated" in state_of(found) or not state_of(found)

"""A worker actor as its caller sees it: a process that is started, watched and ended.

`RayWorker` has the calls of `WorkerProcess`, so that what drives worker processes drives actors
too. Replies arrive in a thread of Ray's; whatever waits for one is woken by it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, final

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RuntimeEnvSetupError

from envweave.errors import StartupError, format_error
from envweave.lifetime import OwnerProcess
from envweave.ray.actors import ActorInfo, ActorSettings
from envweave.ray.cluster import (
    NAMESPACE,
    Node,
    RayCluster,
    actor_resources,
    describe_nodes,
    scheduling,
)
from envweave.vector.process.turns import EventFd
from envweave.workers.launch import WorkerLostError

logger = logging.getLogger("envweave.ray")

WAIT_S = 0.2
"""How long one wait takes at most: a Ctrl-C that arrives just before a wait does not end it."""

SOON_S = 0.05
"""How long the thread that steps all rows waits for a reply itself."""

CONTROL_S = 5.0
"""How long an actor may take to say what is running in it."""

PLACED_S = 300.0
"""How long to wait until the cluster has room for an actor, and has set up what it needs."""

WARN_S = 10.0
"""After how long a wait for room is logged."""


class RayJob(NamedTuple):
    """What the workers of one vector or pool have in common.

    Attributes:
        cluster: Where they run.
        name: The name of the environment.
        resources: What each worker claims on its node.
        placement: How workers are distributed over nodes.
        runtime_env: What Ray installs or copies for them.
    """

    cluster: RayCluster
    name: str
    resources: Mapping[str, float]
    placement: str
    runtime_env: Mapping[str, Any] | None


@final
class RayWorker:
    """One worker actor. It is lost with its process or its node, and is never restarted.

    Args:
        job: What it has in common with others.
        kind: The class of the actor.
        definition: The environments to make, packed.
        num_envs: How many there are.
        on_loss: Called once, in another thread, when it dies.
        actor_options: What else Ray needs to know of the actor.
    """

    def __init__(
        self,
        job: RayJob,
        kind: Any,
        definition: bytes,
        num_envs: int,
        on_loss: Callable[[], None] = lambda: None,
        **actor_options: Any,
    ) -> None:
        self._job = job
        self._on_loss = on_loss
        self._owner = OwnerProcess()
        self._changed = threading.Condition()  # over what follows
        self._loss: str | None = None
        self._has_ended = False
        self._death = EventFd.new()
        self._held: tuple[Any, Callable[[Any], None]] | None = (
            None  # a reply that is not awaited yet
        )
        self._where = "a Ray worker"
        self._begun_s = time.monotonic()
        paths = [path for path in sys.path if path]
        level = logging.getLogger("envweave").getEffectiveLevel()
        settings = ActorSettings(definition, paths, level, job.name, num_envs)
        self._num_envs = num_envs
        self._node: Node | None = job.cluster.choose_node(job.resources, job.placement)
        job.cluster.count_environments(num_envs)
        try:
            self._actor = kind.options(
                name=f"envweave-{uuid.uuid4().hex}",
                namespace=NAMESPACE,
                scheduling_strategy=scheduling(self._node, job.resources),
                runtime_env=job.runtime_env,
                **actor_resources(job.resources),
                **actor_options,
            ).remote(settings)
            self._start = self._actor.start.remote()
            self._watch(self._actor.wait.remote())
            job.cluster.watch(self)
        except BaseException:
            self._release()
            raise

    # Starting

    def await_start(self) -> ActorInfo:
        """Wait until its environments are made, or could not be made.

        Raises:
            WorkerLostError: It died first.
            StartupError: The cluster has no room for it, or cannot set up its `runtime_env`.
        """
        began_s = time.monotonic()
        is_logged = False
        while True:
            try:
                info: ActorInfo = ray.get(self._start, timeout=1.0)
                break
            except GetTimeoutError:
                waited_s = time.monotonic() - began_s
                if waited_s > PLACED_S:
                    self.end()
                    raise StartupError(self._no_room(waited_s)) from None
                if waited_s > WARN_S and not is_logged:
                    is_logged = True
                    logger.warning("%s", self._no_room(waited_s))
            except RuntimeEnvSetupError as error:
                self.end()
                raise StartupError(
                    f"Ray could not set up runtime_env={self._job.runtime_env!r}: {error}"
                ) from None
            except RayError as error:
                text = str(error)
                if "No module named 'envweave'" in text:
                    self.end()
                    raise StartupError(
                        "envweave is not installed on the nodes of the Ray cluster. Install the "
                        "same version there, or pass runtime_env={'pip': ['envweave']}."
                    ) from None
                self._die(error)
                raise self.lost() from None
        self._where = f"the Ray worker {info.pid} on node {info.address}"
        return info

    def _no_room(self, waited_s: float) -> str:
        needs = ", ".join(f"{count:g} {name}" for name, count in self._job.resources.items())
        return (
            f"A worker for {self._job.name} (needs {needs or 'no resources'}) has waited "
            f"{waited_s:.0f} s for the Ray cluster to start it. Nodes: "
            f"{describe_nodes(self._job.cluster.nodes())}."
        )

    # Calls

    def submit(
        self, method: str, *args: Any, on_reply: Callable[[Any], None], is_held: bool = False
    ) -> None:
        """Call a method of the actor; `on_reply` gets what it returned, in another thread.

        It is not called if the actor dies first. A reply that is held waits for `take_reply`.
        """
        self._begun_s = time.monotonic()
        reference = getattr(self._actor, method).remote(*args)
        if is_held:
            self._held = reference, on_reply
        else:
            self._watch(reference, on_reply)

    def take_reply(self) -> None:
        """Wait for a reply that is held, in this thread; after `SOON_S` it is delivered as others.

        Of a step of all rows nothing else can be awaited, and no thread must be woken.
        """
        if self._held is None:
            return
        reference, on_reply = self._held
        try:
            value = ray.get(reference, timeout=SOON_S)
        except GetTimeoutError:
            self.release_reply()
        except Exception as error:  # noqa: BLE001 - whatever it is, the reply is lost
            self._held = None
            self._die(error)
        else:
            self._deliver(on_reply, value)  # once more, if it is interrupted here
            self._held = None

    def release_reply(self) -> None:
        """Have a reply that is held delivered in another thread."""
        held, self._held = self._held, None
        if held is not None:
            self._watch(*held)

    def _watch(self, reference: Any, on_reply: Callable[[Any], None] = lambda _: None) -> None:
        reference.future().add_done_callback(partial(self._on_done, on_reply))

    def _on_done(self, on_reply: Callable[[Any], None], done: Future[Any]) -> None:
        try:
            value = done.result()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the reply is lost
            self._die(error)
            return
        self._deliver(on_reply, value)

    def _deliver(self, on_reply: Callable[[Any], None], value: Any) -> None:
        with self._changed:
            if not self._has_ended and self._loss is None:
                on_reply(value)
                self._changed.notify_all()

    def wait_for(
        self,
        is_true: Callable[[], bool],
        *,
        code_s: float | None = None,
        at_most_s: float = math.inf,
    ) -> bool:
        """Wait for a reply that makes something true; return whether it is.

        Args:
            is_true: Whether it is.
            code_s: How long an environment's code may run.
            at_most_s: How long to wait.

        Raises:
            WorkerLostError: The worker is gone, or an environment's code took longer than that.
        """
        deadline_s = time.monotonic() + at_most_s
        self.release_reply()
        while True:
            with self._changed:
                if not is_true() and not self.is_gone:
                    self._changed.wait(WAIT_S)
                if is_true():
                    return True
            if self.is_gone:
                raise self.lost()
            if code_s is not None:
                self.check_deadline(code_s)
            if time.monotonic() > deadline_s:
                return False

    def check_deadline(self, timeout_s: float) -> float:
        """Return how many seconds the code that is running has left.

        Raises:
            WorkerLostError: None, so the worker was ended.
        """
        left_s = timeout_s - (time.monotonic() - self._begun_s)
        if left_s > 0:
            return left_s  # no code can have run for longer than the last call
        try:
            running = ray.get(self._actor.running.remote(), timeout=CONTROL_S)
        except GetTimeoutError:
            self.end()
            raise WorkerLostError(
                f"{self._where} did not answer within {CONTROL_S:g} s, so it was ended: code in it "
                "blocks every thread of its process"
            ) from None
        except RayError as error:
            self._die(error)
            raise self.lost() from None
        if running is None:
            return timeout_s
        env_index, taken_s = running
        if taken_s < timeout_s:
            return float(timeout_s - taken_s)
        where = self._where
        self.end()
        raise WorkerLostError(
            f"environment {env_index} took longer than timeout_s={timeout_s:g}, so {where} was "
            "ended",
            env_index,
        )

    # The end

    def poll_fd(self) -> int:
        """Return a descriptor that can be read once the worker has died."""
        return self._death.fileno()

    @property
    def has_ended(self) -> bool:
        """Whether it was found dead, or ended by us."""
        return self._has_ended

    @property
    def is_gone(self) -> bool:
        """Whether the actor no longer exists."""
        return self._has_ended or self._loss is not None

    def _die(self, error: BaseException) -> None:
        """Record that the actor is dead, and wake whatever waits for it."""
        if self._lose(f"{self._where} died: {_cause(error)}"):
            self._job.cluster.count_loss(self._job.name)

    def lose_cluster(self, loss: str) -> None:
        """Record that the cluster is gone, and the actor with it."""
        self._lose(loss)

    def _lose(self, loss: str) -> bool:
        with self._changed:
            if self.is_gone:
                return False
            self._loss = loss
            self._death.notify()
            self._on_loss()
            self._changed.notify_all()
            return True

    def lost(self) -> WorkerLostError:
        """End what is left of it, and return how it ended."""
        loss = self._loss or f"{self._where} was ended"
        self.end()
        return WorkerLostError(loss)

    def kill(self) -> None:
        """Have Ray end the actor at once."""
        if self._owner.is_current and not self._job.cluster.is_lost:
            with contextlib.suppress(Exception):  # it is gone already
                ray.kill(self._actor)

    def end(self) -> None:
        """End the actor at once, and release what belongs to it. May be called twice."""
        with self._changed:
            if self._has_ended:
                return
            self._has_ended = True
            self._changed.notify_all()
        self.kill()
        self._release()

    def _release(self) -> None:
        self._death.close()
        if self._owner.is_current:
            self._job.cluster.forget_worker(self._node)
            self._job.cluster.count_environments(-self._num_envs)


def _cause(error: BaseException) -> str:
    """Return why an actor died, in a line; Ray's own texts have several."""
    text = str(error)
    if isinstance(error, RayActorError):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        said = [line for line in lines if line.startswith(("The actor is dead", "The actor died"))]
        text = (said or lines or [type(error).__name__])[-1]
    first, _, _ = text.partition(" Some common causes include")
    return first.strip().rstrip(".") or format_error(error)

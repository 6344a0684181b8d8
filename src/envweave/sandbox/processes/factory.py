"""Where sessions come from: templates that spawn them, and a few that are kept warm."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence

from envweave.errors import (
    CallOrderError,
    ClosedError,
    EnvWeaveError,
    IsolationError,
    SandboxError,
    SessionLostError,
)
from envweave.sandbox.config import SandboxConfig, make_plan, packages_of
from envweave.sandbox.doctor.probe import NAMES_LISTED, Tier, missing_of
from envweave.sandbox.processes.process import SessionProcess
from envweave.sandbox.processes.process_group import ProcessGroup
from envweave.sandbox.processes.resources import ResourcePool, SessionResources
from envweave.sandbox.processes.template import (
    MOST_AT_ONCE,
    Template,
    WallSetupError,
    refuse_elsewhere,
)
from envweave.sandbox.processes.watcher import ProcessWatcher
from envweave.sandbox.protocol.messages import SpawnRequest, ToolSignature
from envweave.sandbox.protocol.orders import Isolation
from envweave.sandbox.walls.mounts import WORK

_BIRTH_S = 30.0


class TemplateShard:
    """A template that may be replaced, and the core that it and its sessions keep to."""

    def __init__(self, cpu: int | None) -> None:
        self.cpu = cpu
        self.template: Template | None = None
        self.lock = threading.Lock()  # protects `template` while it is started


class SessionFactory:
    """Makes the bodies of sessions. May be used by several threads."""

    def __init__(self, options: SandboxConfig) -> None:
        refuse_elsewhere()
        self.options = options
        # Protects `_warm`, `_refilling`, `_bodies` and `_closed`. A finalizer may close this while
        # the thread that refills it holds it.
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._closed = False
        self._warm: deque[SessionProcess] = deque()
        self._refilling: threading.Thread | None = None
        self._bodies: weakref.WeakSet[SessionProcess] = weakref.WeakSet()
        self._isolation: Isolation = "namespace"
        cpus = sorted(os.sched_getaffinity(0))
        pinned = options.shards > 1
        self._shards = [TemplateShard(cpus[at] if pinned else None) for at in range(options.shards)]
        self._turns = itertools.cycle(self._shards)
        self._supplies = ResourcePool(options)
        self._watcher = ProcessWatcher(self._supplies.cgroups)
        try:
            self.tier = self._choose()
        except BaseException:
            self.close()
            raise

    def body(self, seed: int | None, faces: Sequence[ToolSignature]) -> SessionProcess:
        """Return a new session's body, walled in and ready.

        Raises:
            ClosedError: The sandbox is closed.
            SandboxError: It cannot be made.
        """
        self._check_open()
        body = self._from_warm(seed, faces)
        return body if body is not None else self._make([seed], faces)[0]

    def bodies(
        self, seeds: Sequence[int | None], faces: Sequence[ToolSignature]
    ) -> list[SessionProcess]:
        """Return several at once, which is quicker than one after the other."""
        made: list[SessionProcess] = []
        try:
            for start in range(0, len(seeds), MOST_AT_ONCE):
                self._check_open()
                made.extend(self._make(seeds[start : start + MOST_AT_ONCE], faces))
        except BaseException:
            for body in made:
                body.release()
            raise
        return made

    def template_pids(self) -> list[int]:
        """Return the process ids of the templates that run."""
        templates = [shard.template for shard in self._shards]
        return [one.pid for one in templates if one is not None and one.alive]

    def close(self) -> None:
        """End every template and every session. Harmless twice, and in a forked copy of the host.

        If it is interrupted, by Ctrl-C say, it goes on where it was when it is called again.
        """
        if not self.is_own:
            return
        with self._lock:
            self._closed = True
            refilling = self._refilling
        if refilling is not None and refilling is not threading.current_thread():
            refilling.join()
        with self._lock:
            bodies = [*self._warm, *self._bodies]
        for body in bodies:
            body.release()
        self._forget_templates()
        self._watcher.close()
        self._supplies.close()

    @property
    def is_own(self) -> bool:
        """Whether this process made it, and not one of which this is a forked copy."""
        return self._owner == os.getpid()

    def _check_open(self) -> None:
        if not self.is_own:
            raise CallOrderError(
                "session() on a sandbox that was made before this process was forked, and belongs "
                "to its parent. Make a sandbox in this process."
            )
        with self._lock:
            if self._closed:
                raise ClosedError("This sandbox is closed. Make another one.")

    def _choose(self) -> Tier:
        """Put up the strongest walls that were asked for and that stand, around one session.

        It is kept: whoever asks for a session first is given it.
        """
        wanted = self.options.isolation
        tiers: tuple[Isolation, ...]
        tiers = ("namespace", "landlock") if wanted == "auto" else (wanted,)
        failures: list[tuple[Isolation, WallSetupError]] = []
        for self._isolation in tiers:
            try:
                if obstacle := self._supplies.obstacle(self._isolation):
                    raise WallSetupError("processes", 0, obstacle)
                self._warm.extend(self._make([None], []))
            except WallSetupError as error:
                if error.wall == "preload":
                    raise SandboxError(self._preload_failure(error.text)) from None
                failures.append((self._isolation, error))
                self._forget_templates()
                continue
            template = self._shards[0].template
            assert template is not None
            lacks = missing_of(self._isolation, template.missing)
            lacks += self._supplies.missing(self._isolation)
            if self._isolation == "landlock" and self.options.profile == "shell":
                lacks.append(NAMES_LISTED)
            reasons = tuple(f"{name}: {error.text}" for name, error in failures)
            return Tier(self._isolation, tuple(lacks), reasons, template.native)
        raise IsolationError(_refusal(wanted, failures)) from failures[-1][1]

    def _preload_failure(self, text: str) -> str:
        missing = re.search(r"No module named '([^']+)'", text)
        why = None if missing is None else packages_of(self.options).explain(missing[1])
        return f"Sandbox(preload=…): {text}" + ("" if why is None else f" ({why})")

    def _from_warm(self, seed: int | None, faces: Sequence[ToolSignature]) -> SessionProcess | None:
        """Take one that waits, and have another made meanwhile."""
        while True:
            with self._lock:
                if not self._warm:
                    return None
                body = self._warm.popleft()
                if len(self._warm) < self.options.warm and self._refilling is None:
                    self._start_refilling()
            with contextlib.suppress(SessionLostError):
                if body.stands():
                    body.begin(seed, faces, time.monotonic() + _BIRTH_S)
                    return body
            body.release()  # it died while it waited

    def _start_refilling(self) -> None:
        thread = threading.Thread(target=self._refill, name="sandbox-warm", daemon=True)
        self._refilling = thread
        try:
            thread.start()
        except RuntimeError:  # no more threads; whoever takes the next one tries again
            self._refilling = None

    def _refill(self) -> None:
        """Make sessions until enough are warm. If it fails, whoever asks for one is told why."""
        try:
            with contextlib.suppress(EnvWeaveError, WallSetupError, OSError):
                while self._wants_more():
                    body = self._make([None], [])[0]
                    with self._lock:
                        self._warm.append(body)  # closing waits for this thread, and releases it
        finally:
            with self._lock:
                self._refilling = None

    def _wants_more(self) -> bool:
        with self._lock:
            return not self._closed and len(self._warm) < self.options.warm

    def _make(
        self, seeds: Sequence[int | None], faces: Sequence[ToolSignature]
    ) -> list[SessionProcess]:
        """Make sessions; once more, if the template turns out to be gone."""
        shard = next(self._turns)
        template = self._template(shard)
        try:
            return self._make_by(template, seeds, faces)
        except SessionLostError:
            template.close()
            return self._make_by(self._template(shard), seeds, faces)

    def _make_by(
        self, template: Template, seeds: Sequence[int | None], faces: Sequence[ToolSignature]
    ) -> list[SessionProcess]:
        held: list[SessionResources] = []
        bodies: list[SessionProcess] = []
        try:
            held.extend(self._supplies.take(self._isolation) for _ in seeds)
            births = [self._birth(seed, one) for seed, one in zip(seeds, held, strict=True)]
            with contextlib.ExitStack() as opened:
                files = [
                    opened.enter_context(one.cgroup.open_files())
                    for one in held
                    if one.cgroup is not None
                ]
                newborn = template.spawn(births, files)
            for one, born in zip(held, newborn, strict=True):
                bodies.append(SessionProcess(template, born, one, ProcessGroup(), self._watcher))
            with self._lock:
                self._check_open()
                self._bodies.update(bodies)
            deadline = time.monotonic() + _BIRTH_S
            for body, seed in zip(bodies, seeds, strict=True):
                body.await_ready(deadline)
                if faces:  # they may be longer than an order to the template
                    body.begin(seed, faces, deadline)
        except BaseException:
            for body in bodies:
                body.release()
            for one in held[len(bodies) :]:
                one.free()
            raise
        return bodies

    def _birth(self, seed: int | None, held: SessionResources) -> SpawnRequest:
        return SpawnRequest(
            seed=seed,
            output_bytes=self.options.limits.output_bytes,
            message_bytes=self.options.limits.message_bytes,
            work=WORK if held.folder is None else str(held.folder.path),
            user=held.inside,
        )

    def _template(self, shard: TemplateShard) -> Template:
        with shard.lock:
            self._check_open()  # closing forgets the templates under this lock
            if shard.template is None or not shard.template.alive:
                if shard.template is not None:
                    shard.template.close()
                plan = make_plan(
                    self._isolation,
                    self.options,
                    cpu=shard.cpu,
                    users=self._supplies.users(self._isolation),
                    work=str(self._supplies.folder),
                    memory_counted=self._supplies.cgroups is not None,
                )
                shard.template = Template.start(plan)
            return shard.template

    def _forget_templates(self) -> None:
        for shard in self._shards:
            with shard.lock:
                template, shard.template = shard.template, None
            if template is not None:
                template.close()


def _refusal(wanted: str, failures: Sequence[tuple[Isolation, WallSetupError]]) -> str:
    from envweave.sandbox.doctor.advice import BY_DOCKER, advise
    from envweave.sandbox.doctor.machine import machine_facts

    lines = [f"This machine cannot put up the walls of Sandbox(isolation={wanted!r})."]
    facts = machine_facts()
    for isolation, error in failures:
        lines.append(f"{isolation}: {error.text}.")
        lines.extend(advise(error.wall, error.errno, facts))
    if facts.container is None:
        lines.append(BY_DOCKER)
    lines.append(
        "Nothing was run. With isolation='none' code runs as this user, with no walls at all."
    )
    return "\n".join(lines)

"""Makes sessions: starts templates, spawns processes from them, and keeps a few warm."""

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
from queue import SimpleQueue

from envweave.errors import (
    CallOrderError,
    ClosedError,
    EnvWeaveError,
    IsolationError,
    SandboxError,
    SessionLostError,
)
from envweave.lifetime import OwnerProcess
from envweave.sandbox.config import SandboxConfig, make_plan, packages_of
from envweave.sandbox.doctor import NAMES_LISTED, Tier, missing_of
from envweave.sandbox.processes.process import SessionProcess
from envweave.sandbox.processes.process_group import ProcessGroup
from envweave.sandbox.processes.resources import ResourcePool, SessionResources
from envweave.sandbox.processes.template import (
    MAX_PER_ORDER,
    Template,
    WallSetupError,
    require_linux,
)
from envweave.sandbox.processes.watcher import ProcessWatcher
from envweave.sandbox.protocol.messages import SpawnRequest, ToolSignature
from envweave.sandbox.protocol.orders import Isolation
from envweave.sandbox.walls.mounts import WORK

_START_S = 30.0
_QUIET_S = 0.003
"""How long no session must have been taken before another one is made, while enough are left."""


class TemplateShard:
    """A template that may be replaced, and the core that it and its sessions are pinned to."""

    def __init__(self, cpu: int | None) -> None:
        self.cpu = cpu
        self.template: Template | None = None
        self.lock = threading.Lock()  # protects `template` while it is started


class SessionFactory:
    """Makes the processes of sessions. Thread-safe."""

    def __init__(self, options: SandboxConfig) -> None:
        require_linux()
        self.options = options
        # Protects `_warm`, `_refilling`, `_processes` and `_closed`. A
        # finalizer may close this in the thread that holds it.
        self._lock = threading.RLock()
        self._owner = OwnerProcess()
        self._closed = False
        self._warm: deque[SessionProcess] = deque()
        # Wakes the thread that refills. An event could deadlock with a finalizer in that thread.
        self._taken: SimpleQueue[None] = SimpleQueue()
        self._taken_s = 0.0
        self._refilling: threading.Thread | None = None
        self._processes: weakref.WeakSet[SessionProcess] = weakref.WeakSet()
        self._isolation: Isolation = "namespace"
        cpus = sorted(os.sched_getaffinity(0))
        pinned = options.shards > 1
        self._shards = [TemplateShard(cpus[at] if pinned else None) for at in range(options.shards)]
        self._turns = itertools.cycle(self._shards)
        self._resources = ResourcePool(options)
        self._watcher = ProcessWatcher(self._resources.cgroups)
        try:
            self.tier = self._choose_tier()
        except BaseException:
            self.close()
            raise

    def make(self, seed: int | None, signatures: Sequence[ToolSignature]) -> SessionProcess:
        """Return the process of a new session, behind its walls and ready.

        Raises:
            ClosedError: The sandbox is closed.
            SandboxError: It cannot be made.
        """
        self._check_open()
        process = self._take_warm(seed, signatures)
        return process if process is not None else self._spawn([seed], signatures)[0]

    def make_many(
        self, seeds: Sequence[int | None], signatures: Sequence[ToolSignature]
    ) -> list[SessionProcess]:
        """Return several at once, which is faster than one after the other."""
        made: list[SessionProcess] = []
        try:
            for start in range(0, len(seeds), MAX_PER_ORDER):
                self._check_open()
                made.extend(self._spawn(seeds[start : start + MAX_PER_ORDER], signatures))
        except BaseException:
            for process in made:
                process.release()
            raise
        return made

    def template_pids(self) -> list[int]:
        """Return the process ids of the running templates."""
        templates = [shard.template for shard in self._shards]
        return [one.pid for one in templates if one is not None and one.alive]

    def close(self) -> None:
        """End every template and every session. Harmless twice, and in a forked copy of the host.

        If it is interrupted, by Ctrl-C for example, calling it again continues where it stopped.
        """
        if not self.is_own:
            return
        with self._lock:
            self._closed = True
            refilling = self._refilling
        self._taken.put(None)
        if refilling is not None and refilling is not threading.current_thread():
            refilling.join()
        with self._lock:
            processes = [*self._warm, *self._processes]
        for process in processes:
            process.release()
        self._close_templates()
        self._watcher.close()
        self._resources.close()

    @property
    def is_own(self) -> bool:
        """Whether this process made it; false in a forked child."""
        return self._owner.is_current

    def _check_open(self) -> None:
        if not self.is_own:
            raise CallOrderError(
                "session() on a sandbox that was made before this process was forked, and belongs "
                "to its parent. Make a sandbox in this process."
            )
        with self._lock:
            if self._closed:
                raise ClosedError("This sandbox is closed. Make another one.")

    def _choose_tier(self) -> Tier:
        """Set up the strongest requested tier that works here, around one session.

        That session is kept warm for the first caller.
        """
        requested = self.options.isolation
        tiers: tuple[Isolation, ...]
        tiers = ("namespace", "landlock") if requested == "auto" else (requested,)
        failures: list[tuple[Isolation, WallSetupError]] = []
        for self._isolation in tiers:
            try:
                if reason := self._resources.why_unusable(self._isolation):
                    raise WallSetupError("processes", 0, reason)
                self._warm.extend(self._spawn([None], []))
            except WallSetupError as error:
                if error.wall == "preload":
                    raise SandboxError(self._preload_failure(error.text)) from None
                failures.append((self._isolation, error))
                self._close_templates()
                continue
            template = self._shards[0].template
            assert template is not None
            lacks = missing_of(self._isolation, template.missing)
            lacks += self._resources.missing(self._isolation)
            if self._isolation == "landlock" and self.options.profile == "shell":
                lacks.append(NAMES_LISTED)
            reasons = tuple(f"{name}: {error.text}" for name, error in failures)
            return Tier(self._isolation, tuple(lacks), reasons, template.native)
        raise IsolationError(_isolation_error_text(requested, failures)) from failures[-1][1]

    def _preload_failure(self, text: str) -> str:
        missing = re.search(r"No module named '([^']+)'", text)
        why = None if missing is None else packages_of(self.options).explain(missing[1])
        return f"Sandbox(preload=…): {text}" + ("" if why is None else f" ({why})")

    def _take_warm(
        self, seed: int | None, signatures: Sequence[ToolSignature]
    ) -> SessionProcess | None:
        """Take a warm process, if there is one, and start making another."""
        while True:
            with self._lock:
                if self.options.warm:
                    self._taken_s = time.monotonic()
                    self._taken.put(None)
                    if self._refilling is None:
                        self._start_refilling()
                if not self._warm:
                    return None
                process = self._warm.popleft()
            with contextlib.suppress(SessionLostError):
                if process.is_usable():
                    process.begin(seed, signatures, time.monotonic() + _START_S)
                    return process
            process.release()  # it died while it was kept warm

    def _start_refilling(self) -> None:
        thread = threading.Thread(target=self._refill, name="sandbox-warm", daemon=True)
        self._refilling = thread
        try:
            thread.start()
        except RuntimeError:  # no more threads; the next call tries again
            self._refilling = None

    def _refill(self) -> None:
        """Keep enough sessions warm until this is closed.

        If that fails, this ends: the next `make` raises the error, or starts it again.
        """
        try:
            with contextlib.suppress(EnvWeaveError, WallSetupError, OSError):
                while not self._closed:
                    self._taken.get()
                    while self._needs_more():
                        quiet_s = time.monotonic() - self._taken_s
                        if quiet_s < _QUIET_S and len(self._warm) > self.options.warm // 4:
                            # A caller that has just taken one runs code in it now.
                            time.sleep(_QUIET_S - quiet_s)
                        else:
                            self._make_warm()
        finally:
            with self._lock:
                self._refilling = None

    def _make_warm(self) -> None:
        process = self._spawn([None], [])[0]
        try:
            process.warm_up(time.monotonic() + _START_S)
        except BaseException:
            process.release()
            raise
        with self._lock:
            self._warm.append(process)  # `close` waits for this thread, and releases it

    def _needs_more(self) -> bool:
        with self._lock:
            return not self._closed and len(self._warm) < self.options.warm

    def _spawn(
        self, seeds: Sequence[int | None], signatures: Sequence[ToolSignature]
    ) -> list[SessionProcess]:
        """Make sessions; try once more if the template turns out to be gone."""
        shard = next(self._turns)
        template = self._template(shard)
        try:
            return self._spawn_from(template, seeds, signatures)
        except SessionLostError:
            template.close()
            return self._spawn_from(self._template(shard), seeds, signatures)

    def _spawn_from(
        self, template: Template, seeds: Sequence[int | None], signatures: Sequence[ToolSignature]
    ) -> list[SessionProcess]:
        resources: list[SessionResources] = []
        processes: list[SessionProcess] = []
        try:
            resources.extend(self._resources.take(self._isolation) for _ in seeds)
            requests = [self._request(one) for one in resources]
            with contextlib.ExitStack() as opened:
                files = [
                    opened.enter_context(one.cgroup.open_files())
                    for one in resources
                    if one.cgroup is not None
                ]
                spawned = template.spawn(requests, files)
            for one, spawned_process in zip(resources, spawned, strict=True):
                processes.append(
                    SessionProcess(template, spawned_process, one, ProcessGroup(), self._watcher)
                )
            with self._lock:
                self._check_open()
                self._processes.update(processes)
            deadline = time.monotonic() + _START_S
            for process, seed in zip(processes, seeds, strict=True):
                process.await_ready(deadline)
                if signatures or seed is not None:
                    process.begin(seed, signatures, deadline)
        except BaseException:
            for process in processes:
                process.release()
            for one in resources[len(processes) :]:
                one.free()
            raise
        return processes

    def _request(self, resources: SessionResources) -> SpawnRequest:
        return SpawnRequest(
            seed=None,  # it comes with the tools, which may not fit into an order
            output_bytes=self.options.limits.output_bytes,
            message_bytes=self.options.limits.message_bytes,
            work=WORK if resources.folder is None else str(resources.folder.path),
            user=resources.user_inside,
        )

    def _template(self, shard: TemplateShard) -> Template:
        with shard.lock:
            self._check_open()  # `close` drops the templates under this lock
            if shard.template is None or not shard.template.alive:
                if shard.template is not None:
                    shard.template.close()
                plan = make_plan(
                    self._isolation,
                    self.options,
                    cpu=shard.cpu,
                    users=self._resources.users(self._isolation),
                    work=str(self._resources.folder),
                    memory_counted=self._resources.cgroups is not None,
                )
                shard.template = Template.start(plan)
            return shard.template

    def _close_templates(self) -> None:
        for shard in self._shards:
            with shard.lock:
                template, shard.template = shard.template, None
            if template is not None:
                template.close()


def _isolation_error_text(
    requested: str, failures: Sequence[tuple[Isolation, WallSetupError]]
) -> str:
    from envweave.sandbox.doctor import BY_DOCKER, advise, machine_facts

    lines = [f"This machine does not support Sandbox(isolation={requested!r})."]
    facts = machine_facts()
    for isolation, error in failures:
        lines.append(f"{isolation}: {error.text}.")
        lines.extend(advise(error.wall, error.errno, facts))
    if facts.container is None:
        lines.append(BY_DOCKER)
    lines.append(
        "Nothing was run. With isolation='none' code runs as this user, without any isolation."
    )
    return "\n".join(lines)

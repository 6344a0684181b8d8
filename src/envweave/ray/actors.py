"""The worker actors: what runs on the nodes of a cluster.

An actor holds many environments, and runs the same workers as a process of `backend="process"`.
Ray must not restart it: it would silently put environments that were never reset in the place of
the lost ones. A lost actor is reported to its caller, who starts another one and continues from
what is known of its episodes.

The methods in the group `control` run beside the environments, also while one of them hangs.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import ray
from ray.util.metrics import Counter, Gauge

from envweave.vector.process.action_columns import ColumnKind, action_columns
from envweave.vector.process.shared_columns import SharedColumns
from envweave.vector.process.turns import answer, pack_done
from envweave.vector.process.vector_worker import VectorWorker
from envweave.workers.deadlines import CodeClock
from envweave.workers.pickling import load_definition, pack_by_value, pack_failure, pack_reply
from envweave.workers.rpc import SessionHost
from envweave.workers.session_worker import DriverSessions, PickledCalls
from envweave.workers.shared_memory import AnyArray, SharedMemory

CONTROL = "control"

COUNT_S = 0.5
"""How often steps are reported to Ray's metrics, which takes as long as a small step."""


class ActorSettings(NamedTuple):
    """What a worker actor is started with.

    Attributes:
        definition: The environments to make, packed.
        paths: Where the caller imports from; those that exist on the node are used there too.
        log_level: The level of envweave's logger.
        name: The environment's name, for metrics.
        num_envs: How many environments the actor holds.
    """

    definition: bytes
    paths: list[str]
    log_level: int
    name: str
    num_envs: int


class ActorInfo(NamedTuple):
    """What a worker actor reports once it has tried to make its environments.

    Attributes:
        report: A packed `WorkerInfo`, or a failure.
        address: The IP address of its node.
        pid: Its process there.
    """

    report: bytes
    address: str
    pid: int


class ActorStats(NamedTuple):
    """What a worker actor has done so far.

    Attributes:
        name: The environment's name.
        node_id: Ray's ID of its node.
        num_envs: How many environments it holds.
        steps: How many steps they have taken.
        uptime_s: For how many seconds it has run.
    """

    name: str
    node_id: str
    num_envs: int
    steps: int
    uptime_s: float


INLINE_BYTES = 1 << 16
"""Columns up to this size are sent as bytes: Ray takes a millisecond to pickle a few arrays."""

_LENGTH = 4  # bytes for how many bytes of columns follow


class RayStep(NamedTuple):
    """One step of some rows, with large columns: Ray moves the arrays without copying them.

    Attributes:
        rewards: One for each row.
        leaves: The numeric columns of their observations.
        reply: The packed rest of the step; `None` if the columns hold everything.
    """

    rewards: Any
    leaves: list[Any]
    reply: bytes | None


def write_step(
    columns: SharedColumns, rows: slice | list[int], step: RayStep | bytes
) -> bytes | None:
    """Write a step that an actor returned to the caller's columns; return the packed rest of it."""
    if isinstance(step, bytes):
        end = _LENGTH + int.from_bytes(step[:_LENGTH])
        columns.unpack(rows, memoryview(step)[_LENGTH:end])
        return step[end:] or None
    columns.rewards[rows] = step.rewards
    for column, values in zip(columns.leaves, step.leaves, strict=True):
        column[rows] = values
    return step.reply


def pack_actions(columns: list[AnyArray]) -> bytes | list[AnyArray]:
    """Return columns of actions as they are sent."""
    if sum(column.nbytes for column in columns) > INLINE_BYTES:
        return columns
    return b"".join([column.tobytes() for column in columns])


def _unpack_actions(
    packed: bytes | list[AnyArray], kinds: Sequence[ColumnKind], count: int
) -> list[AnyArray]:
    if not isinstance(packed, bytes):
        return packed
    columns, offset = [], 0
    for dtype, shape in kinds:
        size = count * math.prod(shape)
        column = np.frombuffer(packed, dtype, size, offset)
        columns.append(column.reshape((count, *shape)))
        offset += column.nbytes
    return columns


class _WorkerActor:
    """What both kinds of actors have in common."""

    def __init__(self, settings: ActorSettings) -> None:
        known = set(sys.path)
        sys.path += [one for one in settings.paths if one not in known and Path(one).exists()]
        logging.getLogger("envweave").setLevel(settings.log_level)
        self._settings = settings
        self._clock = CodeClock(SharedMemory.of(8 * CodeClock.SIZE).words())
        self._worker: Any = None
        self._began_s = time.monotonic()
        self._steps = self._reported_steps = 0
        self._counted_s = -COUNT_S
        self._counter = Counter(
            "envweave_steps_total", "Steps of environments on Ray.", tag_keys=("env",)
        )
        self._gauge = Gauge("envweave_environments", "Environments on Ray.", tag_keys=("env",))
        for metric in (self._counter, self._gauge):
            metric.set_default_tags({"env": settings.name})

    def _make(self, worker: Callable[..., Any]) -> ActorInfo:
        """Make the worker with its environments, and report them."""
        try:
            self._worker = worker(self._clock, *load_definition(self._settings.definition))
            report = pack_reply(("done", self._worker.info), pack_by_value)
            self._gauge.set(self._settings.num_envs)
        except Exception as error:  # noqa: BLE001 - sent to the caller, which raises it
            report = pack_failure(error)
        return ActorInfo(report, ray.util.get_node_ip_address(), os.getpid())

    def _count(self, steps: int) -> None:
        self._steps += steps
        now_s = time.monotonic()
        if now_s - self._counted_s >= COUNT_S:
            self._counted_s = now_s
            self._report_steps()

    def _report_steps(self) -> None:
        """Tell Ray how many steps there were since the last time."""
        if self._steps > self._reported_steps:
            self._counter.inc(self._steps - self._reported_steps)
            self._reported_steps = self._steps

    def _stats(self) -> ActorStats:
        node_id = ray.get_runtime_context().get_node_id()
        name, num_envs = self._settings.name, self._settings.num_envs
        uptime_s = time.monotonic() - self._began_s
        return ActorStats(name, node_id, num_envs, self._steps, uptime_s)


@ray.remote(max_restarts=0, max_task_retries=0, concurrency_groups={CONTROL: 3})
@final
class VectorActor(_WorkerActor):
    """Runs some rows of a vector."""

    def start(self) -> ActorInfo:
        """Make the environments."""
        return self._make(VectorWorker)

    def share(self, packed: bytes) -> bytes:
        """Fix the columns; see `VectorWorker.share`."""
        worker: VectorWorker = self._worker
        try:
            layout, kinds, num_envs, fill = pickle.loads(packed)  # noqa: S301 - from our caller
            acts = action_columns(worker.info.interface.action_spec)
            memory = SharedMemory.of(SharedColumns.size(layout, acts, num_envs))
            worker.share(memory, layout, kinds, num_envs, fill)
        except Exception as error:  # noqa: BLE001 - sent to the caller, which raises it
            return pack_failure(error)
        return pack_reply(("done", None))

    def call(self, message: bytes) -> bytes:
        """Answer a message that is not a step."""
        self._report_steps()
        return answer(self._worker, message, None)[0]

    def step(self, message: bytes, rows: slice | list[int], count: int) -> RayStep | bytes:
        """Answer a message that steps this many rows."""
        reply = answer(self._worker, message, None)[0]
        return self._columns(rows, count, reply)

    def step_all(self, actions: bytes | list[Any]) -> RayStep | bytes:
        """Step every row, with the actions in columns."""
        worker: VectorWorker = self._worker
        assert worker.shared is not None
        acts = worker.shared.acts
        extras = worker.step(acts.read(_unpack_actions(actions, acts.kinds, len(worker.rows))))
        reply = None if extras is None else pack_done(worker, extras)
        rows = slice(worker.rows.start, worker.rows.stop)
        return self._columns(rows, len(worker.rows), reply)

    def _columns(self, rows: slice | list[int], count: int, reply: bytes | None) -> RayStep | bytes:
        shared: SharedColumns = self._worker.shared
        self._count(count)
        rewards, leaves = shared.rewards[rows], [leaf[rows] for leaf in shared.leaves]
        if rewards.nbytes + sum(leaf.nbytes for leaf in leaves) > INLINE_BYTES:
            return RayStep(rewards, leaves, reply)
        columns = shared.pack(rows)
        return b"".join([len(columns).to_bytes(_LENGTH), columns, reply or b""])

    @ray.method(concurrency_group=CONTROL)
    def running(self) -> tuple[int, float] | None:
        """Return which environment's code is running, and for how many seconds."""
        return self._clock.running()

    @ray.method(concurrency_group=CONTROL)
    def stats(self) -> ActorStats:
        """Return what it has done so far."""
        return self._stats()

    @ray.method(concurrency_group=CONTROL)
    def wait(self) -> None:
        """Never return: this call fails when the actor dies, which is how its caller knows."""
        threading.Event().wait()


@ray.remote(max_restarts=0, max_task_retries=0, concurrency_groups={CONTROL: 3})
@final
class SessionActor(_WorkerActor):
    """Runs some sessions on an event loop."""

    async def start(self) -> ActorInfo:
        """Make the environments."""
        info = self._make(DriverSessions)
        if self._worker is not None:
            self._host = SessionHost(self._worker, PickledCalls("a call"))
        return info

    async def call(self, message: list[Any]) -> list[Any] | None:
        """Carry out a call; return the reply, which a cancelled call has not."""
        replies: list[list[Any]] = []
        task = self._host.handle(message, replies.append)
        if task is not None:
            await asyncio.wait([task])
        if message[1] == "step":
            self._count(1)
        else:
            self._report_steps()
        return replies[0] if replies else None

    @ray.method(concurrency_group=CONTROL)
    async def running(self) -> tuple[int, float] | None:
        """Return which environment's code is running, and for how many seconds."""
        return self._clock.running()

    @ray.method(concurrency_group=CONTROL)
    async def stats(self) -> ActorStats:
        """Return what it has done so far."""
        return self._stats()

    @ray.method(concurrency_group=CONTROL)
    async def wait(self) -> None:
        """Never return: this call fails when the actor dies, which is how its caller knows."""
        await asyncio.Event().wait()

"""`backend="process"`: in worker processes, many environments each."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from envweave.backends import inproc
from envweave.errors import DefinitionError, OptionError
from envweave.registry import EnvSpec, MakeOptions
from envweave.vector import BatchTransport
from envweave.vector.process.row_state import RowState
from envweave.vector.process.transport import LocalShard, ProcessTransport
from envweave.vector.process.turns import (
    EventFd,
    TurnChannels,
    TurnSlot,
    TurnTable,
    TurnWorker,
    cores,
    spin_count,
)
from envweave.vector.process.worker_pool import WorkerPool, WorkerShard
from envweave.vector.transport import AsyncTransport, Transport
from envweave.workers.launch import WorkerLostError
from envweave.workers.main import WorkerInfo
from envweave.workers.pickling import pack_definition
from envweave.workers.session_client import (
    AsyncWorkerConnection,
    ProcessLauncher,
    SessionLauncher,
    SessionWorkerProcess,
    WorkerSlot,
)
from envweave.workers.session_drivers import AsyncProcessDriver, ProcessDriver


def start_vector(
    spec: EnvSpec,
    kwargs: Mapping[str, Any],
    options: MakeOptions,
    num_envs: int,
    make_local: Callable[[int], Any],
) -> ProcessTransport:
    """Start the workers of a vector.

    Args:
        spec: The recipe of the environments.
        kwargs: Keywords of the caller, which take precedence over the spec's.
        options: How to run them.
        num_envs: The number of environments.
        make_local: Makes the given number of environments here, for the caller's thread to step.

    Raises:
        EnvWeaveError: An environment could not be made; it is named, once.
    """
    num_workers, has_local = _plan(options, num_envs)
    shards_rows = split_rows(num_envs, num_workers + has_local)
    worker_options = dataclasses.replace(options, workers=None)  # a worker starts no workers
    definitions = [
        pack_definition(spec, kwargs, worker_options, rows, num_envs) for rows in shards_rows
    ]
    table, event = TurnTable.of(len(shards_rows)), EventFd.new()
    spins = spin_count(num_workers + 1)

    def shard(index: int, rows: range) -> WorkerShard:
        turns = TurnChannels(table, TurnSlot.of(index), EventFd.new(), event, spins)
        start = partial(TurnWorker, turns, definitions[index])
        return WorkerShard(turns.slot, rows, start, turns.event.close, options.timeout_s)

    shards = [shard(index, rows) for index, rows in enumerate(shards_rows)]
    local: LocalShard | None = None
    try:
        _launch(shards[has_local:])
        if has_local:
            local = make_local(len(shards_rows[0]))  # while the workers make theirs
            if local.interface.is_async:
                # An event loop in the caller's thread would delay the others.
                local.close()
                local, has_local = None, False
                _launch(shards[:1])
        info = _await_ready(shards[has_local:])
        if local is not None:
            shards[0].end()
            info = WorkerInfo(local.interface, local.tasks)
    except BaseException:
        if local is not None:
            local.close()
        for started in shards:
            started.end()
        event.close()
        table.close()
        raise
    state = RowState(num_envs, several_agents=info.interface.possible_agents is not None)
    pool = WorkerPool(
        shards[has_local:],
        state,
        table,
        event,
        spins=spins,
        autoreset=options.autoreset,
        timeout_s=options.timeout_s,
    )
    return ProcessTransport(pool, state, info, local, len(shards_rows[0]) if has_local else 0)


def _plan(options: MakeOptions, num_envs: int) -> tuple[int, bool]:
    """Return how many workers there are, and whether the caller's thread steps a shard."""
    if options.workers is not None:
        return min(options.workers, num_envs), False
    if options.timeout_s is not None or num_envs == 1:
        return min(cores(), num_envs), False
    return min(max(cores() - 1, 1), num_envs - 1), True


def split_rows(num_envs: int, count: int) -> list[range]:
    """Divide the rows of a vector among workers."""
    edges = [num_envs * i // count for i in range(count + 1)]
    return [range(low, high) for low, high in itertools.pairwise(edges)]


def _launch(shards: Sequence[WorkerShard]) -> None:
    """Start workers side by side."""
    try:
        for shard in shards:
            shard.launch()
    except WorkerLostError as loss:
        raise startup_error(loss) from None


def _await_ready(shards: Sequence[WorkerShard]) -> WorkerInfo:
    """Wait until the environments of started workers are made.

    Raises:
        EnvWeaveError: One of them could not be made; the first failure is raised.
    """
    try:
        infos = [shard.await_ready() for shard in shards]
    except WorkerLostError as loss:
        raise startup_error(loss) from None
    return infos[0]


def start_session(spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions) -> ProcessDriver:
    """Start a worker with one environment, for a sync caller.

    Raises:
        EnvWeaveError: The environment could not be made.
    """
    definition = pack_definition(spec, kwargs, options, range(1), 1)
    return start_driver(ProcessLauncher(definition), options)


def start_driver(launcher: SessionLauncher, options: MakeOptions) -> ProcessDriver:
    """Start a worker, and return a driver for its only session.

    Raises:
        EnvWeaveError: The environment could not be made.
    """
    slot = WorkerSlot(launcher, options.timeout_s)
    return ProcessDriver(slot, _connect(slot), autoreset=options.autoreset)


def start_pool(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, size: int
) -> list[AsyncProcessDriver]:
    """Start a few workers with many environments each, for an async caller.

    Raises:
        EnvWeaveError: An environment could not be made.
    """
    worker_options = dataclasses.replace(options, workers=None)  # a worker starts no workers
    shards_rows = split_rows(size, min(options.workers or cores(), size))
    definitions = [
        pack_definition(spec, kwargs, worker_options, rows, size) for rows in shards_rows
    ]
    launchers = [ProcessLauncher(definition) for definition in definitions]
    return start_drivers(launchers, list(map(len, shards_rows)), options)


def start_drivers(
    launchers: Sequence[SessionLauncher], counts: Sequence[int], options: MakeOptions
) -> list[AsyncProcessDriver]:
    """Start workers side by side; return a driver for each of their sessions.

    Args:
        launchers: One for each worker.
        counts: How many sessions each worker has.
        options: How to run them.

    Raises:
        EnvWeaveError: An environment could not be made.
    """
    slots = [WorkerSlot(launcher, options.timeout_s) for launcher in launchers]
    workers: list[SessionWorkerProcess] = []
    try:
        for slot in slots:
            workers.append(slot.launch())  # noqa: PERF401 - those that started are ended below
        infos = list(map(_connect, slots, workers))
    except BaseException as error:
        for worker in workers:
            worker.end()
        for slot in slots:
            slot.end()
        if isinstance(error, WorkerLostError):
            raise startup_error(error) from None
        raise
    drivers: list[AsyncProcessDriver] = []
    for slot, info, count in zip(slots, infos, counts, strict=True):
        shared = AsyncWorkerConnection(slot, count)
        drivers += [
            AsyncProcessDriver(shared, i, info, autoreset=options.autoreset) for i in range(count)
        ]
    return drivers


def _connect(slot: WorkerSlot, worker: SessionWorkerProcess | None = None) -> WorkerInfo:
    try:
        return slot.start(worker)
    except WorkerLostError as loss:
        slot.end()
        raise startup_error(loss) from None
    except BaseException:
        slot.end()
        raise


def startup_error(loss: WorkerLostError) -> DefinitionError:
    """Return what to raise if a worker was lost while it made its environments."""
    return DefinitionError(
        f"A worker process could not make its environments: {loss}. Its output is above."
    )


def connect(spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions) -> Transport:
    """Connect a sync caller to one environment in a separate process."""
    return start_session(spec, kwargs, options)


def connect_async(spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions) -> AsyncTransport:
    """Connect an async caller to one environment in a separate process."""
    return start_pool(spec, kwargs, options, 1)[0]


def connect_pool(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, size: int
) -> list[AsyncTransport]:
    """Connect an async caller to many environments, each by itself, in a few processes."""
    return list(start_pool(spec, kwargs, options, size))


def connect_vector(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, num_envs: int
) -> BatchTransport:
    """Connect a vector to many environments in a few processes."""
    if options.mode is not None:
        raise OptionError(
            f"mode={options.mode!r} is a way to run in this process. Leave it out, or leave out "
            "backend='process'."
        )
    here = dataclasses.replace(options, workers=None)
    make_local = partial(inproc.connect_vector, spec, kwargs, here, share=(0, num_envs))
    return start_vector(spec, kwargs, options, num_envs, make_local)

"""`backend="process"`: in worker processes, many environments each."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from envweave.backends import inproc
from envweave.errors import DefinitionError, EnvWeaveError, OptionError
from envweave.registry import EnvSpec, MakeOptions
from envweave.vector import BatchTransport
from envweave.vector.process.row_state import RowState
from envweave.vector.process.shared_memory import EventFd, TurnSlot, TurnTable, cores, looks
from envweave.vector.process.transport import ProcessTransport, Share
from envweave.vector.process.vector_worker import WorkerInfo
from envweave.vector.process.worker_pool import WorkerPool, WorkerShard
from envweave.vector.transport import AsyncTransport, Transport
from envweave.workers.pickling import pack_definition
from envweave.workers.session_async_env import AsyncProcessDriver
from envweave.workers.session_client import AsyncWorkerConnection, WorkerConnection
from envweave.workers.session_env import ProcessDriver
from envweave.workers.worker_process import WorkerIPC, WorkerLostError, WorkerProcess


def start_vector(
    spec: EnvSpec,
    kwargs: Mapping[str, Any],
    options: MakeOptions,
    num_envs: int,
    make_own: Callable[[int], Any],
) -> ProcessTransport:
    """Start the workers of a vector.

    Args:
        spec: What the environments are made from.
        kwargs: What the caller gave on top.
        options: How they are run.
        num_envs: How many there are.
        make_own: Makes so many of them in this process, for the caller's own thread to step.

    Raises:
        EnvWeaveError: An environment could not be made; it is named, once.
    """
    num_workers, has_share = _plan(options, num_envs)
    shares = _shares(num_envs, num_workers + has_share)
    there = dataclasses.replace(options, workers=None)  # a worker has none of its own
    definitions = [pack_definition(spec, kwargs, there, rows, num_envs) for rows in shares]
    board, bell = TurnTable.of(len(shares)), EventFd.new()
    spin = looks(num_workers + 1)

    def shard(index: int, rows: range) -> WorkerShard:
        seat = WorkerIPC(board, TurnSlot.of(index), EventFd.new(), bell, spin)
        return WorkerShard(seat, rows, definitions[index], options.timeout_s)

    shards = [shard(index, rows) for index, rows in enumerate(shares)]
    own: Share | None = None
    try:
        _launch(shards[has_share:])
        if has_share:
            own = make_own(len(shares[0]))  # while the others are made over there
            if own.interface.is_async:
                # An event loop in the caller's thread would hold up the others.
                own.close()
                own, has_share = None, False
                _launch(shards[:1])
        hello = _greet(shards[has_share:])
        if own is not None:
            shards[0].end()
            hello = WorkerInfo(own.interface, own.tasks)
    except BaseException:
        if own is not None:
            own.close()
        for one in shards:
            one.end()
        bell.close()
        board.close()
        raise
    books = RowState(num_envs, several_agents=hello.interface.possible_agents is not None)
    fleet = WorkerPool(
        shards[has_share:],
        books,
        board,
        bell,
        looks=spin,
        autoreset=options.autoreset,
        timeout_s=options.timeout_s,
    )
    return ProcessTransport(fleet, books, hello, own, len(shares[0]) if has_share else 0)


def _plan(options: MakeOptions, num_envs: int) -> tuple[int, bool]:
    """Return how many workers there are, and whether the caller's thread steps a share."""
    if options.workers is not None:
        return min(options.workers, num_envs), False
    if options.timeout_s is not None or num_envs == 1:
        return min(cores(), num_envs), False
    return min(max(cores() - 1, 1), num_envs - 1), True


def _shares(num_envs: int, count: int) -> list[range]:
    edges = [num_envs * i // count for i in range(count + 1)]
    return [range(low, high) for low, high in itertools.pairwise(edges)]


def _launch(shards: Sequence[WorkerShard]) -> None:
    """Start workers side by side."""
    try:
        for shard in shards:
            shard.launch()
    except WorkerLostError as loss:
        raise _unstarted(loss) from None


def _greet(shards: Sequence[WorkerShard]) -> WorkerInfo:
    """Wait until the environments of workers that were started are made.

    Raises:
        EnvWeaveError: One of them could not be made; the first is told of.
    """
    try:
        hellos = [shard.greet() for shard in shards]
    except EnvWeaveError:
        raise
    except WorkerLostError as loss:
        raise _unstarted(loss) from None
    return hellos[0]


def start_session(spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions) -> ProcessDriver:
    """Start a worker with one environment, for a sync caller.

    Raises:
        EnvWeaveError: The environment could not be made.
    """
    line = WorkerConnection(pack_definition(spec, kwargs, options, range(1), 1), options.timeout_s)
    return ProcessDriver(line, _connected(line), autoreset=options.autoreset)


def start_pool(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, size: int
) -> list[AsyncProcessDriver]:
    """Start a few workers with many environments each, for an async caller.

    Raises:
        EnvWeaveError: An environment could not be made.
    """
    there = dataclasses.replace(options, workers=None)  # a worker has none of its own
    shares = _shares(size, min(options.workers or cores(), size))
    lines = [
        WorkerConnection(pack_definition(spec, kwargs, there, rows, size), options.timeout_s)
        for rows in shares
    ]
    workers: list[WorkerProcess] = []
    try:
        for line in lines:  # side by side
            workers.append(line.launch())  # noqa: PERF401 - those that started are ended below
        hellos = [_connected(line, worker) for line, worker in zip(lines, workers, strict=True)]
    except BaseException as error:
        for worker in workers:
            worker.end()
        for line in lines:
            line.end()
        if isinstance(error, WorkerLostError):
            raise _unstarted(error) from None
        raise
    drivers: list[AsyncProcessDriver] = []
    for line, hello, rows in zip(lines, hellos, shares, strict=True):
        shared = AsyncWorkerConnection(line, len(rows))
        drivers += [
            AsyncProcessDriver(shared, i, hello, autoreset=options.autoreset)
            for i in range(len(rows))
        ]
    return drivers


def _connected(line: WorkerConnection, worker: WorkerProcess | None = None) -> WorkerInfo:
    try:
        return line.start(worker)
    except WorkerLostError as loss:
        line.end()
        raise _unstarted(loss) from None
    except BaseException:
        line.end()
        raise


def _unstarted(loss: WorkerLostError) -> DefinitionError:
    return DefinitionError(
        f"A worker process could not make its environments: {loss}. What it printed stands above."
    )


def connect(spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions) -> Transport:
    """Carry a sync caller's calls to one environment in a process of its own."""
    return start_session(spec, kwargs, options)


def connect_async(spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions) -> AsyncTransport:
    """Carry an async caller's calls to one environment in a process of its own."""
    return start_pool(spec, kwargs, options, 1)[0]


def connect_pool(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, size: int
) -> list[AsyncTransport]:
    """Carry an async caller's calls to many environments, each by itself, in a few processes."""
    return list(start_pool(spec, kwargs, options, size))


def connect_vector(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, num_envs: int
) -> BatchTransport:
    """Carry a vector's calls to many environments in a few processes."""
    if options.mode is not None:
        raise OptionError(
            f"mode={options.mode!r} is a way to run in this process. Leave it out, or leave out "
            "backend='process'."
        )
    here = dataclasses.replace(options, workers=None)
    make_own = partial(inproc.connect_vector, spec, kwargs, here, share=(0, num_envs))
    return start_vector(spec, kwargs, options, num_envs, make_own)

"""`backend="ray"`: on a Ray cluster, in worker actors with many environments each.

The rules are those of `backend="process"`, and so is most of the code: an actor takes the place
of a worker process. Ray places the actors, moves the arrays and notices when a node is gone.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from envweave.backends.process import split_rows, start_driver, start_drivers, startup_error
from envweave.errors import OptionError
from envweave.ray.cluster import RayCluster, connected, read_placement, read_resources
from envweave.ray.cluster import describe_workers as cluster_workers
from envweave.ray.session_worker import RaySessionLauncher
from envweave.ray.vector_worker import RayVectorWorker, VectorTurns
from envweave.ray.worker import RayJob
from envweave.registry import EnvSpec, MakeOptions, RayOptions
from envweave.vector import BatchTransport
from envweave.vector.process.row_state import RowState
from envweave.vector.process.transport import ProcessTransport
from envweave.vector.process.turns import EventFd, TurnSlot, TurnTable
from envweave.vector.process.worker_pool import WorkerPool, WorkerShard
from envweave.vector.transport import AsyncTransport, Transport
from envweave.workers.launch import WorkerLostError
from envweave.workers.pickling import pack_definition, travels_by_value

logger = logging.getLogger("envweave.ray")

RECONNECTS = True
"""A transport that lost its worker starts another at its next reset; it need not be replaced."""


def connect(spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions) -> Transport:
    """Connect a sync caller to one environment in an actor of its own."""
    with connected(options.ray.address) as cluster:
        launcher = _launchers(cluster, spec, kwargs, options, 1)[0]
        return start_driver(launcher, options)


def connect_async(spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions) -> AsyncTransport:
    """Connect an async caller to one environment in an actor of its own."""
    return connect_pool(spec, kwargs, options, 1)[0]


def connect_pool(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, size: int
) -> list[AsyncTransport]:
    """Connect an async caller to many environments, each by itself, in a few actors."""
    with connected(options.ray.address) as cluster:
        launchers = _launchers(cluster, spec, kwargs, options, size)
        counts = [launcher.num_envs for launcher in launchers]
        return list(start_drivers(launchers, counts, options))


def describe_workers() -> str:
    """Return the nodes, workers, environments and losses of this process, for progress bars."""
    return cluster_workers()


def connect_vector(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions, num_envs: int
) -> BatchTransport:
    """Connect a vector to many environments in a few actors.

    Raises:
        EnvWeaveError: An environment could not be made; it is named, once.
    """
    if options.mode is not None:
        raise OptionError(
            f"mode={options.mode!r} is a way to run in this process. Leave it out, or leave out "
            "backend='ray'."
        )
    with connected(options.ray.address) as cluster:
        job = _job(cluster, spec, options)
        shards_rows = _plan(job, options, num_envs)
        definitions = _definitions(spec, kwargs, options, shards_rows, num_envs)
        table, event = TurnTable.of(len(shards_rows)), EventFd.new()

        def shard(index: int, rows: range) -> WorkerShard:
            turns = VectorTurns(table, TurnSlot.of(index), event)
            start = partial(RayVectorWorker, job, turns, rows, definitions[index])
            release = cluster.lease().release
            return WorkerShard(turns.slot, rows, start, release, options.timeout_s)

        shards = [shard(index, rows) for index, rows in enumerate(shards_rows)]
        try:
            for one in shards:
                one.launch()
            infos = [one.await_ready() for one in shards]
        except BaseException as error:
            for one in shards:
                one.end()
            event.close()
            table.close()
            if isinstance(error, WorkerLostError):
                raise startup_error(error) from None
            raise
    info = infos[0]
    several = info.interface.possible_agents is not None
    state = RowState(num_envs, several_agents=several)
    pool = WorkerPool(
        shards,
        state,
        table,
        event,
        spins=0,  # a thread that spins would keep Ray's from delivering replies
        autoreset=options.autoreset,
        timeout_s=options.timeout_s,
    )
    return ProcessTransport(pool, state, info, None, 0)


def _launchers(
    cluster: RayCluster,
    spec: EnvSpec,
    kwargs: Mapping[str, Any],
    options: MakeOptions,
    size: int,
) -> list[RaySessionLauncher]:
    job = _job(cluster, spec, options)
    shards_rows = _plan(job, options, size)
    definitions = _definitions(spec, kwargs, options, shards_rows, size)
    return [
        RaySessionLauncher(job, definition, len(rows))
        for definition, rows in zip(definitions, shards_rows, strict=True)
    ]


def _job(cluster: RayCluster, spec: EnvSpec, options: MakeOptions) -> RayJob:
    ray = options.ray
    if ray.runtime_env is not None and not isinstance(ray.runtime_env, Mapping):
        raise OptionError(
            "runtime_env must be a dict, such as runtime_env={'pip': ['numpy']}, "
            f"got {ray.runtime_env!r}."
        )
    resources, placement = read_resources(ray.resources), read_placement(ray.placement)
    return RayJob(cluster, spec.id, resources, placement, ray.runtime_env)


def _plan(job: RayJob, options: MakeOptions, num_envs: int) -> list[range]:
    """Return which rows each worker holds: as many workers as the cluster has processors.

    Raises:
        OptionError: The number of workers contradicts the number of environments in each.
    """
    each, workers = options.ray.envs_per_worker, options.workers
    if each not in (None, "auto"):
        if isinstance(each, bool) or not isinstance(each, int) or each < 1:
            raise OptionError(f"envs_per_worker must be 'auto' or an integer >= 1, got {each!r}.")
        if workers is not None:
            raise OptionError(
                f"workers={workers} and envs_per_worker={each} both say how many workers there "
                "are. Leave one of them out."
            )
        workers = math.ceil(num_envs / each)
    if workers is None:
        workers = job.cluster.capacity(job.resources)
    return split_rows(num_envs, min(workers, num_envs))


_by_value: set[str] = set()  # names, each warned about once


def _definitions(
    spec: EnvSpec,
    kwargs: Mapping[str, Any],
    options: MakeOptions,
    shards_rows: Sequence[range],
    num_envs: int,
) -> list[bytes]:
    """Return the definition for each worker, packed."""
    if travels_by_value(spec) and spec.id not in _by_value:
        _by_value.add(spec.id)
        logger.warning(
            "%s is not defined in a module that other machines can import, so it is sent to them "
            "by value. They need every package that its code imports; to be sure, put it into a "
            "package and install that there, or name the package in runtime_env.",
            spec.id,
        )
    there = dataclasses.replace(options, workers=None, ray=RayOptions())
    return [pack_definition(spec, kwargs, there, rows, num_envs) for rows in shards_rows]

"""Starting the workers of a vector: shares, seats, and what fails at the start."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envweave.errors import DefinitionError, EnvWeaveError
from envweave.registry import EnvSpec, Options
from envweave.transports.process.alone import ProcessDriver
from envweave.transports.process.async_line import AsyncLine
from envweave.transports.process.board import Bell, Board, Turn, cores, looks
from envweave.transports.process.books import Books
from envweave.transports.process.definition import pack_definition
from envweave.transports.process.fleet import Fleet
from envweave.transports.process.line import Line
from envweave.transports.process.place import Seat, WorkerLostError
from envweave.transports.process.shard import Shard
from envweave.transports.process.together import AsyncProcessDriver
from envweave.transports.process.transport import ProcessTransport, Share
from envweave.transports.process.vector_host import Hello


def start_vector(
    spec: EnvSpec,
    kwargs: Mapping[str, Any],
    options: Options,
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
    board, bell = Board.of(len(shares)), Bell.new()
    spin = looks(num_workers + 1)

    def shard(index: int, rows: range) -> Shard:
        seat = Seat(board, Turn.of(index), Bell.new(), bell, spin)
        return Shard(seat, rows, definitions[index], options.timeout_s)

    shards = [shard(index, rows) for index, rows in enumerate(shares)]
    own: Share | None = None
    try:
        hello = _greet(shards[has_share:])
        if has_share and hello.interface.is_async:
            _greet(shards[:1])  # an event loop in the caller's thread would hold up the others
            has_share = False
        if has_share:
            own = make_own(len(shares[0]))
            shards[0].end()
            hello = Hello(own.interface, own.tasks)
    except BaseException:
        for one in shards:
            one.end()
        bell.close()
        board.close()
        raise
    books = Books(num_envs, several_agents=hello.interface.possible_agents is not None)
    fleet = Fleet(
        shards[has_share:],
        books,
        board,
        bell,
        looks=spin,
        autoreset=options.autoreset,
        timeout_s=options.timeout_s,
    )
    return ProcessTransport(fleet, books, hello, own, len(shares[0]) if has_share else 0)


def _plan(options: Options, num_envs: int) -> tuple[int, bool]:
    """Return how many workers there are, and whether the caller's thread steps a share."""
    if options.workers is not None:
        return min(options.workers, num_envs), False
    if options.timeout_s is not None or num_envs == 1:
        return min(cores(), num_envs), False
    return min(max(cores() - 1, 1), num_envs - 1), True


def _shares(num_envs: int, count: int) -> list[range]:
    edges = [num_envs * i // count for i in range(count + 1)]
    return [range(low, high) for low, high in itertools.pairwise(edges)]


def _greet(shards: Sequence[Shard]) -> Hello:
    """Start workers side by side, and wait until their environments are made.

    Raises:
        EnvWeaveError: One of them could not be made; the first is told of.
    """
    try:
        for shard in shards:
            shard.launch()
        hellos = [shard.greet() for shard in shards]
    except EnvWeaveError:
        raise
    except WorkerLostError as loss:
        raise _unstarted(loss) from None
    return hellos[0]


def start_session(spec: EnvSpec, kwargs: Mapping[str, Any], options: Options) -> ProcessDriver:
    """Start a worker with one environment, for a sync caller.

    Raises:
        EnvWeaveError: The environment could not be made.
    """
    line = Line(pack_definition(spec, kwargs, options, range(1), 1), options.timeout_s)
    return ProcessDriver(line, _connected(line), autoreset=options.autoreset)


def start_pool(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: Options, size: int
) -> list[AsyncProcessDriver]:
    """Start a few workers with many environments each, for an async caller.

    Raises:
        EnvWeaveError: An environment could not be made.
    """
    drivers: list[AsyncProcessDriver] = []
    lines: list[Line] = []
    try:
        for rows in _shares(size, min(cores(), size)):
            line = Line(pack_definition(spec, kwargs, options, rows, size), options.timeout_s)
            lines.append(line)
            hello = _connected(line)
            shared = AsyncLine(line, len(rows))
            drivers += [
                AsyncProcessDriver(shared, i, hello, autoreset=options.autoreset)
                for i in range(len(rows))
            ]
    except BaseException:
        for line in lines:
            line.end()
        raise
    return drivers


def _connected(line: Line) -> Hello:
    try:
        return line.start()
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

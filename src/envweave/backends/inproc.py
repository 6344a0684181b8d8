"""`backend="inproc"`: in the caller's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from envweave.backends.env_factory import EnvFactory, discard
from envweave.environment import Environment
from envweave.errors import DefinitionError, OptionError, suggest
from envweave.registry import EnvSpec, MakeOptions
from envweave.session import AsyncDriver, LoopDriver, Session, SyncDriver
from envweave.vector import BatchTransport
from envweave.vector.concurrent import ConcurrentTransport, LoopCallExecutor, ThreadCallExecutor
from envweave.vector.serial import SerialTransport
from envweave.vector.transport import AsyncTransport, Transport

MODES = ("serial", "threads", "async")


def connect(spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions) -> Transport:
    """Connect a sync caller to one environment."""
    session = EnvFactory(spec, kwargs, options).open_session(0)
    if session.interface.is_async:
        return LoopDriver(session, options.timeout_s)
    return SyncDriver(session)


def connect_async(spec: EnvSpec, kwargs: Mapping[str, Any], options: MakeOptions) -> AsyncTransport:
    """Connect an async caller to one environment."""
    return AsyncDriver(EnvFactory(spec, kwargs, options).open_session(0), options.timeout_s)


def connect_vector(
    spec: EnvSpec,
    kwargs: Mapping[str, Any],
    options: MakeOptions,
    num_envs: int,
    wrap: Callable[[int, Environment], Environment] | None = None,
    share: tuple[int, int] | None = None,
) -> BatchTransport:
    """Connect a vector to many environments.

    Args:
        spec: The environment to make.
        kwargs: Keywords for its factory.
        options: How to run it.
        num_envs: The number of environments.
        wrap: Called with the index of each environment and the environment, including
            replacements; the session uses what it returns.
        share: If these are part of a larger vector: the index of the first, and the total number.
            Error messages use them.
    """
    if options.mode not in (None, *MODES):
        raise OptionError(
            f"mode must be one of {', '.join(map(repr, MODES))}, got {options.mode!r}."
            f"{suggest(str(options.mode), MODES)}"
        )
    _refuse_workers(options)
    factory = EnvFactory(spec, kwargs, options, num_envs, wrap)
    with _discarded_on_failure(options) as sessions:
        for i in range(num_envs):
            sessions.append(_open(factory, i, *(share or (0, num_envs))))
            _refuse_serial(sessions[0], spec, options)
        return _transport(sessions, options)


def connect_pool(
    spec: EnvSpec,
    kwargs: Mapping[str, Any],
    options: MakeOptions,
    size: int,
    wrap: Callable[[int, Environment], Environment] | None = None,
    share: tuple[int, int] | None = None,
) -> list[AsyncTransport]:
    """Connect an async caller to many environments, each by itself."""
    _refuse_workers(options)
    factory = EnvFactory(spec, kwargs, options, size, wrap)
    with _discarded_on_failure(options) as sessions:
        sessions.extend(_open(factory, i, *(share or (0, size))) for i in range(size))
    return [AsyncDriver(session, options.timeout_s) for session in sessions]


def _refuse_workers(options: MakeOptions) -> None:
    if options.workers is not None and options.mode != "threads":
        raise OptionError(
            f"workers={options.workers} needs processes or threads, and backend='inproc' uses "
            "neither here. Leave it out, or use backend='process' or mode='threads'."
        )


@contextmanager
def _discarded_on_failure(options: MakeOptions) -> Iterator[list[Session]]:
    """Yield a list for sessions; if the block raises, close their environments."""
    sessions: list[Session] = []
    try:
        yield sessions
    except BaseException:
        for session in sessions:
            discard(session.environment, options.timeout_s)
        raise


def _open(factory: EnvFactory, index: int, first: int, total: int) -> Session:
    try:
        return factory.open_session(index)
    except DefinitionError as error:
        if total == 1:
            raise
        raise DefinitionError(f"Environment {first + index} of {total}: {error}") from error


def _transport(sessions: list[Session], options: MakeOptions) -> BatchTransport:
    if options.mode == "threads":
        return ConcurrentTransport(
            sessions,
            partial(ThreadCallExecutor, timeout_s=options.timeout_s, max_threads=options.workers),
        )
    if options.mode == "async" or sessions[0].interface.is_async:
        return ConcurrentTransport(sessions, partial(LoopCallExecutor, timeout_s=options.timeout_s))
    return SerialTransport(sessions)


def _refuse_serial(session: Session, spec: EnvSpec, options: MakeOptions) -> None:
    if options.mode == "serial" and session.interface.is_async:
        raise OptionError(
            f"mode='serial' cannot step {spec.id!r}, whose methods are async. "
            "Leave mode out, or use mode='async'."
        )

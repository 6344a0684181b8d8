"""`backend="inproc"`: in the caller's own process and thread."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Mapping
from typing import Any

from envweave.adapters import adopt
from envweave.environment import Environment
from envweave.errors import OptionError, suggest
from envweave.registry import EnvSpec, Options, build
from envweave.session import AsyncDriver, LoopDriver, PrivateLoop, Session, SyncDriver
from envweave.transports import AsyncTransport, Transport
from envweave.transports.apart import ApartTransport
from envweave.transports.loop import LoopCrew
from envweave.transports.serial import SerialTransport
from envweave.transports.threads import ThreadCrew
from envweave.vector import BatchTransport
from envweave.wrappers import TimeLimit

logger = logging.getLogger(__name__)

MODES = ("serial", "threads", "async")


def connect(spec: EnvSpec, kwargs: Mapping[str, Any], options: Options) -> Transport:
    """Carry a sync caller's calls to one environment."""
    session = _session(_build(spec, kwargs, options), spec, options)
    return LoopDriver(session) if session.interface.is_async else SyncDriver(session)


def connect_async(spec: EnvSpec, kwargs: Mapping[str, Any], options: Options) -> AsyncTransport:
    """Carry an async caller's calls to one environment."""
    return AsyncDriver(_session(_build(spec, kwargs, options), spec, options))


def connect_vector(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: Options, num_envs: int
) -> BatchTransport:
    """Carry a vector's calls to many environments."""
    if options.mode not in (None, *MODES):
        raise OptionError(
            f"mode={options.mode!r} is none of {', '.join(map(repr, MODES))}."
            f"{suggest(str(options.mode), MODES)}"
        )
    sessions: list[Session] = []
    try:
        made: dict[int, Any] = {}  # by identity
        for _ in range(num_envs):
            one = _build(spec, kwargs, options)
            if id(one) in made:
                raise OptionError(
                    f"One {type(one).__name__} object cannot be {num_envs} environments: the "
                    f"factory of {spec.id!r} returned it twice. Let it make a new one each time."
                )
            made[id(one)] = one
            sessions.append(_session(one, spec, options))
            _refuse_serial(sessions[0], spec, options)
        return _transport(sessions, options.mode)
    except BaseException:
        for session in sessions:
            _discard(session)
        raise


def _transport(sessions: list[Session], mode: str | None) -> BatchTransport:
    if mode == "threads":
        return ApartTransport(sessions, ThreadCrew)
    if mode == "async" or sessions[0].interface.is_async:
        return ApartTransport(sessions, LoopCrew)
    return SerialTransport(sessions)


def _refuse_serial(session: Session, spec: EnvSpec, options: Options) -> None:
    if options.mode == "serial" and session.interface.is_async:
        raise OptionError(
            f"mode='serial' cannot step {spec.id!r}, whose methods are async. "
            "Leave mode out, or use mode='async'."
        )


def _build(spec: EnvSpec, kwargs: Mapping[str, Any], options: Options) -> Any:
    if options.timeout_s is not None:
        raise OptionError(
            f"timeout_s={options.timeout_s!r} cannot be honoured by backend='inproc': it runs the "
            "environment in this thread, which nothing can interrupt. Leave timeout_s out."
        )
    return build(spec, kwargs)


def _session(made: Any, spec: EnvSpec, options: Options) -> Session:
    """Put what a factory made under a session; if that cannot be, close it."""
    environment = adopt(made)
    try:
        if spec.max_episode_steps is not None:
            environment = TimeLimit(environment, spec.max_episode_steps)
        return Session(environment, autoreset=options.autoreset, transform=spec.transform)
    except BaseException:
        _close(environment)
        raise


def _discard(session: Session) -> None:
    if session.close():
        _close(session.environment)


def _close(environment: Environment) -> None:
    """Close an environment that nobody will use; what led to this is raised, not a failure here."""
    try:
        closing = environment.close()
        if isinstance(closing, Coroutine):
            loop = PrivateLoop()
            try:
                loop.run(closing)
            finally:
                loop.close()
    except Exception:
        logger.warning("closing an unused %s failed", type(environment).__name__, exc_info=True)

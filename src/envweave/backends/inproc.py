"""`backend="inproc"`: in the caller's own process and thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envweave.adapters import adopt
from envweave.errors import OptionError, suggest
from envweave.registry import EnvSpec, Options, build
from envweave.session import AsyncDriver, LoopDriver, Session, SyncDriver
from envweave.transports import AsyncTransport, Transport
from envweave.transports.apart import ApartTransport
from envweave.transports.loop import LoopCrew
from envweave.transports.serial import SerialTransport
from envweave.transports.threads import ThreadCrew
from envweave.vector import BatchTransport
from envweave.wrappers import TimeLimit

MODES = ("serial", "threads", "async")


def connect(spec: EnvSpec, kwargs: Mapping[str, Any], options: Options) -> Transport:
    """Carry a sync caller's calls to one environment."""
    session = _session(spec, kwargs, options)
    return LoopDriver(session) if session.interface.is_async else SyncDriver(session)


def connect_async(spec: EnvSpec, kwargs: Mapping[str, Any], options: Options) -> AsyncTransport:
    """Carry an async caller's calls to one environment."""
    return AsyncDriver(_session(spec, kwargs, options))


def connect_vector(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: Options, num_envs: int
) -> BatchTransport:
    """Carry a vector's calls to many environments."""
    sessions = [_session(spec, kwargs, options) for _ in range(num_envs)]
    is_async = sessions[0].interface.is_async
    match options.mode:
        case "serial" if is_async:
            raise OptionError(
                f"mode='serial' cannot step {spec.id!r}, whose methods are async. "
                "Leave mode out, or use mode='async'."
            )
        case "threads":
            return ApartTransport(sessions, ThreadCrew)
        case "async":
            return ApartTransport(sessions, LoopCrew)
        case "serial" | None:
            return ApartTransport(sessions, LoopCrew) if is_async else SerialTransport(sessions)
    raise OptionError(
        f"mode={options.mode!r} is none of {', '.join(map(repr, MODES))}."
        f"{suggest(str(options.mode), MODES)}"
    )


def _session(spec: EnvSpec, kwargs: Mapping[str, Any], options: Options) -> Session:
    if options.timeout_s is not None:
        raise OptionError(
            f"timeout_s={options.timeout_s!r} cannot be honoured by backend='inproc': it runs the "
            "environment in this thread, which nothing can interrupt. Leave timeout_s out."
        )
    environment = adopt(build(spec, kwargs))
    if spec.max_episode_steps is not None:
        environment = TimeLimit(environment, spec.max_episode_steps)
    return Session(environment, autoreset=options.autoreset, transform=spec.transform)

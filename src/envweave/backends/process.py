"""`backend="process"`: in worker processes, many environments each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

from envweave.backends import inproc
from envweave.errors import OptionError
from envweave.registry import EnvSpec, Options
from envweave.transports.protocol import AsyncTransport, Transport
from envweave.transports.process.starting import start_pool, start_session, start_vector
from envweave.vector import BatchTransport


def connect(spec: EnvSpec, kwargs: Mapping[str, Any], options: Options) -> Transport:
    """Carry a sync caller's calls to one environment in a process of its own."""
    return start_session(spec, kwargs, options)


def connect_async(spec: EnvSpec, kwargs: Mapping[str, Any], options: Options) -> AsyncTransport:
    """Carry an async caller's calls to one environment in a process of its own."""
    return start_pool(spec, kwargs, options, 1)[0]


def connect_pool(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: Options, size: int
) -> list[AsyncTransport]:
    """Carry an async caller's calls to many environments, each by itself, in a few processes."""
    return list(start_pool(spec, kwargs, options, size))


def connect_vector(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: Options, num_envs: int
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

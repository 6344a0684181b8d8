"""`backend="process"`: in worker processes, many environments each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

from envweave.backends import inproc
from envweave.errors import OptionError
from envweave.registry import EnvSpec, Options
from envweave.transports.process.starting import start_vector
from envweave.vector import BatchTransport


def connect_vector(
    spec: EnvSpec, kwargs: Mapping[str, Any], options: Options, num_envs: int
) -> BatchTransport:
    """Carry a vector's calls to many environments in a few processes."""
    if options.mode is not None:
        raise OptionError(
            f"mode={options.mode!r} is a way to run in this process. Leave it out, or leave out "
            "backend='process'."
        )
    make_own = partial(
        inproc.connect_vector, spec, kwargs, dataclasses.replace(options, workers=None)
    )
    return start_vector(spec, kwargs, options, num_envs, make_own)

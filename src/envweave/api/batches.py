"""Environments that are born as a batch: Gymnasium's own vectors, made and adapted whole."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from envweave.api.recipes import whole_number
from envweave.errors import DefinitionError, EnvWeaveError, OptionError, in_words
from envweave.registry import EnvSpec, Options
from envweave.registry.plugins import load_path
from envweave.vector import VectorEnv


def is_batch(env: Any) -> bool:
    """Whether it is a vector of Gymnasium's, or a class of such."""
    # An object of a library exists only where that library was imported.
    if "gymnasium" not in sys.modules:
        return False
    from envweave.adapters.gymnasium import is_vector

    return is_vector(env)


def adapt_batch(
    env: Any,
    num_envs: int | None,
    backend: str,
    spec: EnvSpec,
    options: Options,
    kwargs: Mapping[str, Any],
) -> VectorEnv | None:
    """Return a vector of Gymnasium's as ours; `None` where single environments are wanted.

    A class is called with `num_envs` and the keywords, and so is the `batch_factory` of an ID.

    Raises:
        OptionError: An option that a vector cannot honour, or that came too late.
        DefinitionError: The vector could not be made, or is none that can be adapted.
    """
    if is_batch(env) and not isinstance(env, type):
        _refuse_late(env, num_envs, spec)
        return _open(env, backend, spec, options)
    factory: Any = env if is_batch(env) else spec.batch_factory
    if factory is None:
        return None
    factory = load_path(factory) if isinstance(factory, str) else factory
    made = _make(factory, spec, whole_number("num_envs", num_envs), kwargs)
    if made is None:
        return None
    try:
        return _open(made, backend, spec, options)
    except BaseException:
        made.close()
        raise


def _refuse_late(env: Any, num_envs: int | None, spec: EnvSpec) -> None:
    name = type(env).__name__
    if spec.max_episode_steps is not None:
        raise OptionError(
            f"max_episode_steps={spec.max_episode_steps} came too late: the {name} is made "
            "already. Construct it with its limit."
        )
    if num_envs is not None and whole_number("num_envs", num_envs) != env.num_envs:
        raise OptionError(
            f"num_envs={num_envs!r}, but the {name} has {env.num_envs}. Leave num_envs out."
        )


def _make(factory: Any, spec: EnvSpec, num_envs: Any, kwargs: Mapping[str, Any]) -> Any:
    given = {**spec.kwargs, **kwargs, "num_envs": num_envs}
    if spec.max_episode_steps is not None:
        given["max_episode_steps"] = spec.max_episode_steps
    try:
        return factory(**given)
    except EnvWeaveError:
        raise
    except Exception as error:
        raise DefinitionError(f"Making {spec.id!r} failed: {in_words(error)}") from error


def _open(env: Any, backend: str, spec: EnvSpec, options: Options) -> VectorEnv:
    from envweave.adapters.gymnasium_vector import GymnasiumBatch

    refused = {
        "backend": None if backend == "inproc" else backend,
        "mode": options.mode,
        "workers": options.workers,
        "timeout_s": options.timeout_s,
        "transform": spec.transform,
    }
    for name, value in refused.items():
        if value is not None:
            raise OptionError(
                f"{name}={value!r} cannot be honoured: {spec.id!r} is a vector of its own, which "
                f"steps all its environments at once, in this thread. Leave {name} out."
            )
    transport = GymnasiumBatch(env, autoreset=options.autoreset)
    return VectorEnv(transport, transport.num_envs, autoreset=options.autoreset, copy=options.copy)

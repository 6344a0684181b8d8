"""Making a pool."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from envweave.api.packages import prepare_packages
from envweave.api.recipes import (
    Transforms,
    backend_module,
    choose_backend,
    constructor_keywords,
    explains_collisions,
    recipe,
    refuse_one_object,
    seconds,
    waiting_time,
    whole_number,
    with_registered_place,
)
from envweave.registry import Options, Registry, Remote
from envweave.rollouts.pooling import Pool
from envweave.session import PrivateLoop
from envweave.transports.protocol import AsyncTransport

logger = logging.getLogger(__name__)


@explains_collisions
def pool(
    env: Any,
    *,
    size: int,
    backend: str | None = None,
    workers: int | None = None,
    timeout_s: float | None = None,
    max_episode_steps: int | None = None,
    transform: Transforms | None = None,
    registry: Registry | None = None,
    base_url: str | None = None,
    token: str | None = None,
    encoding: str = "msgpack",
    wait_s: float | None = None,
    provider: Any = None,
    docker_image: str | None = None,
    isolation: str | None = None,
    install: str = "never",
    venv: str | os.PathLike[str] | None = None,
    requirements: Sequence[str] = (),
    kwargs: Mapping[str, Any] | None = None,
    **keywords: Any,
) -> Pool:
    """Make `size` environments of one kind that take turns at whole episodes.

    All of them are made at once, so one that cannot be made is told of here. In-process, an
    environment written with plain functions runs on the event loop's own thread.

    Args:
        env: An ID, a class, or a function that makes one.
        size: How many, and so how many episodes run at the same time.
        backend: Where they run; see `make`. At a server, all of them share one connection.
        workers: With `backend="process"`, how many processes share them; left out, one for
            each core.
        timeout_s: How long one call may take, on backends that can end a call.
        max_episode_steps: Truncate every episode after so many steps.
        transform: Applied to every observation.
        registry: Where to look up the ID; a table of this process by default.
        base_url: A server that runs already; what `env` names then only tells the author's
            classes.
        token: What to show the server; `$ENVWEAVE_TOKEN` by default.
        encoding: How messages are written on their way: `"msgpack"`, or `"json"`.
        wait_s: How many seconds to wait for a session where the server is full; left out, a
            full server is a `CapacityError` in the first
            episodes, at once.
        provider: Who starts the server, where none is named; a `SubprocessProvider` by default,
            and for containers a `LocalDockerProvider`.
        docker_image: The image whose container serves them; see `make`.
        isolation: With containers, `"container"` gives each environment one of its own; left
            out, one container has them all.
        install: Whether packages may be installed; see `make`.
        venv: The virtual environment whose Python runs them; see `make`.
        requirements: What `venv="auto"` holds; see `make`.
        kwargs: Keywords for each environment's constructor, also those that have the name of
            an option.
        **keywords: Passed to each environment's constructor too.

    Raises:
        EnvNotFoundError: Nobody answers to the ID.
        BackendNotFoundError: No backend has this name.
        OptionError: A keyword that neither `pool` nor the environment knows.
        DefinitionError: An environment could not be made. Those that were are closed.
    """
    count = whole_number("size", size)
    refuse_one_object(env, count)
    timeout_s = seconds("timeout_s", timeout_s)
    given = constructor_keywords(kwargs, keywords)
    spec = recipe(env, registry, max_episode_steps, transform, given)
    remote = Remote(
        base_url, token, encoding, provider, docker_image, isolation, waiting_time(wait_s)
    )
    remote = with_registered_place(spec, backend, remote)
    backend, remote = prepare_packages(spec, backend, remote, install, venv, requirements)
    chosen, given = choose_backend(spec, backend, remote, max_episode_steps, transform, given)
    module = backend_module(chosen)
    one = Options(timeout_s=timeout_s, remote=remote)
    connect = partial(module.connect_async, spec, given, one)
    if workers is not None:
        workers = whole_number("workers", workers)
    connect_pool = getattr(module, "connect_pool", None)
    if connect_pool is None:
        transports = _connect_each(connect, count)
    else:
        options = Options(timeout_s=timeout_s, workers=workers, remote=remote)
        transports = connect_pool(spec, given, options, count)
    return Pool(spec.id, transports, None if getattr(module, "GOES_ON", False) else connect)


def _connect_each(connect: Callable[[], AsyncTransport], size: int) -> list[AsyncTransport]:
    transports: list[AsyncTransport] = []
    try:
        for _ in range(size):
            transports.append(connect())  # noqa: PERF401 - those made so far are closed below
    except BaseException:
        loop = PrivateLoop()
        try:
            loop.run(_close(transports))
        finally:
            loop.close()
        raise
    return transports


async def _close(transports: list[AsyncTransport]) -> None:
    """Close what nobody will use; what led to this is raised, not a failure here."""
    for transport in transports:
        try:
            await transport.close()
        except Exception:
            logger.warning("closing an unused environment failed", exc_info=True)

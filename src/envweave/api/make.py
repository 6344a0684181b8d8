"""Make environments: `make`, `make_async` and `make_vector`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, final

from envweave.api.env import AsyncEnv, Env
from envweave.api.options import (
    Transforms,
    backend_module,
    choose_backend,
    constructor_keywords,
    explain_collisions,
    flag,
    ray_options,
    recipe,
    refuse_one_object,
    seconds,
    whole_number,
    with_registered_server,
)
from envweave.api.packages import prepare_packages
from envweave.api.recording import RecordOption
from envweave.api.tracing import traced, traced_async
from envweave.errors import DefinitionError, EnvWeaveError, OptionError, format_error
from envweave.registry import EnvSpec, MakeOptions, RayOptions, Registry, Remote
from envweave.registry.plugins import load_path
from envweave.registry.spec import read_wait_s
from envweave.vector import VectorEnv
from envweave.vector.forking import Siblings, again
from envweave.vector.transport import (
    AsyncTransport,
    HasSiblings,
    HasSiblingVectors,
    Transport,
)

if TYPE_CHECKING:
    from envweave.adapters.gymnasium_vector import GymnasiumBatch
    from envweave.vector import BatchTransport


def is_batch(env: Any) -> bool:
    """Whether it is a Gymnasium vector, or a class of such."""
    # An object of a library can only exist if that library was imported.
    if "gymnasium" not in sys.modules:
        return False
    from envweave.adapters.gymnasium import is_vector

    return is_vector(env)


def adapt_batch(
    env: Any,
    num_envs: int | None,
    backend: str,
    spec: EnvSpec,
    options: MakeOptions,
    kwargs: Mapping[str, Any],
    *,
    forkable: bool = False,
) -> GymnasiumBatch | None:
    """Return the transport of a Gymnasium vector; `None` if single environments are needed.

    A class is called with `num_envs` and the keywords, and so is the `batch_factory` of an ID.

    Raises:
        OptionError: An option that a vector cannot honor, or that comes too late.
        DefinitionError: The vector could not be made, or cannot be adapted.
    """
    if is_batch(env) and not isinstance(env, type):
        _refuse_late_options(env, num_envs, spec)
        return _open(env, backend, spec, options, forkable=forkable)
    factory: Any = env if is_batch(env) else spec.batch_factory
    if factory is None:
        return None
    factory = load_path(factory) if isinstance(factory, str) else factory
    made = _make(factory, spec, whole_number("num_envs", num_envs), kwargs)
    if made is None:
        return None
    try:
        return _open(made, backend, spec, options, forkable=forkable)
    except BaseException:
        made.close()
        raise


def _refuse_late_options(env: Any, num_envs: int | None, spec: EnvSpec) -> None:
    name = type(env).__name__
    if spec.max_episode_steps is not None:
        raise OptionError(
            f"max_episode_steps={spec.max_episode_steps} comes too late: the {name} was already "
            "made. Construct it with the limit."
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
        raise DefinitionError(f"Making {spec.id!r} failed: {format_error(error)}") from error


def _open(
    env: Any, backend: str, spec: EnvSpec, options: MakeOptions, *, forkable: bool
) -> GymnasiumBatch:
    from envweave.adapters.gymnasium_vector import GymnasiumBatch

    refused = {
        "backend": None if backend == "inproc" else backend,
        "mode": options.mode,
        "workers": options.workers,
        "timeout_s": options.timeout_s,
        "transform": spec.transform,
        "forkable": forkable or None,
    }
    for name, value in refused.items():
        if value is not None:
            raise OptionError(
                f"{name}={value!r} cannot be honored: {spec.id!r} is already a vector, which steps "
                f"all its environments at once, in this thread. Leave {name} out."
            )
    return GymnasiumBatch(env, autoreset=options.autoreset)


@final
@dataclass(frozen=True, slots=True)
class _Opener:
    """Opens an environment and its forks, which are recorded as it is.

    Apart from `make`, so that an environment that is dropped is freed at once: a function that
    refers to itself would be a cycle.
    """

    spec: EnvSpec
    kwargs: Mapping[str, Any]
    backend: str
    recorded: RecordOption

    def open(self, connect: Callable[[], Transport]) -> Env:
        spec, recorded = self.spec, self.recorded
        raw = connect()
        transport = traced(recorded.wrap(raw, spec, self.kwargs, self.backend), spec.id)
        beside = raw.sibling if isinstance(raw, HasSiblings) else partial(again, spec, connect)
        return Env(transport, spec.id, Siblings(partial(self.open, beside), recorded.forkable))

    def open_async(self, connect: Callable[[], AsyncTransport]) -> AsyncEnv:
        spec, recorded = self.spec, self.recorded
        raw = connect()
        wrapped = recorded.wrap_async(raw, spec, self.kwargs, self.backend)
        transport = traced_async(wrapped, spec.id)
        beside = raw.sibling if isinstance(raw, HasSiblings) else partial(again, spec, connect)
        opened = partial(self.open_async, beside)
        return AsyncEnv(transport, spec.id, Siblings(opened, recorded.forkable))


@final
@dataclass(frozen=True, slots=True)
class _VectorOpener:
    """Opens a vector and its forks, as `_Opener` opens an environment."""

    spec: EnvSpec
    kwargs: Mapping[str, Any]
    backend: str
    options: MakeOptions
    recorded: RecordOption

    def open(self, connect: Callable[[int], BatchTransport], num_envs: int) -> VectorEnv:
        return self.wrap(connect(num_envs), connect, num_envs)

    def wrap(
        self,
        raw: BatchTransport,
        connect: Callable[[int], BatchTransport],
        num_envs: int,
        *,
        can_be_logged: bool = True,
    ) -> VectorEnv:
        spec, recorded, options = self.spec, self.recorded, self.options
        transport = recorded.wrap_batch(raw, num_envs, spec, self.kwargs, self.backend)
        return VectorEnv(
            transport,
            num_envs,
            autoreset=options.autoreset,
            copy=options.copy,
            env_id=spec.id,
            siblings=Siblings(
                partial(self._fork, raw, connect), recorded.forkable or not can_be_logged
            ),
        )

    def _fork(
        self, raw: BatchTransport, connect: Callable[[int], BatchTransport], n: Any
    ) -> VectorEnv:
        count = whole_number("n", n)
        beside = raw.sibling_vector(count) if isinstance(raw, HasSiblingVectors) else None
        if beside is None:
            beside = again(self.spec, partial(connect, count))
        return self.wrap(beside, connect, count)


@explain_collisions
def make(
    env: Any,
    *,
    backend: str | None = None,
    autoreset: bool = False,
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
    install: str = "never",
    venv: str | os.PathLike[str] | None = None,
    requirements: Sequence[str] = (),
    address: str | None = None,
    resources: Mapping[str, float] | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    placement: str | None = None,
    record: str | os.PathLike[str] | None = None,
    forkable: bool = False,
    kwargs: Mapping[str, Any] | None = None,
    **keywords: Any,
) -> Env:
    """Make an environment.

    Args:
        env: An ID, an environment object, or a class. `"http://…"`, `"https://…"` and
            `"unix://…"` are running servers; `"docker://IMAGE"` is the environment of an image.
        backend: Where it runs: `"inproc"`, the default unless the ID says where; `"process"`;
            `"http"`, at a server, which is started and stopped for you unless `base_url` names
            one; `"docker_http"`, at a server in a container; `"kubernetes"`, in a pod; `"ray"`,
            on a Ray cluster.
        autoreset: Whether an end begins the next episode, in the same result.
        timeout_s: How many seconds each of the environment's own calls may take. A late call ends
            its episode as a `timeout`, and the environment is replaced. In-process, only for async
            environments.
        max_episode_steps: Truncate every episode after this many steps.
        transform: Applied to every observation.
        registry: Where to look up the ID; by default the registry of this process.
        base_url: The URL of a running server; `env` is then only used for the author's classes.
        token: The token to send to the server; `$ENVWEAVE_TOKEN` by default.
        encoding: The encoding of messages: `"msgpack"` or `"json"`.
        wait_s: How many seconds to wait for a session if the server is full; by default a full
            server raises `CapacityError` at once.
        provider: Starts the server if there is no `base_url`; by default a `SubprocessProvider`,
            for containers a `LocalDockerProvider`.
        docker_image: The image whose container serves it. By default `NAME-env:latest`
            for an ID such as `NAME-v0`; LineWorld, CodeFix and GSM8K have `envweave-NAME:latest`.
        install: Whether the package of a `prime://` ID may be installed, and `venv="auto"` be
            built: `"never"`; `"ask"`, on the terminal; or `"always"`.
        venv: The path of a virtual environment whose Python runs it, at a server that is
            started and stopped for you; `"auto"` for one in the user's cache.
        requirements: What to install into `venv="auto"`, as pip takes it; required unless the ID
            is `prime://`.
        address: With `backend="ray"`, the cluster; see `make_vector`.
        resources: With `backend="ray"`, what each worker claims on its node; see `make_vector`.
        runtime_env: With `backend="ray"`, what Ray installs or copies for the workers.
        placement: With `backend="ray"`, `"spread"` or `"pack"`; see `make_vector`.
        record: The directory to record all episodes into; see `load`.
        forkable: Whether to keep the actions and results of the running episode, so that `fork`
            can play them again where the environment cannot be copied. It takes a few microseconds
            a step.
        kwargs: Keywords for the environment's constructor, including those with the name of an
            option of `make`.
        **keywords: Passed to the environment's constructor too.

    Raises:
        EnvNotFoundError: No environment has this ID.
        BackendNotFoundError: No backend has this name.
        OptionError: A keyword is known neither to `make` nor to the environment.
        DefinitionError: The environment could not be made.
        InstallError: A package that it needs is missing, and may not or cannot be installed.
        ConnectionLostError: No server answers at the URL.
        AccessError: The server refuses this caller.
        CapacityError: The server is full, and no session was freed within `wait_s`.
        RecordingError: Nothing can be recorded into the directory `record`.
    """
    recorded = RecordOption(record, transform, forkable=forkable)
    given = constructor_keywords(kwargs, keywords)
    spec = recipe(env, registry, max_episode_steps, transform, given)
    remote = Remote(
        base_url, token, encoding, provider, docker_image, wait_s=read_wait_s(wait_s) or None
    )
    remote = with_registered_server(spec, backend, remote)
    backend, remote = prepare_packages(spec, backend, remote, install, venv, requirements)
    chosen, given = choose_backend(spec, backend, remote, max_episode_steps, transform, given)
    ray, given = ray_options(
        chosen, given, RayOptions(address, None, resources, runtime_env, placement)
    )
    module = backend_module(chosen)
    options = MakeOptions(
        flag("autoreset", autoreset), seconds("timeout_s", timeout_s), remote=remote, ray=ray
    )
    return _Opener(spec, given, chosen, recorded).open(
        partial(module.connect, spec, given, options)
    )


@explain_collisions
def make_async(
    env: Any,
    *,
    backend: str | None = None,
    autoreset: bool = False,
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
    install: str = "never",
    venv: str | os.PathLike[str] | None = None,
    requirements: Sequence[str] = (),
    address: str | None = None,
    resources: Mapping[str, float] | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    placement: str | None = None,
    record: str | os.PathLike[str] | None = None,
    forkable: bool = False,
    kwargs: Mapping[str, Any] | None = None,
    **keywords: Any,
) -> AsyncEnv:
    """Make an environment for an async caller. Takes and raises what `make` does.

    In-process, an environment with plain functions runs on the loop's thread.
    """
    recorded = RecordOption(record, transform, forkable=forkable)
    given = constructor_keywords(kwargs, keywords)
    spec = recipe(env, registry, max_episode_steps, transform, given)
    remote = Remote(
        base_url, token, encoding, provider, docker_image, wait_s=read_wait_s(wait_s) or None
    )
    remote = with_registered_server(spec, backend, remote)
    backend, remote = prepare_packages(spec, backend, remote, install, venv, requirements)
    chosen, given = choose_backend(spec, backend, remote, max_episode_steps, transform, given)
    ray, given = ray_options(
        chosen, given, RayOptions(address, None, resources, runtime_env, placement)
    )
    module = backend_module(chosen)
    options = MakeOptions(
        flag("autoreset", autoreset), seconds("timeout_s", timeout_s), remote=remote, ray=ray
    )
    connect = partial(module.connect_async, spec, given, options)
    return _Opener(spec, given, chosen, recorded).open_async(connect)


@explain_collisions
def make_vector(
    env: Any,
    *,
    num_envs: int | None = None,
    backend: str | None = None,
    mode: str | None = None,
    workers: int | None = None,
    max_workers: int | None = None,
    copy: bool = True,
    autoreset: bool = False,
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
    envs_per_worker: int | str | None = None,
    address: str | None = None,
    resources: Mapping[str, float] | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    placement: str | None = None,
    record: str | os.PathLike[str] | None = None,
    forkable: bool = False,
    kwargs: Mapping[str, Any] | None = None,
    **keywords: Any,
) -> VectorEnv:
    """Make `num_envs` environments of one kind, stepped together.

    Takes an ID or a class; one object cannot be many environments. Raises what `make` does.
    A Gymnasium vector, or a class of such, is adapted as a whole, in this process.

    Args:
        env: An ID, a class, a function that makes one, or a Gymnasium vector.
        num_envs: How many; optional only if `env` is a vector.
        backend: Where they run. At a server, all of them share one connection.
        mode: In this process: `"serial"`, one after the other in this thread; `"threads"`,
            for steps that wait on I/O; `"async"`, concurrently on one event loop. The default is
            `"async"` for async environments, otherwise `"serial"`.
        workers: With `backend="process"`, how many processes run them. By default one per core
            but one, and the caller's own thread steps a share too, which is fast but not
            isolated: pass a number for environments that may crash, or whose slow steps `recv`
            must not wait for. With `timeout_s`, one per core. With `mode="threads"`, how many
            threads; by default one per environment.
        max_workers: Another name for `workers`, which in this process also means
            `mode="threads"`.
        copy: Whether `current` and `successor` are copies for the caller. With `False` they are
            read-only and valid until the next call, which saves copying large observations.
        autoreset: Whether an end begins the next episode, in the same result.
        timeout_s: How many seconds each of the environment's own calls may take. A late call ends
            its episode as a `timeout`, and the environment is replaced. In-process, only for async
            environments.
        max_episode_steps: Truncate every episode after this many steps.
        transform: Applied to every observation.
        registry: Where to look up the ID; by default the registry of this process.
        base_url: The URL of a running server; `env` is then only used for the author's classes.
        token: The token to send to the server; `$ENVWEAVE_TOKEN` by default.
        encoding: The encoding of messages: `"msgpack"` or `"json"`.
        wait_s: How many seconds to wait for a session if the server is full; by default a full
            server raises `CapacityError` at once.
        provider: Starts the server if there is no `base_url`; by default a `SubprocessProvider`,
            for containers a `LocalDockerProvider`.
        docker_image: The image whose container serves them. By default `NAME-env:latest`
            for an ID such as `NAME-v0`; LineWorld, CodeFix and GSM8K have `envweave-NAME:latest`.
        isolation: With containers, `"container"` gives each environment its own; by default one
            container runs them all.
        install: Whether the package of a `prime://` ID may be installed, and `venv="auto"` be
            built: `"never"`; `"ask"`, on the terminal; or `"always"`.
        venv: The path of a virtual environment whose Python runs them, at a server that is
            started and stopped for you; `"auto"` for one in the user's cache.
        requirements: What to install into `venv="auto"`, as pip takes it; required unless the ID
            is `prime://`.
        envs_per_worker: With `backend="ray"`, how many environments each worker actor holds. By
            default there is one actor for each processor of the cluster; `workers` sets their
            number instead.
        address: With `backend="ray"`, the cluster: `"auto"`, `"ray://HOST:PORT"` or
            `"HOST:PORT"`. By default one that runs on this machine; else one is started, and
            stopped with the last environment.
        resources: With `backend="ray"`, what each worker claims on its node, such as
            `{"CPU": 1}`; by default nothing. Without `"GPU"`, nodes that have one are left free.
        runtime_env: With `backend="ray"`, what Ray installs or copies for the workers.
        placement: With `backend="ray"`, `"spread"`, the default, distributes workers over all
            nodes; `"pack"` fills one node after the other.
        record: The directory to record all episodes into; see `load`.
        forkable: Whether to keep the actions and results of each running episode, so that `fork`
            can play them again where the environment cannot be copied. It takes about ten
            microseconds a step and environment.
        kwargs: Keywords for each environment's constructor, including those with the name of an
            option.
        **keywords: Passed to each environment's constructor too.
    """
    recorded = RecordOption(record, transform, forkable=forkable)
    if not is_batch(env):
        num_envs = whole_number("num_envs", num_envs)
        refuse_one_object(env, num_envs)
    given = constructor_keywords(kwargs, keywords)
    spec = recipe(env, registry, max_episode_steps, transform, given)
    remote = Remote(
        base_url, token, encoding, provider, docker_image, isolation, read_wait_s(wait_s) or None
    )
    remote = with_registered_server(spec, backend, remote)
    backend, remote = prepare_packages(spec, backend, remote, install, venv, requirements)
    chosen, given = choose_backend(spec, backend, remote, max_episode_steps, transform, given)
    ray = RayOptions(address, envs_per_worker, resources, runtime_env, placement)
    ray, given = ray_options(chosen, given, ray)
    module = backend_module(chosen)
    if max_workers is not None:
        if workers not in (None, max_workers):
            raise OptionError(
                f"workers={workers!r} and max_workers={max_workers!r} are two names for one option "
                "with different values. Pass one of them."
            )
        workers = whole_number("max_workers", max_workers)
        mode = "threads" if mode is None and chosen == "inproc" else mode
    options = MakeOptions(
        flag("autoreset", autoreset),
        seconds("timeout_s", timeout_s),
        mode,
        None if workers is None else whole_number("workers", workers),
        flag("copy", copy),
        remote,
        ray,
    )
    opener = _VectorOpener(spec, given, chosen, options, recorded)
    connect = partial(module.connect_vector, spec, given, options)
    batch = adapt_batch(env, num_envs, chosen, spec, options, given, forkable=recorded.forkable)
    if batch is not None:
        return opener.wrap(batch, connect, batch.num_envs, can_be_logged=False)
    assert num_envs is not None
    return opener.open(connect, num_envs)

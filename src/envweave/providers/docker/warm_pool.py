"""`WarmPool`: containers that are started, healthy and paused before they are needed."""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, final

from envweave.errors import CallOrderError, ClosedError, EnvWeaveError, OptionError, StartupError
from envweave.lifetime import OwnerProcess
from envweave.providers.base import WatchedProvider
from envweave.providers.cleanup import remove_leftovers
from envweave.providers.docker.container import Container
from envweave.providers.docker.engine import Engine, EngineRefusedError, NoSuchContainerError
from envweave.providers.docker.options import (
    CONFIG,
    DockerOptions,
    Image,
    check_image_name,
    check_names,
    variables,
)
from envweave.providers.docker.provider import (
    TOKEN,
    ContainerLease,
    server_variables,
)

logger = logging.getLogger("envweave.providers")

START_S = 120.0
"""How long a server may take until it answers."""

_JOIN_S = 30.0
_REST_S = 0.25
"""How long to wait before replacing a container: its user needs the CPU first."""


@final
class WarmContainers:
    """Containers that are started, healthy and paused.

    Args:
        engine: The engine that runs them; `close` disconnects.
        image: The image to run.
        options: The options of each container.
        env_vars: The environment variables of each server, except the token.
        size: How many to keep ready.
    """

    def __init__(
        self,
        engine: Engine,
        image: str,
        options: DockerOptions,
        env_vars: Mapping[str, str],
        size: int,
    ) -> None:
        self._stock = _ImageStock(engine, image, options, env_vars, size)
        # A daemon, so that a program that did not close the pool can exit; it is stopped then too.
        self._thread = threading.Thread(
            target=self._stock.fill, name=f"envweave warm pool of {image}", daemon=True
        )
        self._thread.start()
        self._unclosed: weakref.finalize[Any, Any] = weakref.finalize(
            self, _end, self._stock, self._thread
        )

    @property
    def ready(self) -> int:
        """How many containers are ready."""
        return len(self._stock.waiting)

    def wait_until_full(self, timeout_s: float) -> None:
        """Block until all containers are ready.

        Raises:
            EnvWeaveError: One could not be started.
            StartupError: `timeout_s` seconds passed.
        """
        stock = self._stock
        with stock.changed:
            stock.refuse_closed()
            if not stock.changed.wait_for(lambda: stock.is_settled, timeout_s):
                raise StartupError(
                    f"{len(stock.waiting)} of {stock.size} containers were ready after "
                    f"{timeout_s:g} s."
                )
            stock.raise_failure()

    def take(self) -> ContainerLease:
        """Return a running container: one that was ready, or else a new one.

        Raises:
            EnvWeaveError: None can be started.
            ClosedError: The pool is closed.
        """
        stock = self._stock
        while (ready := stock.pop()) is not None:
            try:
                ready.container.unpause()
            except (NoSuchContainerError, EngineRefusedError) as error:
                logger.info("a warm container was lost: %s", error)
                ready.container.remove()
                continue
            except BaseException:
                ready.container.remove()
                raise
            return ContainerLease(ready.container, ready.token, stock.hang_up)
        fresh = stock.start()
        return ContainerLease(fresh.container, fresh.token, stock.hang_up)

    def close(self) -> None:
        """Remove the ready containers, and start no more. May be called twice."""
        if self._unclosed.detach() is not None:
            _end(self._stock, self._thread)


@final
class _Ready:
    """A healthy container, and the access token of its server."""

    def __init__(self, container: Container, token: str) -> None:
        self.container = container
        self.token = token


@final
class _ImageStock:
    """The state of the thread; it does not refer to the pool, which may be garbage-collected.

    Attributes:
        changed: Protects the following attributes; notified of every change.
        waiting: The ready containers, oldest first.
        is_closed: Whether to start no more.
    """

    def __init__(
        self,
        engine: Engine,
        image: str,
        options: DockerOptions,
        env_vars: Mapping[str, str],
        size: int,
    ) -> None:
        self._engine = engine
        self._image = image
        self._options = options
        self._env_vars = dict(env_vars)
        self._owner = OwnerProcess()
        self._failure: Exception | None = None
        self._taken_s = -_REST_S  # when one was taken last
        self.size = size
        self.changed = threading.Condition()
        self.waiting: deque[_Ready] = deque()
        self.is_closed = False

    @property
    def is_settled(self) -> bool:
        return self.is_closed or self._failure is not None or len(self.waiting) >= self.size

    def refuse_closed(self) -> None:
        if not self._owner.is_current:
            raise CallOrderError(
                f"The warm pool of {self._image!r} was made before this process was forked, and "
                "belongs to its parent. Make one in this process."
            )
        if self.is_closed:
            raise ClosedError(f"The warm pool of {self._image!r} is closed. Make a new one.")

    def raise_failure(self) -> None:
        """Raise, once, why the last container could not be started; then it is tried again."""
        failure, self._failure = self._failure, None
        self.changed.notify_all()
        if failure is not None:
            raise failure

    def pop(self) -> _Ready | None:
        """Return a ready container; `None` if there is none."""
        self.refuse_closed()
        with self.changed:
            self.refuse_closed()
            if not self.waiting:
                self.raise_failure()
                return None
            self.changed.notify_all()
            self._taken_s = time.monotonic()
            return self.waiting.popleft()

    def start(self) -> _Ready:
        """Start a container, and wait until it is healthy."""
        token = secrets.token_urlsafe(24)
        env_vars = {**self._env_vars, TOKEN: token}
        container = Container(self._engine, self._image, self._options, None, env_vars)
        try:
            container.wait_until_ready(START_S)
        except BaseException:
            container.remove()
            raise
        return _Ready(container, token)

    def fill(self) -> None:
        """Start containers whenever there are too few, until the pool is closed."""
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.is_closed or not self.is_settled)
                rest_s = self._taken_s + _REST_S - time.monotonic()
                if rest_s > 0:
                    self.changed.wait_for(lambda: self.is_closed, rest_s)
                if self.is_closed:
                    return
            try:
                ready = self._start_paused()
            except Exception as error:  # noqa: BLE001 - raised by the next `take`
                self._fail(error)
                continue
            if not self._put(ready):
                ready.container.remove()  # it was closed meanwhile
                return

    def _put(self, ready: _Ready) -> bool:
        with self.changed:
            if not self.is_closed:
                self.waiting.append(ready)
            self.changed.notify_all()
            return not self.is_closed

    def _start_paused(self) -> _Ready:
        ready = self.start()
        try:
            ready.container.pause()
        except BaseException:
            ready.container.remove()
            raise
        return ready

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, EnvWeaveError):
            logger.error("a warm container could not be started", exc_info=error)
        with self.changed:
            self._failure = error
            self.changed.notify_all()

    def hang_up(self) -> None:
        """Disconnect if the pool is closed; containers in use connect again when needed."""
        if self.is_closed:
            self._engine.close()

    def clear(self) -> None:
        """Remove the ready containers."""
        while self.waiting:
            self.waiting.popleft().container.remove()
        self._engine.close()


def _end(stock: _ImageStock, thread: threading.Thread) -> None:
    with stock.changed:
        stock.is_closed = True
        stock.changed.notify_all()
    thread.join(_JOIN_S)
    stock.clear()


_MOST = 256


@final
class WarmPool:
    """Keeps containers of one image ready, so that one starts in milliseconds.

    Pass it wherever a provider for containers is accepted, as in `make("echo-v0", provider=pool)`.
    Close it, or use it in a `with` block.

    Each container is used once and then removed; another is started in the background. If none is
    ready, one is started while the caller waits. A paused container uses memory, but no CPU time.

    Args:
        image: The image to run.
        size: How many to keep ready.
        kwargs: Keywords for the environment's constructor; `make` cannot pass others.
        env_vars: The servers' environment variables.
        **options: The fields of `DockerOptions`.

    Raises:
        StartupError: The engine does not answer, or there is no such image.
        OptionError: There is no such option, or its value is invalid.
    """

    def __init__(
        self,
        image: str,
        *,
        size: int = 2,
        kwargs: Mapping[str, Any] | None = None,
        env_vars: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        check_image_name(image)
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= _MOST:
            raise OptionError(f"size must be an integer from 1 to {_MOST}, got {size!r}.")
        checked = DockerOptions(**check_names(options))
        server_env = server_variables(checked, env_vars)
        if TOKEN in {**checked.env_vars, **(env_vars or {})}:
            raise OptionError(f"{TOKEN} differs for each container. Leave it out.")
        engine = Engine(checked.docker_host)
        try:
            about = Image(image, engine.image(image))
            config = {**_parse(server_env[CONFIG]), **({"kwargs": dict(kwargs)} if kwargs else {})}
            server_env[CONFIG] = _dump(config)
            about.check_supported(checked, server_env)
            about.warn_about_root(checked.user)
            remove_leftovers(engine)
        except BaseException:
            engine.close()
            raise
        self.image = image
        self.size = size
        self._serves = _episode_options({"id": about.env_id, **config})
        self._variables = {
            name: value for name, value in server_env.items() if name not in (CONFIG, TOKEN)
        }
        self._containers = WarmContainers(engine, image, checked, server_env, size)

    @property
    def ready(self) -> int:
        """How many containers are ready."""
        return self._containers.ready

    def wait_until_warm(self, timeout_s: float = 120.0) -> None:
        """Block until all containers are ready.

        Raises:
            StartupError: One could not be started, or `timeout_s` seconds passed.
        """
        self._containers.wait_until_full(timeout_s)

    def provider(self) -> WatchedProvider:
        """Return a provider that takes its container from the pool."""
        return _WarmProvider(self)

    def take(
        self, image: str, port: int | None, env_vars: Mapping[str, str], options: Mapping[str, Any]
    ) -> ContainerLease:
        """Return a container, if the options are those of the pool's containers.

        Raises:
            OptionError: The options differ.
            StartupError: None is ready, and none can be started.
            ClosedError: The pool is closed.
        """
        self._check_options(image, port, env_vars, options)
        return self._containers.take()

    def _check_options(
        self, image: str, port: int | None, env_vars: Mapping[str, str], options: Mapping[str, Any]
    ) -> None:
        if image != self.image:
            raise OptionError(f"The pool has containers of {self.image!r}, not of {image!r}.")
        late: dict[str, Any] = {**options, **({} if port is None else {"port": port})}
        given = dict(variables(env_vars))
        config = given.pop(CONFIG, None)
        if given.pop(TOKEN, None) is not None:
            late["token"] = "…"  # noqa: S105 - not shown
        late |= {name: v for name, v in given.items() if self._variables.get(name) != v}
        for name, value in late.items():
            raise OptionError(
                f"{name}={value} cannot be set: the pool's containers are already running. Pass "
                "it to WarmPool, or leave it out."
            )
        if config is None:
            return
        requested = _episode_options({"id": self._serves["id"], **_parse(config)})
        for name, value in requested.items():
            if value != self._serves[name]:
                raise OptionError(
                    f"The pool's containers serve {name}={self._serves[name]!r}, not {value!r}. "
                    "Make a pool for that, or use a LocalDockerProvider."
                )

    def close(self) -> None:
        """Remove the ready containers, and start no more. May be called twice.

        Containers in use are not affected.
        """
        self._containers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"WarmPool({self.image!r}, size={self.size})"


@final
class _WarmProvider(WatchedProvider):
    """Takes one container at a time from a pool."""

    def __init__(self, pool: WarmPool) -> None:
        self._pool = pool
        self._lease: ContainerLease | None = None

    @property
    def token(self) -> str | None:
        return None if self._lease is None else self._lease.token

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> str:
        if self._lease is not None:
            raise CallOrderError(
                "The provider has a container already. Stop it first, or use a separate provider "
                "for each."
            )
        self._lease = self._pool.take(image, port, env_vars or {}, kwargs)
        return self._lease.container.base_url

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        if self._lease is None:
            raise CallOrderError(f"No container was started for {base_url!r}.")
        self._lease.container.wait_until_ready(timeout_s)

    def why_gone(self) -> str | None:
        return None if self._lease is None else self._lease.container.why_gone()

    def another(self) -> WatchedProvider:
        return _WarmProvider(self._pool)

    def stop_container(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.stop()


def _parse(config: str) -> dict[str, Any]:
    try:
        parsed = json.loads(config)
    except ValueError as error:
        raise OptionError(f"{CONFIG} is not valid JSON: {error}.") from None
    if not isinstance(parsed, dict):
        raise OptionError(f"{CONFIG} must be a JSON object, got {parsed!r}.")
    return parsed


def _dump(config: Mapping[str, Any]) -> str:
    try:
        return json.dumps(config, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"kwargs={config.get('kwargs')!r} cannot be sent to a container: {error}. Pass "
            "strings, numbers, lists and dicts."
        ) from None


def _episode_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a configuration that affect episodes."""
    return {
        "id": config.get("id"),
        "kwargs": config.get("kwargs") or {},
        "max_episode_steps": config.get("max_episode_steps"),
        "transform": config.get("transform"),
        "workers": (config.get("options") or {}).get("workers"),
    }

"""`WarmPool`: containers that are started, well and paused before anybody asks for one."""

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
from envweave.providers.docker.options import CONFIG, DockerOptions, Image, known, variables
from envweave.providers.docker.provider import (
    TOKEN,
    ContainerLease,
    refuse_nameless,
    told_variables,
)

logger = logging.getLogger("envweave.providers")

START_S = 120.0
"""How long a server may take until it answers."""

_JOIN_S = 30.0
_REST_S = 0.25
"""How long after one was handed out the next is started: who has it wants the cores now."""


@final
class WarmContainers:
    """Containers that are started, well and paused.

    Args:
        engine: Who runs them; `close` hangs up.
        image: What they are started from.
        options: What each is given.
        env_vars: What each server is told; each has another token.
        size: How many there shall be.
    """

    def __init__(
        self,
        engine: Engine,
        image: str,
        options: DockerOptions,
        env_vars: Mapping[str, str],
        size: int,
    ) -> None:
        self._shelf = _ImageStock(engine, image, options, env_vars, size)
        # A daemon, so that a program which forgot the pool can end; it is stopped then as well.
        self._thread = threading.Thread(
            target=self._shelf.fill, name=f"envweave warm pool of {image}", daemon=True
        )
        self._thread.start()
        self._unclosed: weakref.finalize[Any, Any] = weakref.finalize(
            self, _end, self._shelf, self._thread
        )

    @property
    def ready(self) -> int:
        """How many containers wait to be handed out."""
        return len(self._shelf.waiting)

    def wait_until_full(self, timeout_s: float) -> None:
        """Block until as many containers wait as shall.

        Raises:
            EnvWeaveError: Why one could not be started.
            StartupError: `timeout_s` seconds passed.
        """
        shelf = self._shelf
        with shelf.changed:
            shelf.refuse_closed()
            if not shelf.changed.wait_for(lambda: shelf.is_settled, timeout_s):
                raise StartupError(
                    f"Of {shelf.size} containers {len(shelf.waiting)} were ready after "
                    f"{timeout_s:g} s."
                )
            shelf.raise_failure()

    def take(self) -> ContainerLease:
        """Hand out a container that goes on, or start one if none waits.

        Raises:
            EnvWeaveError: None can be started.
            ClosedError: The stock is closed.
        """
        shelf = self._shelf
        while (ready := shelf.pop()) is not None:
            try:
                ready.container.unpause()
            except (NoSuchContainerError, EngineRefusedError) as error:
                logger.info("a warm container was lost: %s", error)
                ready.container.remove()
                continue
            except BaseException:
                ready.container.remove()
                raise
            return ContainerLease(ready.container, ready.token, shelf.hang_up)
        fresh = shelf.start()
        return ContainerLease(fresh.container, fresh.token, shelf.hang_up)

    def close(self) -> None:
        """Remove what waits, and start no more. May be called twice."""
        if self._unclosed.detach() is not None:
            _end(self._shelf, self._thread)


@final
class _Ready:
    """A container that is well, and what to show its server."""

    def __init__(self, container: Container, token: str) -> None:
        self.container = container
        self.token = token


@final
class _ImageStock:
    """What the thread works on; it knows nothing of the stock, which may be dropped.

    Attributes:
        changed: Held while anything of the following is read or written; told of every change.
        waiting: The containers that wait, the oldest first.
        is_closed: Whether no more shall be started.
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
        self._taken_s = -_REST_S  # when one was handed out last
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
        """Raise why the last container could not be started, once; then it is tried again."""
        failure, self._failure = self._failure, None
        self.changed.notify_all()
        if failure is not None:
            raise failure

    def pop(self) -> _Ready | None:
        """Return a container that waits; `None` if there is none."""
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
        """Start a container, and wait until it is well."""
        token = secrets.token_urlsafe(24)
        told = {**self._env_vars, TOKEN: token}
        container = Container(self._engine, self._image, self._options, None, told)
        try:
            container.wait_until_ready(START_S)
        except BaseException:
            container.remove()
            raise
        return _Ready(container, token)

    def fill(self) -> None:
        """Start containers whenever there are too few, until it is closed."""
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
            except Exception as error:  # noqa: BLE001 - raised by whoever takes the next
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
        """Close what nobody needs any more; a container that is still out connects anew."""
        if self.is_closed:
            self._engine.close()

    def clear(self) -> None:
        """Remove what waits."""
        while self.waiting:
            self.waiting.popleft().container.remove()
        self._engine.close()


def _end(shelf: _ImageStock, thread: threading.Thread) -> None:
    with shelf.changed:
        shelf.is_closed = True
        shelf.changed.notify_all()
    thread.join(_JOIN_S)
    shelf.clear()


_MOST = 256


@final
class WarmPool:
    """Keeps containers of one image ready, and hands them out in milliseconds.

    `make("echo-v0", provider=pool)` takes one, and so does every other place that takes a
    provider for containers. Close it, or use it in a `with` block.

    Each container is used once: whoever had it removes it, and another is started in the
    background. With none ready, one is started while its caller waits. A paused container needs
    its memory, and no time of any core.

    Args:
        image: What to start them from.
        size: How many are kept ready.
        kwargs: Keywords for the environment's constructor; its callers cannot pass any.
        env_vars: The servers' environment variables.
        **options: The fields of `DockerOptions`.

    Raises:
        StartupError: The engine does not answer, or there is no such image.
        OptionError: There is no such option, or it cannot have this value.
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
        refuse_nameless(image)
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= _MOST:
            raise OptionError(f"size={size!r} is no whole number from 1 to {_MOST}.")
        read = DockerOptions(**known(options))
        told = told_variables(read, env_vars)
        if TOKEN in {**read.env_vars, **(env_vars or {})}:
            raise OptionError(f"{TOKEN} is another one for each container. Leave it out.")
        engine = Engine(read.docker_host)
        try:
            about = Image(image, engine.image(image))
            config = {**_read(told[CONFIG]), **({"kwargs": dict(kwargs)} if kwargs else {})}
            told[CONFIG] = _written(config)
            about.refuse_untold(read, told)
            about.warn_of_root(read.user)
            remove_leftovers(engine)
        except BaseException:
            engine.close()
            raise
        self.image = image
        self.size = size
        self._serves = _wishes({"id": about.env_id, **config})
        self._variables = {name: told[name] for name in told if name not in (CONFIG, TOKEN)}
        self._stock = WarmContainers(engine, image, read, told, size)

    @property
    def ready(self) -> int:
        """How many containers wait to be handed out."""
        return self._stock.ready

    def wait_until_warm(self, timeout_s: float = 120.0) -> None:
        """Block until as many containers wait as shall.

        Raises:
            StartupError: One could not be started, or `timeout_s` seconds passed.
        """
        self._stock.wait_until_full(timeout_s)

    def provider(self) -> WatchedProvider:
        """Return a provider that takes its container from the pool."""
        return _WarmProvider(self)

    def take(
        self, image: str, port: int | None, env_vars: Mapping[str, str], options: Mapping[str, Any]
    ) -> ContainerLease:
        """Hand out a container, for whoever wants what the pool's containers are.

        Raises:
            OptionError: Something else is wanted.
            StartupError: There is none, and none can be started.
            ClosedError: The pool is closed.
        """
        self._refuse_others(image, port, env_vars, options)
        return self._stock.take()

    def _refuse_others(
        self, image: str, port: int | None, env_vars: Mapping[str, str], options: Mapping[str, Any]
    ) -> None:
        if image != self.image:
            raise OptionError(f"The pool has containers of {self.image!r}, and none of {image!r}.")
        late: dict[str, Any] = {**options, **({} if port is None else {"port": port})}
        given = dict(variables(env_vars))
        config = given.pop(CONFIG, None)
        if given.pop(TOKEN, None) is not None:
            late["token"] = "…"  # noqa: S105 - not shown
        late |= {name: v for name, v in given.items() if self._variables.get(name) != v}
        for name, value in late.items():
            raise OptionError(
                f"{name}={value} came too late: the pool's containers run already. Pass it to "
                "WarmPool, or leave it out."
            )
        if config is None:
            return
        wanted = _wishes({"id": self._serves["id"], **_read(config)})
        for name, value in wanted.items():
            if value != self._serves[name]:
                raise OptionError(
                    f"The pool's containers serve {name}={self._serves[name]!r}, and not "
                    f"{value!r}. Make a pool for that, or use a LocalDockerProvider."
                )

    def close(self) -> None:
        """Remove the containers that wait, and start no more. May be called twice.

        Those that were handed out are left to those who have them.
        """
        self._stock.close()

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
        self._held: ContainerLease | None = None

    @property
    def token(self) -> str | None:
        return None if self._held is None else self._held.token

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> str:
        if self._held is not None:
            raise CallOrderError(
                "The provider has a container already. Stop it first, or use a provider of its "
                "own for each."
            )
        self._held = self._pool.take(image, port, env_vars or {}, kwargs)
        return self._held.container.base_url

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        if self._held is None:
            raise CallOrderError(f"No container was started for {base_url!r}.")
        self._held.container.wait_until_ready(timeout_s)

    def why_gone(self) -> str | None:
        return None if self._held is None else self._held.container.why_gone()

    def another(self) -> WatchedProvider:
        return _WarmProvider(self._pool)

    def stop_container(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.stop()


def _read(config: str) -> dict[str, Any]:
    try:
        told = json.loads(config)
    except ValueError as error:
        raise OptionError(f"{CONFIG} is no JSON: {error}.") from None
    if not isinstance(told, dict):
        raise OptionError(f"{CONFIG} is {told!r}, and must be a JSON object.")
    return told


def _written(config: Mapping[str, Any]) -> str:
    try:
        return json.dumps(config, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"kwargs={config.get('kwargs')!r} cannot travel to a container: {error}. Pass texts, "
            "numbers, lists and dicts."
        ) from None


def _wishes(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a configuration makes a difference to an episode."""
    return {
        "id": config.get("id"),
        "kwargs": config.get("kwargs") or {},
        "max_episode_steps": config.get("max_episode_steps"),
        "transform": config.get("transform"),
        "workers": (config.get("options") or {}).get("workers"),
    }

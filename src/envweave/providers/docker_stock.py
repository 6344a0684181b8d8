"""The containers that a pool keeps ready, and the thread that sees to it."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any, final

from envweave.errors import CallOrderError, ClosedError, EnvWeaveError, StartupError
from envweave.providers.docker import TOKEN
from envweave.providers.docker_container import Container
from envweave.providers.docker_engine import Engine, NoSuchContainerError, RefusedError
from envweave.providers.docker_held import Held
from envweave.providers.docker_options import DockerOptions

logger = logging.getLogger("envweave.providers")

START_S = 120.0
"""How long a server may take until it answers."""

_JOIN_S = 30.0
_REST_S = 0.25
"""How long after one was handed out the next is started: who has it wants the cores now."""


@final
class Stock:
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
        self._shelf = _Shelf(engine, image, options, env_vars, size)
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

    def take(self) -> Held:
        """Hand out a container that goes on, or start one if none waits.

        Raises:
            EnvWeaveError: None can be started.
            ClosedError: The stock is closed.
        """
        shelf = self._shelf
        while (ready := shelf.pop()) is not None:
            try:
                ready.container.unpause()
            except (NoSuchContainerError, RefusedError) as error:
                logger.info("a warm container was lost: %s", error)
                ready.container.remove()
                continue
            except BaseException:
                ready.container.remove()
                raise
            return Held(ready.container, ready.token, shelf.hang_up)
        fresh = shelf.start()
        return Held(fresh.container, fresh.token, shelf.hang_up)

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
class _Shelf:
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
        self._owner = os.getpid()
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
        if self._owner != os.getpid():
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


def _end(shelf: _Shelf, thread: threading.Thread) -> None:
    with shelf.changed:
        shelf.is_closed = True
        shelf.changed.notify_all()
    thread.join(_JOIN_S)
    shelf.clear()

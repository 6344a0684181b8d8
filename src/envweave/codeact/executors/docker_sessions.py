"""Sessions in a container of this machine's Docker engine."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable
from typing import final

from envweave.codeact.executors.base import Functions
from envweave.codeact.executors.docker_body import BoxedBody
from envweave.codeact.executors.docker_box import Box, BoxOptions, look_up
from envweave.codeact.executors.sessions import SessionSource
from envweave.errors import SessionLostError
from envweave.providers.docker_engine import Engine
from envweave.sandbox.aside import make_aside
from envweave.sandbox.async_session import AsyncSession
from envweave.sandbox.installed import is_standard
from envweave.sandbox.tools import Tools


@final
class DockerSessions(SessionSource):
    """Sessions, one at a time, in a container that is started for the first.

    A container that is gone is replaced by the next session. Where no walls stand in it, each
    session has a container of its own: nothing else would end what the one before left running.

    Raises:
        StartupError: The engine does not answer, or has no such image.
        MissingExtraError: The library for it is not installed.
    """

    def __init__(self, options: BoxOptions) -> None:
        engine = Engine(options.docker_host)
        try:
            look_up(engine, options.image)
        finally:
            engine.close()
        self._options = options
        # Held while a container is started, or a session made: a caller who no longer waits for it
        # may have come back, or close all.
        self._lock = threading.Lock()
        self._box: Box | None = None
        self._is_closed = False

    @property
    def isolation(self) -> str:
        """`"docker"`, and the walls inside: `"docker+landlock"` for one."""
        return "docker" if self._box is None else f"docker+{self._box.tier}"

    @property
    def container(self) -> str | None:
        """What the engine calls the container; `None` while there is none."""
        return None if self._box is None else self._box.name

    async def session(self, *, seed: int | None, tools: Functions) -> AsyncSession:
        """Return a session that nobody used before."""
        chosen = Tools(tools)
        body = await make_aside(lambda: self._body(seed, chosen), BoxedBody.release)
        limits = self._options.sandbox.limits
        return AsyncSession(
            body,
            limits,
            chosen,
            work=body.work,
            explain=self._explain,
            on_close=chosen.close,
        )

    def _explain(self, module: str) -> str | None:
        name = module.split(".")[0]
        if is_standard(name):
            return None
        return (
            f"import of {name!r} failed in a session: the image {self._options.image!r} has no "
            f"such package, or it is not visible; pass packages=[{name!r}]."
        )

    def _body(self, seed: int | None, tools: Tools) -> BoxedBody:
        faces = tools.faces()
        with self._lock:
            box = self._ready_box()
            try:
                return box.make(seed, faces)
            except SessionLostError:
                box.close()
            return self._ready_box().make(seed, faces)  # it was lost while nobody looked

    def _ready_box(self) -> Box:
        box = self._box
        if box is not None and (box.is_gone or (box.tier == "none" and box.is_used)):
            self._box = None
            box.close()
            box = None
        if box is None:
            if self._is_closed:
                raise SessionLostError("The container was closed.")
            box = self._box = Box(self._options)
        return box

    def keep_private(self, modules: tuple[str, ...]) -> None:
        """Have the sandboxes of containers to come show none of these."""
        sandbox = self._options.sandbox
        private = tuple(sorted({*sandbox.private, *modules}))
        sandbox = dataclasses.replace(sandbox, private=private)
        self._options = dataclasses.replace(self._options, sandbox=sandbox)

    async def close(self) -> None:
        """Remove the container."""
        self._is_closed = True
        await asyncio.to_thread(self._leave_box)

    def _leave_box(self) -> None:
        with self._lock:
            box, self._box = self._box, None
            if box is not None:
                box.close()

    def hold(self) -> Callable[[], None]:
        """Keep nothing: no two share a container."""
        return lambda: None

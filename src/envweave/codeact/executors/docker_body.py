"""A session in a container, as the host holds it."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Literal, NoReturn, final

from envweave.codeact.executors.docker_words import Interrupt, Kill, Look, ToBox
from envweave.errors import BranchError
from envweave.sandbox.bodies import Death
from envweave.sandbox.watcher import Calls

_DEATH_S = 30.0


@final
class BoxedBody:
    """The `Body` of a session that the program in a container made.

    What is sent to its socket goes to the session, and what the session says comes from there.

    Args:
        say: Has a word sent to the program.

    Attributes:
        number: How it is called there; nobody can guess it.
        far: The other end of its socket, which the line reads and writes; `None` once it is gone.
        beyond: The limit that it is beyond, as far as the program told.
    """

    def __init__(self, say: Callable[[ToBox], None]) -> None:
        self.number = secrets.randbits(62)
        self.work: str | None = None
        self.socket, far = socket.socketpair()
        far.setblocking(False)  # noqa: FBT003 - the standard library's
        self.far: socket.socket | None = far
        self.beyond: Literal["disk", "memory"] | None = None
        self._say = say
        self._owner = os.getpid()
        self._is_killed = False
        self._death = Death("lost", why="its container did not say what became of it")
        self._is_over = threading.Event()

    # Called by whoever runs code. See `Body`.

    is_stopped = False

    def watch(self, calls: Calls, in_use: threading.Lock) -> None:
        """Do nothing: the limits of its container hold while no run is open too."""

    def wake(self) -> None:
        """Do nothing: it is never stopped."""

    def interrupt(self) -> None:
        """Interrupt the code."""
        self._say(Interrupt(self.number))

    def kill(self) -> None:
        """End it; if it is not gone soon, its container is removed."""
        if not self._is_killed and self._owner == os.getpid():
            self._is_killed = True
            self._say(Kill(self.number))

    def death(self) -> Death:
        """Say why it is gone."""
        if not self._is_over.wait(_DEATH_S):
            self.kill()
        return self._death

    def excess(self) -> Literal["disk", "memory"] | None:
        """Say which limit it was beyond when the program last looked, and have it look again."""
        if self.beyond is None:
            self._say(Look(self.number))
        return self.beyond

    def branch(self, seed: int | None, deadline: float) -> NoReturn:  # noqa: ARG002 - of Body
        """Refuse.

        Raises:
            BranchError: Always.
        """
        raise BranchError("A session in a container cannot be branched.")

    def release(self) -> None:
        """Kill it, and give its descriptors back."""
        self.kill()
        self.socket.close()

    # Called by the line's own thread.

    def hang_up(self) -> None:
        """Let whoever reads know that nothing more will come."""
        far, self.far = self.far, None
        if far is not None:
            with contextlib.suppress(OSError):
                far.shutdown(socket.SHUT_RDWR)
            far.close()

    def end(self, death: Death) -> None:
        """Take note of what became of it, and let whoever reads know."""
        if not self._is_over.is_set():
            self._death = death
            self._is_over.set()
        self.hang_up()

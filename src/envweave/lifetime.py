"""Guards of objects that own something the garbage collector does not free: processes, sockets.

`CloseGuard` releases it, with a warning, if the object is dropped without `close()`.
`OwnerProcess` tells a forked copy of the process that it must not release it.
"""

from __future__ import annotations

import atexit
import os
import warnings
import weakref
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, final


class AtExit(Enum):
    """What a `CloseGuard` does at the end of the process if the object was not closed."""

    RELEASE = auto()
    """Release, without a warning: a program need not close what it uses to its end."""

    WARN = auto()
    """Release and warn, as if the object had been dropped."""

    NOTHING = auto()
    """What it owns ends with the process."""


@final
class CloseGuard:
    """Releases what an object owns, and warns, if the object is dropped without `close()`.

    Args:
        owner: The object. It must not be reachable from `release`.
        release: Releases what the object owns; returns `False` if nothing was left to release,
            which needs no warning.
        warning: The text of the `ResourceWarning`.
        at_exit: What happens at the end of the process.
    """

    def __init__(
        self,
        owner: object,
        release: Callable[[], Any],
        warning: str,
        *,
        at_exit: AtExit = AtExit.RELEASE,
    ) -> None:
        self._at_exit: Callable[[], Any] | None = None
        self._finalizer = weakref.finalize(owner, _release_dropped, release, warning)
        self._finalizer.atexit = at_exit is AtExit.WARN
        if at_exit is AtExit.RELEASE:
            self._at_exit = atexit.register(release)

    @property
    def is_armed(self) -> bool:
        """Whether the object was neither closed nor dropped."""
        return self._finalizer.alive

    def disarm(self) -> bool:
        """Do nothing any more: the object is closed. Return whether it was armed until now."""
        if self._at_exit is not None:
            atexit.unregister(self._at_exit)
        return self._finalizer.detach() is not None


def _release_dropped(release: Callable[[], Any], warning: str) -> None:
    atexit.unregister(release)
    if release() is not False:
        warnings.warn(warning, ResourceWarning, stacklevel=1)


@final
class OwnerProcess:
    """The process that made an object, which a forked copy of the process is not."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether this is that process."""
        return self._pid == os.getpid()

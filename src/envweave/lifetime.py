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
from functools import cache
from typing import Any, final


class AtExit(Enum):
    """What a `CloseGuard` does at the end of the process if the object was not closed."""

    RELEASE = auto()
    """Release, without a warning: a program need not close what it uses until its end."""

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
        quiet = at_exit is AtExit.RELEASE
        self._finalizer = weakref.finalize(owner, _release_dropped, release, warning, quiet)
        self._finalizer.atexit = at_exit is not AtExit.NOTHING
        _watch_exit()

    @property
    def is_armed(self) -> bool:
        """Whether the object was neither closed nor dropped."""
        return self._finalizer.alive

    def disarm(self) -> bool:
        """Disable the guard: the object was closed. Return whether it was armed."""
        return self._finalizer.detach() is not None


_exiting = False


@cache
def _watch_exit() -> None:
    # Called after the first finalizer was made, so that this runs before those that are left.
    atexit.register(_mark_exit)


def _mark_exit() -> None:
    global _exiting
    _exiting = True


def _release_dropped(release: Callable[[], Any], warning: str, quiet_at_exit: bool) -> None:  # noqa: FBT001 - called by a finalizer
    if release() is not False and not (_exiting and quiet_at_exit):
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

"""One sandbox for all environments of a process that want the same: it takes a while to start.

Whoever needs one takes a lease. The last to give its lease back ends the sandbox.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

from envweave.sandbox.limits import Limits
from envweave.sandbox.options import Profile, UseCgroups, WantedIsolation
from envweave.sandbox.packages import Packages, relevant_private
from envweave.sandbox.sandboxes import AsyncSandbox


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """What a sandbox is asked for: the options of `Sandbox`, but for the tools."""

    limits: Limits = field(default_factory=Limits)
    preload: tuple[str, ...] = ()
    packages: Packages = None
    private: tuple[str, ...] = ()
    profile: Profile = "python"
    isolation: WantedIsolation = "auto"
    visible: tuple[str, ...] = ()
    cgroups: UseCgroups = "auto"


class _Shared:
    """A sandbox, and how many leases there are."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # held while it is started, and while it is ended
        self.sandbox: AsyncSandbox | None = None
        self.leases = 0


# Protects the table and the counts. A lease that nobody gave back is released by the collector
# of garbage, which may run while this very thread holds the lock.
_lock = threading.RLock()
_table: dict[tuple[int, SandboxOptions], _Shared] = {}


@final
class Lease:
    """The right to make sessions in a shared sandbox, until `release`."""

    def __init__(self, sandbox: AsyncSandbox, let_go: Callable[[], None]) -> None:
        self.sandbox = sandbox
        self._let_go = weakref.finalize(self, let_go)
        self._let_go.atexit = False

    def release(self) -> None:
        """Give it back. Harmless twice. Blocks for as long as the last one takes to end."""
        self._let_go()


def take_lease(options: SandboxOptions) -> Lease:
    """Return a lease on the sandbox with these options, which is started if there is none.

    Blocks while it starts, for a fraction of a second.

    Raises:
        IsolationError: This machine cannot put up the walls; the message says what to do.
        SandboxError: It could not be started.
    """
    options = dataclasses.replace(
        options,
        private=relevant_private(
            options.preload, options.packages, options.private, shell=options.profile == "shell"
        ),
    )
    key = (os.getpid(), options)  # a forked process starts its own
    with _lock:
        shared = _table.setdefault(key, _Shared())
        shared.leases += 1
    try:
        with shared.lock:
            if shared.sandbox is None:
                shared.sandbox = AsyncSandbox(
                    limits=options.limits,
                    preload=options.preload,
                    packages=options.packages,
                    private=options.private,
                    profile=options.profile,
                    isolation=options.isolation,
                    visible=options.visible,
                    cgroups=options.cgroups,
                )
            sandbox = shared.sandbox
    except BaseException:
        _release(key, shared)
        raise
    return Lease(sandbox, lambda: _release(key, shared))


def _release(key: tuple[int, SandboxOptions], shared: _Shared) -> None:
    if key[0] != os.getpid():
        return
    with _lock:
        shared.leases -= 1
        if shared.leases:
            return
        if _table.get(key) is shared:
            del _table[key]
    with shared.lock:
        sandbox, shared.sandbox = shared.sandbox, None
    if sandbox is not None:
        sandbox.end()


@atexit.register
def _end_all() -> None:
    with _lock:
        left = [one for key, one in _table.items() if key[0] == os.getpid()]
        _table.clear()
    for shared in left:
        if shared.sandbox is not None:
            shared.sandbox.end()

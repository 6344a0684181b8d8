"""What a worker process runs: it hands its connection to a host, and dies with its parent.

`launch.py` starts it. The first message is where to import from (see `launch.py`), the second its
`WorkerSettings`, the third the definition of what to run. A host is a function, named by its import
path, that gets the connection, the definition and its own arguments, and returns when the worker
is to end. When the connection closes, the parent is gone, however that happened, and the worker
ends too, with every process that it started.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from envweave.environment import Interface
from envweave.registry.plugins import load_path
from envweave.types import Tasks
from envweave.workers.channel import Channel, PeerGoneError
from envweave.workers.pickling import pack_by_value, pack_failure, pack_reply

ORPHAN_S = 5.0
"""How long an environment may take to return after the parent is gone."""

CHECK_PARENT_S = 1.0
"""How often to check that the parent lives, besides its connection."""


class WorkerSettings(NamedTuple):
    """What a worker process is started with.

    Attributes:
        parent: The process ID of its parent.
        log_levels: `logging.disable`'s level, and that of envweave's own logger.
        host: The import path of the function that runs environments.
        host_args: What that function gets besides the connection and the definition.
    """

    parent: int
    log_levels: tuple[int, int]
    host: str
    host_args: tuple[Any, ...]


class WorkerInfo(NamedTuple):
    """What a worker reports of its environments once they are made."""

    interface: Interface
    tasks: Tasks | None


class EnvironmentHost(Protocol):
    """What runs environments in a worker process."""

    @property
    def info(self) -> WorkerInfo:
        """What the parent needs to know first."""
        ...


HostT = TypeVar("HostT", bound=EnvironmentHost)


def main(connection: socket.socket) -> None:
    """Run until the host returns, or the parent is gone."""
    atexit.register(kill_process_group, os.getpid())  # registered first, so it runs last
    try:
        _run(connection)
    except PeerGoneError:
        pass  # nothing is left to report to
    except BaseException as error:  # noqa: BLE001 - nothing above handles it
        # At once: a thread that an environment has left behind could delay it for ever.
        os._exit(_print_exit(error))


def _run(connection: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(connection)
    os.set_inheritable(connection.fileno(), False)  # noqa: FBT003 - by position only
    settings = WorkerSettings(*pickle.loads(channel.receive()))  # noqa: S301 - from our own parent
    definition = channel.receive()
    disabled, level = settings.log_levels
    logging.disable(disabled)
    logging.getLogger("envweave").setLevel(level)
    watched = (connection, settings.parent)
    threading.Thread(target=_watch_parent, args=watched, daemon=True).start()
    load_path(settings.host)(channel, definition, *settings.host_args)


def make_host(channel: Channel, make: Callable[[], HostT]) -> HostT | None:
    """Make a worker's environments and report them to the parent; `None` if that failed."""
    try:
        host = make()
        report = pack_reply(("done", host.info), pack_by_value)
    except Exception as error:  # noqa: BLE001 - sent to the parent, which raises it
        channel.send(pack_failure(error))
        return None
    channel.send(report)
    return host


def _print_exit(error: BaseException) -> int:
    """Print what ends this process, as Python does; return its exit code."""
    code = error.code if isinstance(error, SystemExit) else 1
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
    elif code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


def _watch_parent(connection: socket.socket, parent: int) -> None:
    """End this process, and every process that it started, when the parent is gone.

    A forked copy of the parent may hold the connection longer than the parent lives.
    """
    poll = select.poll()
    poll.register(connection.fileno(), 0)
    while not poll.poll(CHECK_PARENT_S * 1000) and os.getppid() == parent:
        pass
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)  # wakes the main thread
    time.sleep(ORPHAN_S)  # it closes the environments and ends, unless it hangs
    kill_process_group(os.getpid())


def kill_process_group(worker: int) -> None:
    """End this process and every process that it started; does nothing in a forked copy."""
    if os.getpid() == worker:
        os.killpg(0, signal.SIGKILL)

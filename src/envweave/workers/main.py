"""The worker's side: a process that runs environments, one turn at a time.

It is started by `place.py`. Everything it knows, it is sent over a private connection; when
that hangs up the trainer is gone, however it went, and the worker goes too.
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
from typing import Any, Protocol, runtime_checkable

from envweave.errors import format_error
from envweave.registry.plugins import load_path
from envweave.vector.process.shared_memory import (
    MESSAGE,
    EventFd,
    SharedMemory,
    TurnSlot,
    TurnTable,
)
from envweave.workers.channel import Channel, PeerGoneError, pack_by_value, pack_reply
from envweave.workers.pickling import load_definition

ORPHAN_S = 5.0
"""How long an environment may take to come back after the trainer is gone."""

LOOK_S = 1.0
"""How often to look whether the trainer is still there, besides its connection."""


class Host(Protocol):
    """What a worker runs: it answers messages by its methods."""

    def hello(self) -> Any:
        """Return what the trainer wants to know first."""

    def step_all(self) -> Any:
        """Step every environment, by the shared columns; return what they cannot hold."""

    def call(self, name: str, args: tuple[Any, ...], channel: Channel) -> Any:
        """Answer a message."""

    def sendable(self, answer: Any) -> Any:
        """Return an answer that could not be sent, without what could not be."""

    def close(self) -> None:
        """Close every environment."""


@runtime_checkable
class OwnPace(Protocol):
    """A host that takes messages as they come, instead of turns."""

    def serve(self, connection: socket.socket) -> None:
        """Answer until the trainer hangs up."""


def main(connection: socket.socket) -> None:
    """Run until the trainer says `close`, or is gone."""
    atexit.register(end_all, os.getpid())  # the first that is registered is the last that runs
    try:
        _run(connection)
    except BaseException as error:  # noqa: BLE001 - nobody above, and nobody else to be told
        # At once: a thread that an environment has left behind could hold it up for ever.
        os._exit(ending_told(error))


def ending_told(error: BaseException) -> int:
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


def _run(connection: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(connection)
    os.set_inheritable(connection.fileno(), False)  # noqa: FBT003 - by position only
    try:
        told = channel.recv()
        definition = channel.recv_packed()
        disabled, level = told["logs"]
        logging.disable(disabled)
        logging.getLogger("envweave").setLevel(level)
        watched = (connection, told["parent"])
        threading.Thread(target=watch_trainer, args=watched, daemon=True).start()
        for fd in {told["board"], *told["bell"], *told["caller_bell"]}:
            os.set_inheritable(fd, False)  # noqa: FBT003 - by position only
        board, turn = TurnTable(SharedMemory(told["board"])), TurnSlot.of(told["place"])
        try:
            host: Host = load_path(told["host"])(*load_definition(definition), board, turn)
            hello = pack_reply(("done", host.hello()), pack_by_value)
        except Exception as error:  # noqa: BLE001 - told to the trainer, who raises it
            channel.send(failed(error))
            return
        channel.send(hello)
        if isinstance(host, OwnPace):
            host.serve(connection)
            return
        try:
            _serve(host, channel, board, turn, told)
        except PeerGoneError:
            host.close()
    except PeerGoneError:
        pass  # nobody is left to be told anything


def _serve(
    host: Host, channel: Channel, board: TurnTable, turn: TurnSlot, told: dict[str, Any]
) -> None:
    words, looks = board.words, told["looks"]
    bell, caller_bell = EventFd(*told["bell"]), EventFd(*told["caller_bell"])
    poll = select.poll()
    poll.register(bell.fileno(), select.POLLIN)
    poll.register(channel.fileno(), 0)  # tells only that it hung up
    go, done, kind, more = turn.go, turn.done, turn.kind, turn.more
    count = 0
    while True:
        count += 1
        for _ in range(looks):
            if words[go] == count:
                break
        else:
            while words[go] != count:
                if any(fd == channel.fileno() for fd, _ in poll.poll()):
                    raise PeerGoneError
                bell.hush()
        reply: bytes | None
        is_last = False
        if words[kind] == MESSAGE:
            reply, is_last = _answer(host, channel)
        else:
            rest = host.step_all()
            reply = None if rest is None else _done(host, rest)
        words[more] = reply is not None
        words[done] = count
        caller_bell.ring()
        if reply is not None:
            # After the turn: the trainer takes what is larger than the connection's buffer.
            channel.send(reply)
        if is_last:
            return


def _answer(host: Host, channel: Channel) -> tuple[bytes, bool]:
    """Return the answer to the next message, and whether it was the last one."""
    packed = channel.recv_packed()
    try:
        name, *args = pickle.loads(packed)  # noqa: S301 - from our own trainer
    except Exception as error:  # noqa: BLE001 - a class that cannot be imported here
        return pack_reply(("unreadable", format_error(error))), False
    try:
        if name == "close":
            host.close()
            return pack_reply(("done", None)), True
        return _done(host, host.call(name, tuple(args), channel)), False
    except PeerGoneError:
        raise
    except Exception as error:  # noqa: BLE001 - told to the trainer, who raises it
        return failed(error), name == "close"


def _done(host: Host, answer: Any) -> bytes:
    try:
        return pack_reply(("done", answer))
    except Exception:  # noqa: BLE001 - whatever an author's object raises
        try:
            return pack_reply(("done", host.sendable(answer)))
        except Exception as error:  # noqa: BLE001 - told to the trainer
            return failed(error)


def failed(error: BaseException) -> bytes:
    """Return what was raised as a message; in words, if it cannot travel itself."""
    try:
        packed = pack_reply(("failed", error))
        pickle.loads(packed)  # noqa: S301 - many exceptions go in, and don't come out again
    except Exception:  # noqa: BLE001
        return pack_reply(("failed", RuntimeError(format_error(error))))
    return packed


def watch_trainer(connection: socket.socket, parent: int) -> None:
    """End this process, and all that it started, when the trainer is gone for good.

    A copy of the trainer, forked, may hold the connection longer than the trainer lives.
    """
    poll = select.poll()
    poll.register(connection.fileno(), 0)
    while not poll.poll(LOOK_S * 1000) and os.getppid() == parent:
        pass
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)  # tells the main thread
    time.sleep(ORPHAN_S)  # it closes the environments and leaves, unless it hangs
    end_all(os.getpid())


def end_all(worker: int) -> None:
    """End this process, and all that it started; a forked copy of it does no such thing."""
    if os.getpid() == worker:
        os.killpg(0, signal.SIGKILL)

"""The worker's side: a process that runs environments, one turn at a time.

It is started by `place.py`. Everything it knows, it is sent over a private connection; when
that hangs up the trainer is gone, however it went, and the worker goes too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from typing import Any, Protocol, runtime_checkable

from envweave.errors import in_words
from envweave.registry.plugins import load_path
from envweave.transports.process.board import MESSAGE, Bell, Board, Turn
from envweave.transports.process.channel import Channel, PeerGoneError, pack, pack_by_value
from envweave.transports.process.definition import load_definition
from envweave.transports.process.memory import Memory

ORPHAN_S = 5.0
"""How long an environment may take to come back after the trainer is gone."""

_PR_SET_PDEATHSIG = 1


class Host(Protocol):
    """What a worker runs: it answers messages by its methods."""

    def hello(self) -> Any:
        """Return what the trainer wants to know first."""

    def step_all(self) -> Any:
        """Step every environment, by the shared columns; return what they cannot hold."""

    def call(self, name: str, args: tuple[Any, ...], channel: Channel) -> Any:
        """Answer a message."""

    def close(self) -> None:
        """Close every environment."""


@runtime_checkable
class OwnPace(Protocol):
    """A host that takes messages as they come, instead of turns."""

    def serve(self, connection: socket.socket) -> None:
        """Answer until the trainer hangs up."""


def main(connection: socket.socket) -> None:
    """Run until the trainer says `close`, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(connection)
    os.set_inheritable(connection.fileno(), False)  # noqa: FBT003 - by position only
    try:
        told = channel.recv()
        definition = channel.recv_packed()
        _die_with(told["parent"])
        threading.Thread(target=_watch, args=(connection.fileno(),), daemon=True).start()
        for fd in {told["board"], *told["bell"], *told["caller_bell"]}:
            os.set_inheritable(fd, False)  # noqa: FBT003 - by position only
        board, turn = Board(Memory(told["board"])), Turn.of(told["place"])
        try:
            host: Host = load_path(told["host"])(*load_definition(definition), board, turn)
            hello = pack_by_value(("done", host.hello()))
        except Exception as error:  # noqa: BLE001 - told to the trainer, who raises it
            channel.send(failed(error))
            return
        channel.send(hello)
        if isinstance(host, OwnPace):
            host.serve(connection)
        else:
            _serve(host, channel, board, turn, told)
    except PeerGoneError:
        os._exit(1)  # nobody is left to be told anything


def _serve(host: Host, channel: Channel, board: Board, turn: Turn, told: dict[str, Any]) -> None:
    words, looks = board.words, told["looks"]
    bell, caller_bell = Bell(*told["bell"]), Bell(*told["caller_bell"])
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
                    with contextlib.suppress(Exception):
                        host.close()
                    return
                bell.hush()
        reply: bytes | None
        is_last = False
        if words[kind] == MESSAGE:
            reply, is_last = _answer(host, channel)
        else:
            rest = host.step_all()
            reply = None if rest is None else pack(("done", rest))
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
        return pack(("unreadable", in_words(error))), False
    try:
        if name == "close":
            host.close()
            return pack(("done", None)), True
        return pack(("done", host.call(name, tuple(args), channel))), False
    except PeerGoneError:
        raise
    except Exception as error:  # noqa: BLE001 - told to the trainer, who raises it
        return failed(error), name == "close"


def failed(error: BaseException) -> bytes:
    """Return what was raised as a message; in words, if it cannot travel itself."""
    try:
        packed = pack(("failed", error))
        pickle.loads(packed)  # noqa: S301 - many exceptions go in, and don't come out again
    except Exception:  # noqa: BLE001
        return pack(("failed", RuntimeError(in_words(error))))
    return packed


def _watch(fd: int) -> None:
    """End this process, and all that it started, when the trainer is gone for good."""
    poll = select.poll()
    poll.register(fd, 0)
    poll.poll()
    time.sleep(ORPHAN_S)  # while it is idle the main thread leaves by itself
    os.killpg(0, signal.SIGKILL)


def _die_with(parent: int | None) -> None:
    """Let the kernel end this process with its trainer, also while nothing of ours can run.

    It does so when the very thread ends that started us, so it is asked only where that is the
    trainer's main thread.
    """
    if parent is None or not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)

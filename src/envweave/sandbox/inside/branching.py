"""How a session becomes two: it forks, and the copy moves into a work folder of its own.

The walls refuse both steps, `fork` and the new namespace, but for the one moment in which the
host, asked by the kernel, lets this process do each once.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import stat
from typing import TYPE_CHECKING

from envweave.sandbox.inside.seeding import reseed
from envweave.sandbox.messages import DESCRIPTOR, Answer, Branch, Failure, Ready, Replied
from envweave.sandbox.walls import capabilities, kernel

if TYPE_CHECKING:
    from envweave.sandbox.inside.runner import Runner


class Branching:
    """Answers `Branch` messages for a runner."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def __call__(self, message: Branch) -> None:
        """Fork. The parent goes on as before; the copy returns into its own loop."""
        runner = self._runner
        runner.send(Replied(message.id, None, None))
        line = socket.socket(fileno=os.dup(DESCRIPTOR))
        try:
            _, ancillary, _, _ = line.recvmsg(1, socket.CMSG_SPACE(4))
        finally:
            line.close()
        if not ancillary:
            return
        descriptor = array.array("i", ancillary[0][2][:4])[0]
        try:
            child = os.fork()
        except OSError as error:
            os.close(descriptor)
            failure = Failure("OSError", f"fork: {error.strerror}", "")
            runner.send(Replied(message.id, failure, None))
            return
        if child == 0:
            try:
                self._settle(message, descriptor)
            except Exception as error:  # noqa: BLE001 - told to the host; this process ends
                told = Failure(type(error).__name__, str(error), "")
                runner.send(Replied(message.id, told, None))
                os._exit(1)
        else:
            os.close(descriptor)
            runner.send(Replied(message.id, None, None))

    def _settle(self, message: Branch, descriptor: int) -> None:
        """Make this process, which was just forked, a session of its own."""
        runner = self._runner
        os.dup2(descriptor, DESCRIPTOR, inheritable=False)
        os.close(descriptor)
        runner.start_over()
        here = os.getcwd()
        files = _open_files(here)
        runner.send(Replied(message.id, None, sorted({inode for inode, _ in files})))
        go = os.read(DESCRIPTOR, 1)
        if go != b"g":
            os._exit(1)
        kernel.unshare(kernel.NEW_USERS | kernel.NEW_MOUNTS)
        capabilities.drop_effective()
        runner.send(Replied(message.id, None, None))
        answer = runner.receive()
        if not isinstance(answer, Answer) or not answer.ok:
            os._exit(1)
        _move(here, files, dict(answer.value))
        reseed(message.seed)
        runner.send(Ready())


def _open_files(work: str) -> list[tuple[int, int]]:
    """Return inode and descriptor of each regular file of the work folder that is open here."""
    device = os.stat(work).st_dev
    found = []
    # One call for all, instead of one each: a regular file can always be read from.
    looking = select.poll()
    for descriptor in range(DESCRIPTOR + 1, os.sysconf("SC_OPEN_MAX")):
        looking.register(descriptor, select.POLLIN)
    for descriptor, event in looking.poll(0):
        if event & select.POLLNVAL:
            continue
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_dev == device:
            found.append((status.st_ino, descriptor))
    return found


def _move(here: str, files: list[tuple[int, int]], paths: dict[int, str]) -> None:
    """Leave the parent's work folder and files for the copies of them."""
    import fcntl

    from envweave.sandbox.walls.root import WORK

    os.chdir(WORK)
    with contextlib.suppress(OSError):
        os.chdir(here)
    for inode, descriptor in files:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC)
        inherited = os.get_inheritable(descriptor)
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        path = paths.get(inode)
        if path is None:
            opened = _copy_nameless(descriptor, WORK)
        else:
            opened = os.open(f"{WORK}/{path}", flags)
        os.lseek(opened, position, os.SEEK_SET)
        os.dup2(opened, descriptor, inheritable=inherited)
        os.close(opened)


def _copy_nameless(descriptor: int, folder: str) -> int:
    """Return a copy of an open file that has no name any more, as temporary files have none."""
    copy = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    at = 0
    try:
        while data := os.pread(descriptor, 1 << 20, at):
            at += os.pwrite(copy, data, at)
    except OSError:  # opened for writing alone: what was written is nobody's to read
        pass
    return copy

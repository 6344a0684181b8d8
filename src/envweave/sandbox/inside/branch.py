"""Branching a session: it forks, and the copy moves into a separate work folder.

The walls refuse both steps, `fork` and the new namespace, except at the moment in which the host
allows this process to do each once (see `ForkGate`). The template copies the files.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import resource
import select
import signal
import socket
import stat
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from envweave.sandbox.inside.seeding import random_state, reseed, set_random_state
from envweave.sandbox.inside.spawn import Walls, take_user
from envweave.sandbox.protocol.messages import (
    DESCRIPTOR,
    Branch,
    Failure,
    Ready,
    Replied,
    ToolAnswer,
)
from envweave.sandbox.protocol.orders import Copied, CopyFiles, OrderFailed
from envweave.sandbox.walls import capabilities, kernel, mounts
from envweave.sandbox.walls.kernel import Syscall, deferred

if TYPE_CHECKING:
    from envweave.sandbox.inside.runner import SessionRunner


_current_frames = sys._current_frames  # noqa: SLF001 - has all threads, however they were started
_SQLITE = b"SQLite format 3\0"
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


class BranchServer:
    """Answers `Branch` messages for a runner."""

    def __init__(self, runner: SessionRunner) -> None:
        self._runner = runner
        self._random_state: Any = None  # what a fork loses of it

    def __call__(self, message: Branch) -> None:
        """Fork. The parent continues as before; the copy returns into its own loop."""
        runner = self._runner
        try:
            reason = _why_not_exact(runner) if message.strict else None
            self._random_state = None if message.reseed else random_state()
        except Exception as error:  # noqa: BLE001 - the code may have replaced what this calls
            reason = f"{type(error).__name__}: {error}"[:_MAX_TEXT_LENGTH]
        if reason is not None:
            runner.send(Replied(message.id, Failure("BranchError", reason, ""), None))
            return
        runner.send(Replied(message.id, None, None))
        connection = socket.socket(fileno=os.dup(DESCRIPTOR))
        try:
            _, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(4))
        finally:
            connection.close()
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
                self._become_session(message, descriptor)
            except Exception as error:  # noqa: BLE001 - reported to the host; this process ends
                failure = Failure(type(error).__name__, str(error), "")
                runner.send(Replied(message.id, failure, None))
                os._exit(1)
        else:
            os.close(descriptor)
            runner.send(Replied(message.id, None, None))

    def _become_session(self, message: Branch, descriptor: int) -> None:
        """Turn this process, which was just forked, into a separate session."""
        runner = self._runner
        os.dup2(descriptor, DESCRIPTOR, inheritable=False)
        os.close(descriptor)
        runner.reset_after_fork()
        here = os.getcwd()
        files = _open_files(mounts.WORK)
        runner.send(Replied(message.id, None, sorted({inode for inode, _ in files})))
        go = os.read(DESCRIPTOR, 1)
        if go != b"g":
            os._exit(1)
        try:
            kernel.unshare(kernel.NEW_USERS | kernel.NEW_MOUNTS)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise OSError(error.errno, _TOO_MANY) from None
            raise
        capabilities.drop_effective()
        runner.send(Replied(message.id, None, None))
        answer = runner.receive()
        if not isinstance(answer, ToolAnswer) or not answer.ok:
            os._exit(1)
        _move(here, files, dict(answer.value))
        if message.reseed:
            reseed(message.seed)
        else:
            set_random_state(self._random_state)
        runner.send(Ready())


def _why_not_exact(runner: SessionRunner) -> str | None:
    """Return what a copy would lose, or share with this session; `None` if nothing is known."""
    if len(_current_frames()) > 1:
        return "its code runs threads, which a copy would not have"
    tasks, own = runner.async_state()
    if tasks:
        return f"a copy would lose what its asyncio tasks are doing, {tasks} of them"
    if any(signal.getitimer(timer)[0] for timer in _TIMERS):
        return "its code has set a timer, which a copy would lose"
    device = os.stat(mounts.WORK).st_dev
    for descriptor in _open_descriptors():
        status = os.fstat(descriptor)
        if descriptor in own or stat.S_ISCHR(status.st_mode) or stat.S_ISDIR(status.st_mode):
            continue
        if not stat.S_ISREG(status.st_mode):
            return "its code has a pipe or a socket open, which a copy would share with it"
        if status.st_dev != device:
            return "its code has a file open outside the work folder, which a copy would share"
        if _is_database(descriptor):
            return "its code has an SQLite database open, which refuses to write to a copied file"
    return None


def _is_database(descriptor: int) -> bool:
    try:
        return os.pread(descriptor, len(_SQLITE), 0) == _SQLITE
    except OSError:  # it was opened for writing only, as SQLite never does
        return False


def _open_files(work: str) -> list[tuple[int, int]]:
    """Return inode and descriptor of each open regular file of the work folder."""
    device = os.stat(work).st_dev
    found = []
    for descriptor in _open_descriptors():
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_dev == device:
            found.append((status.st_ino, descriptor))
    return found


def _open_descriptors() -> list[int]:
    """Return the open descriptors, except those that the runner always has."""
    every = range(DESCRIPTOR + 1, os.sysconf("SC_OPEN_MAX"))
    poll = select.poll()  # one call for all, instead of one each
    for descriptor in every:
        poll.register(descriptor, 0)
    closed = {descriptor for descriptor, event in poll.poll(0) if event & select.POLLNVAL}
    return [descriptor for descriptor in every if descriptor not in closed]


def _move(here: str, files: list[tuple[int, int]], paths: dict[int, str]) -> None:
    """Switch from the parent's work folder and files to the copies."""
    import fcntl

    from envweave.sandbox.walls.mounts import WORK

    os.chdir(WORK)
    with contextlib.suppress(OSError):
        os.chdir(here)
    for inode, descriptor in files:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC)
        inherited = os.get_inheritable(descriptor)
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        path = paths.get(inode)
        if path is None:
            opened = _copy_unlinked(descriptor, WORK)
        else:
            opened = os.open(f"{WORK}/{path}", flags)
        os.lseek(opened, position, os.SEEK_SET)
        os.dup2(opened, descriptor, inheritable=inherited)
        os.close(opened)


def _copy_unlinked(descriptor: int, folder: str) -> int:
    """Return a copy of an open file without a name, such as a temporary file."""
    copy = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    at = 0
    try:
        while data := os.pread(descriptor, 1 << 20, at):
            at += os.pwrite(copy, data, at)
    except OSError:  # opened write-only: its content cannot be read
        pass
    return copy


_TOO_MANY = (
    "the kernel makes no more user namespaces; they nest at most 32 deep, one for each generation "
    "of branches"
)
_MAX_PATH_LENGTH = 1000
_MAX_LINK_LENGTH = 4096  # of what `link` takes
_MAX_TEXT_LENGTH = 200
_MAX_PATHS_BYTES = 1 << 17  # of all together: half of a message
_HERE = -100  # AT_FDCWD
_CHUNK_BYTES = 1 << 20


def copy_and_exit(
    order: CopyFiles, branch: int, parent: int, walls: Walls, report_to: int
) -> NoReturn:
    """Copy the work folder, write the report to `report_to`, and exit."""
    try:
        try:
            report = fitting(Copied(_copy_for(order, branch, parent, walls)))
        except Exception as error:  # noqa: BLE001 - reported to the host; this process ends
            report = copy_failed(error)
        os.write(report_to, msgspec.msgpack.encode(report))
        os.close(report_to)  # before the process exits, which takes longer than all the rest
    finally:
        os._exit(0)


def copy_with_helper(order: CopyFiles, branch: int, walls: Walls) -> Copied | OrderFailed | None:
    """Copy the work folder in this process, while a helper enters the branch's mounts.

    A helper costs a fraction of a fork. It opens the old folder and the new one for this process.

    Returns:
        The report; `None`, with nothing changed, where this is not possible: without the extension
        or root's rights, and for a branch of a branch, whose user this process may not map.
    """
    if walls.native is None or not walls.alone or not walls.plan.users:
        return None
    source, target = os.dup(0), os.dup(0)  # the descriptors that the helper will open
    os.close(source)
    os.close(target)
    maps: list[Syscall] = []
    line = f"{order.user} {order.user} 1".encode()
    for name in ("gid_map", "uid_map"):
        path = f"{order.pid}/{name}".encode()
        maps += [
            deferred("openat", walls.processes, path, os.O_WRONLY, result=source),
            deferred("write", source, line, len(line), result=len(line)),
            deferred("close", source),
        ]
    options = mounts.work_options(walls.limits.disk_bytes, walls.limits.files, order.user)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    work = mounts.WORK.encode()
    calls = [
        *maps,
        deferred("setns", branch, kernel.NEW_MOUNTS),
        deferred("openat", _HERE, work, flags, result=source),
        *mounts.mount_work_calls(options, shell=walls.plan.shell),
        deferred("openat", _HERE, work, flags, result=target),
    ]
    failed, number = walls.native.perform_in_helper(calls)
    if 0 <= failed < 2:  # the first map
        with contextlib.suppress(OSError):
            os.close(source)
        return None
    copier = _Copier(order.user, set(order.inodes))
    try:
        if failed >= 0:
            raise kernel.refusal(calls[failed], number)
        copier.copy_folder(source, target)
        return fitting(Copied(copier.paths))
    except Exception as error:  # noqa: BLE001 - of one branch; other sessions need this process
        for one in {source, target, *copier.opened}:
            with contextlib.suppress(OSError):
                os.close(one)
        return copy_failed(error)


def copy_failed(error: Exception) -> OrderFailed:
    """Return the report of a copy that failed, without the agent's paths: they have any length."""
    number, text = 0, f"{type(error).__name__}: {error}"[:_MAX_TEXT_LENGTH]
    if isinstance(error, OSError):
        number = error.errno or 0
        text = f"[Errno {number}] {error.strerror}"
    return OrderFailed("branch", number, f"its files could not be copied: {text}")


def fitting(report: Copied) -> Copied | OrderFailed:
    """Return the report, or a failure if it is too large for a message."""
    if sum(len(path.encode()) for path in report.paths.values()) <= _MAX_PATHS_BYTES:
        return report
    return OrderFailed("branch", errno.EMSGSIZE, "the paths of its open files are too long")


def _copy_for(order: CopyFiles, branch: int, parent: int, walls: Walls) -> dict[int, str]:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _map_user(order, parent, walls.processes)
    kernel.call("setns", branch, kernel.NEW_MOUNTS)
    source = os.open(mounts.WORK, os.O_RDONLY | os.O_DIRECTORY)
    options = mounts.work_options(walls.limits.disk_bytes, walls.limits.files, order.user)
    mounts.mount_work(options, shell=walls.plan.shell)
    target = os.open(mounts.WORK, os.O_RDONLY | os.O_DIRECTORY)
    copier = _Copier(order.user, set(order.inodes))
    copier.copy_folder(source, target)
    return copier.paths


def _map_user(order: CopyFiles, parent: int, processes: int) -> None:
    """Map the branch's user id to itself. Only a process in its parent's namespace may do that.

    Without the map the branch could not be branched in turn.
    """
    try:
        kernel.call("setns", parent, kernel.NEW_USERS)
        if os.getuid() != order.user:  # it is unmapped there, and could not create files
            take_user(order.user)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the parent is in this very namespace
            raise
    for name in ("gid_map", "uid_map"):
        descriptor = os.open(f"{order.pid}/{name}", os.O_WRONLY, dir_fd=processes)
        os.write(descriptor, f"{order.user} {order.user} 1".encode())
        os.close(descriptor)


def _is_reportable(path: str) -> bool:
    """Whether the path is short and valid UTF-8; other files are copied as if they had no name."""
    if len(path) > _MAX_PATH_LENGTH:
        return False
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _join(folder: str | None, entry: str) -> str | None:
    """Return a path below the work folder, `""`; `None` if it is too long to be used.

    Paths of thousands of deep folders would fill the memory.
    """
    if folder is None or len(folder) + len(entry) >= _MAX_LINK_LENGTH:
        return None
    return f"{folder}/{entry}" if folder else entry


class _Copier:
    """Copies one tree. Hard links are preserved.

    Attributes:
        paths: The paths of the requested files, by inode.
        opened: The descriptors that are open; all are closed at the end, unless it fails.
    """

    def __init__(self, user: int, inodes: set[int]) -> None:
        self._user = user
        self._inodes = inodes
        self._linked: dict[int, str | None] = {}  # the first path of each file with several
        self._root = -1
        self.paths: dict[int, str] = {}
        self.opened: set[int] = set()

    def _open(self, *arguments: Any, dir_fd: int) -> int:
        descriptor = os.open(*arguments, dir_fd=dir_fd)
        self.opened.add(descriptor)
        return descriptor

    def _close(self, descriptor: int) -> None:
        self.opened.discard(descriptor)
        os.close(descriptor)

    def copy_folder(self, source: int, target: int) -> None:
        """Copy the content of one open folder into another, iteratively: the agent chose the depth.

        Folders get their modes and times last: one without write permission may have content.
        """
        self._root = target
        self.opened.update((source, target))
        folders: list[tuple[int, int, str | None]] = [(source, target, "")]
        finished: list[tuple[int, os.stat_result]] = []
        while folders:
            here, there, path = folders.pop()
            finished.append((there, os.fstat(here)))
            for entry in os.listdir(here):
                below = _join(path, entry)
                found = os.stat(entry, dir_fd=here, follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    os.mkdir(entry, 0o700, dir_fd=there)
                    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
                    inner = self._open(entry, flags, dir_fd=here)
                    folders.append((inner, self._open(entry, flags, dir_fd=there), below))
                elif stat.S_ISLNK(found.st_mode):
                    os.symlink(os.readlink(entry, dir_fd=here), entry, dir_fd=there)
                    os.chown(entry, self._user, self._user, dir_fd=there, follow_symlinks=False)
                elif stat.S_ISREG(found.st_mode):
                    self._copy_file(here, there, entry, below, found)
            self._close(here)
        for folder, found in reversed(finished):
            os.fchown(folder, self._user, self._user)
            os.fchmod(folder, stat.S_IMODE(found.st_mode))
            os.utime(folder, ns=(found.st_atime_ns, found.st_mtime_ns))
            self._close(folder)

    def _copy_file(
        self, here: int, there: int, entry: str, path: str | None, found: os.stat_result
    ) -> None:
        if found.st_ino in self._inodes and path is not None and _is_reportable(path):
            self.paths[found.st_ino] = path
        if found.st_nlink > 1:
            if found.st_ino in self._linked:
                first = self._linked[found.st_ino]
                if first is None:
                    raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
                os.link(first, entry, src_dir_fd=self._root, dst_dir_fd=there)
                return
            self._linked[found.st_ino] = path
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        source = self._open(entry, flags, dir_fd=here)
        target = self._open(entry, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=there)
        while data := os.read(source, _CHUNK_BYTES):
            view = memoryview(data)
            while view:
                view = view[os.write(target, view) :]
        os.fchown(target, self._user, self._user)
        os.fchmod(target, stat.S_IMODE(found.st_mode))
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
        self._close(target)
        self._close(source)

"""A branch's own files: a new work folder mounted for it, filled with what its parent's holds.

The template's helper does it, since the branch has no right to mount. The tree that is copied is
the agent's: links are never followed, what is neither file, folder nor link is left out, and the
limits of the work folder bound the work.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
from typing import NoReturn

import msgspec

from envweave.sandbox.inside.spawning import Walls, take_user
from envweave.sandbox.orders import MESSAGE_BYTES, Copied, CopyFiles, Down
from envweave.sandbox.walls import kernel, root

_LONGEST_PATH = 1000
_CHUNK_BYTES = 1 << 20


def copy_and_exit(
    order: CopyFiles, branch: int, parent: int, walls: Walls, telling: int
) -> NoReturn:
    """Copy, tell through `telling` what came of it, and end this process."""
    try:
        report: Copied | Down = Copied(_copy_for(order, branch, parent, walls))
    except OSError as error:
        report = Down("branch", error.errno or 0, f"its files could not be copied: {error}")
    data = msgspec.msgpack.encode(report)
    os.write(telling, data if len(data) <= MESSAGE_BYTES else b"")
    os.close(telling)  # before this process is taken apart, which takes longer than all the rest
    os._exit(0)


def _copy_for(order: CopyFiles, branch: int, parent: int, walls: Walls) -> dict[int, str]:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _map_user(order, parent, walls.processes)
    kernel.call("setns", branch, kernel.NEW_MOUNTS)
    source = os.open(root.WORK, os.O_RDONLY | os.O_DIRECTORY)
    options = root.work_options(walls.limits.disk_bytes, walls.limits.files, order.user)
    root.mount_work(options, shell=walls.plan.shell)
    target = os.open(root.WORK, os.O_RDONLY | os.O_DIRECTORY)
    copier = _Copier(order.user, set(order.inodes))
    copier.copy_folder(source, target)
    return copier.paths


def _map_user(order: CopyFiles, parent: int, processes: int) -> None:
    """Map the branch's user id to itself, from its parent's namespace, which alone may.

    Without the map it could not be branched in turn.
    """
    try:
        kernel.call("setns", parent, kernel.NEW_USERS)
        if os.getuid() != order.user:  # nobody there: files could not be made
            take_user(order.user)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the parent is in this very namespace
            raise
    for name in ("gid_map", "uid_map"):
        descriptor = os.open(f"{order.pid}/{name}", os.O_WRONLY, dir_fd=processes)
        os.write(descriptor, f"{order.user} {order.user} 1".encode())
        os.close(descriptor)


def _is_text(path: str) -> bool:
    """Say whether a path can be told. A file with another is copied as if it had no name."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Copier:
    """Copies one tree. Files with several names keep them."""

    def __init__(self, user: int, wanted: set[int]) -> None:
        self._user = user
        self._wanted = wanted
        self._several: dict[int, str] = {}
        self._root = -1
        self.paths: dict[int, str] = {}

    def copy_folder(self, source: int, target: int) -> None:
        """Copy what is in one open folder into another, iteratively: depth is the agent's choice.

        Folders get their modes and times last, for one without the right to write may have
        something in it.
        """
        self._root = target
        folders = [(source, target, "")]
        finished: list[tuple[int, os.stat_result]] = []
        while folders:
            here, there, path = folders.pop()
            finished.append((there, os.fstat(here)))
            for entry in os.listdir(here):
                below = f"{path}/{entry}" if path else entry
                found = os.stat(entry, dir_fd=here, follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    os.mkdir(entry, 0o700, dir_fd=there)
                    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
                    inner = os.open(entry, flags, dir_fd=here)
                    folders.append((inner, os.open(entry, flags, dir_fd=there), below))
                elif stat.S_ISLNK(found.st_mode):
                    os.symlink(os.readlink(entry, dir_fd=here), entry, dir_fd=there)
                    os.chown(entry, self._user, self._user, dir_fd=there, follow_symlinks=False)
                elif stat.S_ISREG(found.st_mode):
                    self._copy_file(here, there, entry, below, found)
            os.close(here)
        for folder, found in reversed(finished):
            os.fchown(folder, self._user, self._user)
            os.fchmod(folder, stat.S_IMODE(found.st_mode))
            os.utime(folder, ns=(found.st_atime_ns, found.st_mtime_ns))
            os.close(folder)

    def _copy_file(
        self, here: int, there: int, entry: str, path: str, found: os.stat_result
    ) -> None:
        if found.st_ino in self._wanted and len(path) <= _LONGEST_PATH and _is_text(path):
            self.paths[found.st_ino] = path
        if found.st_nlink > 1:
            first = self._several.setdefault(found.st_ino, path)
            if first != path:
                os.link(first, entry, src_dir_fd=self._root, dst_dir_fd=there)
                return
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        source = os.open(entry, flags, dir_fd=here)
        target = os.open(entry, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=there)
        while data := os.read(source, _CHUNK_BYTES):
            view = memoryview(data)
            while view:
                view = view[os.write(target, view) :]
        os.fchown(target, self._user, self._user)
        os.fchmod(target, stat.S_IMODE(found.st_mode))
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
        os.close(target)
        os.close(source)

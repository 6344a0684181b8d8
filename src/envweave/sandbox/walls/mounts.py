"""The root folder: the interpreter and its libraries, read-only, and nothing else of the host.

It prevents reading and changing the host's files. There is no `/proc` and no `/sys`; the devices
are `urandom`, `null` and, where a cgroup counts memory, `zero`. The work folder is a file system in
memory that each session mounts for itself, limited in bytes and files.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence

from envweave.sandbox.walls import kernel

HOME = "/home"
"""Contains only the work folder. Landlock's write rule names this folder, so that it also covers
the work folder that a branch mounts over its parent's."""

WORK = "/home/agent"
_NOBODY = 65534
"""The user id that a process without an id map sees as its own."""

_TEMPORARY = "/tmp"  # noqa: S108 - a link into the session's own folder

_DEVICES = ("null", "urandom")

_READ_ONLY = 1
_NO_SETUID = 2
_NO_DEVICES = 4
_NO_EXEC = 8
_REMOUNT = 32
_BIND = 4096
_RECURSIVE = 16384
_PRIVATE = 1 << 18
_DETACH = 2
_EMPTY_PATH_RECURSIVE = 0x1000 | 0x8000


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """Mount a file system, or change a mount.

    Raises:
        OSError: The kernel refused; the message names the target.
    """
    encoded = [None if one is None else os.fsencode(one) for one in (source, target, kind)]
    try:
        kernel.call("mount", *(_pointer(one) for one in encoded), flags, data.encode() or 0)
    except OSError as error:
        raise OSError(error.errno, f"mount {target}: {os.strerror(error.errno or 0)}") from None


def _pointer(value: bytes | None) -> bytes | int:
    return 0 if value is None else value


def devices(*, memory_counted: bool) -> list[str]:
    """Return the device nodes of a session.

    Shared mappings of `/dev/zero` are counted by a cgroup and by nothing else.
    """
    names = (*_DEVICES, "zero") if memory_counted else _DEVICES
    return [f"/dev/{name}" for name in names]


def build(
    place: str,
    visible: Iterable[str],
    *,
    hidden: Iterable[str] = (),
    shown: Iterable[str] = (),
    shell: bool,
    memory_counted: bool,
) -> None:
    """Make the read-only root at `place`, an empty folder, and make it this process's root.

    Args:
        place: An empty folder of the host. Only this process sees what is mounted there.
        visible: What of the host is visible, at its own path. Missing paths are skipped; a
            symbolic link stays one.
        hidden: What of that is replaced by an empty folder or file.
        shown: What is visible after that, also in a hidden folder.
        shell: Whether programs can be started, which need a few files in `/etc`.
        memory_counted: Whether a cgroup counts the memory of a session.
    """
    mount(None, "/", None, _RECURSIVE | _PRIVATE)
    mount("tmpfs", place, "tmpfs", _NO_SETUID | _NO_DEVICES, "size=4m,mode=755")
    for path in visible:
        _show(place, path)
    emptied = [place + path for path in hidden if _empty(place, path)]
    for path in shown:
        _show(place, path)
    for path in emptied:
        _make_read_only(path, device=False)
    for folder in ("/dev", "/etc", WORK):
        os.makedirs(place + folder, exist_ok=True)
    if not os.path.lexists(place + _TEMPORARY):  # otherwise something below it is visible
        os.symlink(WORK + _TEMPORARY, place + _TEMPORARY)
    os.symlink(f"{WORK}/tmp", place + "/dev/shm")  # noqa: S108 - semaphores need it
    for device in devices(memory_counted=memory_counted):
        _show(place, device)
    _write(f"{place}/etc/passwd", f"agent:x:{_NOBODY}:{_NOBODY}::{WORK}:/bin/bash\n")
    _write(f"{place}/etc/group", f"agent:x:{_NOBODY}:\n")
    _write(f"{place}/etc/hostname", "sandbox\n")
    if shell:
        _write(f"{place}/etc/profile", f"export HOME={WORK} PS1='$ '\n")
    os.chdir(place)
    kernel.call("pivot_root", b".", b".")
    kernel.call("umount2", b".", _DETACH)
    os.chdir("/")
    mount(None, "/", None, _REMOUNT | _BIND | _READ_ONLY | _NO_SETUID | _NO_DEVICES)


def _write(path: str, text: str) -> None:
    with open(path, "x") as file:
        file.write(text)


def _show(place: str, path: str) -> None:
    if os.path.islink(path):
        os.makedirs(place + os.path.dirname(path), exist_ok=True)
        os.symlink(os.readlink(path), place + path)
        return
    if not os.path.exists(path):
        return
    if os.path.isdir(path):
        os.makedirs(place + path, exist_ok=True)
    else:
        os.makedirs(place + os.path.dirname(path), exist_ok=True)
        _write(place + path, "")
    mount(path, place + path, None, _BIND | _RECURSIVE)
    _make_read_only(place + path, device=path.startswith("/dev/"))


def _empty(place: str, path: str) -> bool:
    """Cover a visible path with an empty folder or file; return whether there was one."""
    target = place + path
    if os.path.isdir(target):
        mount("tmpfs", target, "tmpfs", _NO_SETUID | _NO_DEVICES, "size=1m,mode=755")
        return True
    if os.path.isfile(target):
        empty = f"{place}/nothing"
        _write(empty, "")
        mount(empty, target, None, _BIND)
        os.unlink(empty)
        return True
    return False


def _make_read_only(path: str, *, device: bool) -> None:
    """Make a mount and all mounts below it read-only. Device nodes stay usable."""
    attributes = _READ_ONLY | _NO_SETUID | (_NO_EXEC if device else _NO_DEVICES)
    attr = struct.pack("<QQQQ", attributes & ~(_READ_ONLY if device else 0), 0, 0, 0)
    descriptor = os.open(path, os.O_PATH)
    try:
        kernel.call("mount_setattr", descriptor, b"", _EMPTY_PATH_RECURSIVE, attr, len(attr))
    finally:
        os.close(descriptor)


def mount_work(options: str, *, shell: bool) -> None:
    """Mount an empty work folder over the current one, and change to it."""
    kernel.perform(mount_work_calls(options, shell=shell))


def mount_work_calls(options: str, *, shell: bool) -> list[kernel.Syscall]:
    """Return the calls that `mount_work` makes."""
    work = WORK.encode()
    flags = _NO_SETUID | _NO_DEVICES | (0 if shell else _NO_EXEC)
    return [
        kernel.deferred("mount", b"tmpfs", work, b"tmpfs", flags, options.encode()),
        kernel.deferred("chdir", work),
    ]


def work_options(disk_bytes: int, files: int, user: int) -> str:
    """Return the mount options of a work folder."""
    return f"size={disk_bytes},nr_inodes={files},mode=700,uid={user},gid={user}"


def without_nested(paths: Sequence[str]) -> list[str]:
    """Return the paths without those that are below others, ordered by depth."""
    kept: list[str] = []
    for path in sorted(set(paths), key=lambda one: (one.count("/"), one)):
        if not any(path == above or path.startswith(above + "/") for above in kept):
            kept.append(path)
    return kept

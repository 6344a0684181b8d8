"""Landlock: a session opens, creates and removes files in its own folders, nowhere else.

With namespaces this backs up the mounts; without them it is the wall around files. It also stops
TCP, abstract sockets, ioctls on devices and signals to processes outside, as far as the kernel's
version supports that: `missing` returns what a version lacks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from typing import Final

from envweave.sandbox.walls import kernel

LATEST: Final = 7
"""The newest version whose rights are known here. A kernel with a newer one has these too."""

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_CHAR, _MAKE_DIR = 1 << 4, 1 << 5, 1 << 6, 1 << 7
_MAKE_REG, _MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK = 1 << 8, 1 << 9, 1 << 10, 1 << 11
_MAKE_SYM, _REFER, _TRUNCATE, _IOCTL_DEV = 1 << 12, 1 << 13, 1 << 14, 1 << 15

_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READ = _READ_FILE | _READ_DIR
_WRITE = (
    _WRITE_FILE
    | _REMOVE_DIR
    | _REMOVE_FILE
    | _MAKE_DIR
    | _MAKE_REG
    | _MAKE_SYM
    | _REFER
    | _TRUNCATE
)

_BIND_AND_CONNECT = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11

_GET_VERSION = 1
_RULE_PATH_BENEATH = 1
_LOG_NOTHING = 1
"""LANDLOCK_RESTRICT_SELF_LOG_SAME_EXEC_OFF: otherwise a session could fill the host's audit log."""

KEEPS_LENGTHS: Final = 3
"""The first version that prevents truncating files outside; before, only seccomp does."""

SCOPES_SIGNALS: Final = 6
"""The first version that confines signals."""

_LACKS: Final = (
    (1, "Files outside the session's folders are protected by owner and mode only: no Landlock."),
    (2, "Files cannot be moved between folders: Landlock is older than version 2."),
    (
        3,
        "Only seccomp prevents truncating files outside: Landlock is older than version 3.",
    ),
    (4, "Only seccomp prevents TCP connections: Landlock is older than version 4."),
    (5, "Only seccomp prevents ioctls on devices: Landlock is older than version 5."),
    (6, "Only seccomp prevents signals to processes outside: Landlock is older than version 6."),
)


def abi() -> int:
    """Return the version of Landlock that the kernel has enabled; 0 if none."""
    try:
        return kernel.call("landlock_create_ruleset", 0, 0, _GET_VERSION)
    except OSError as refusal:
        if refusal.errno in {errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}:
            return 0
        raise


def missing(version: int) -> list[str]:
    """Return what this version lacks, a sentence each."""
    return [sentence for since, sentence in _LACKS if version < since]


def ruleset(
    *,
    read: Iterable[int],
    write: Iterable[int],
    devices: Iterable[int],
    listed: Iterable[int] = (),
    shell: bool,
    version: int | None = None,
) -> int:
    """Return the descriptor of a ruleset, which processes can restrict themselves by.

    Descriptors may be `O_PATH`, of folders or of single files; they can be closed afterwards.

    Args:
        read: May be read; with `shell` programs there may be started.
        write: May also be changed. Devices and sockets cannot be created there; named pipes only
            with `shell`.
        devices: May be read and written, without ioctls.
        listed: Everything below may be listed, but not read.
        shell: Whether programs may be started.
        version: The result of `abi()`, if known.

    Raises:
        OSError: The kernel has no Landlock.
    """
    version = abi() if version is None else version
    if version < 1:
        raise OSError(errno.EOPNOTSUPP, "landlock: not enabled in this kernel")
    handled = _files(version)
    rules = kernel.call("landlock_create_ruleset", *_attributes(version, handled), 0)
    reading = _READ | (_EXECUTE if shell else 0)
    try:
        for rights, descriptors in (
            (reading, read),
            (reading | _WRITE | (_MAKE_FIFO if shell else 0), write),
            (_READ_FILE | _WRITE_FILE, devices),
            (_READ_DIR, listed),
        ):
            for descriptor in descriptors:
                _allow(rules, descriptor, rights & handled)
    except BaseException:
        os.close(rules)
        raise
    return rules


def restrict_self(rules: int, version: int | None = None) -> None:
    """Restrict this thread, and what it starts, by a ruleset, irrevocably.

    Files that are already open stay open.

    Raises:
        OSError: This process lacks `no_new_privileges()`.
    """
    kernel.perform([restrict_call(rules, abi() if version is None else version)])


def restrict_call(rules: int, version: int) -> kernel.Syscall:
    """Return the call that `restrict_self` makes."""
    return kernel.deferred("landlock_restrict_self", rules, _LOG_NOTHING if version >= 7 else 0)


@contextlib.contextmanager
def opened(paths: Iterable[str]) -> Iterator[list[int]]:
    """Open paths for a ruleset, skipping those that do not exist."""
    descriptors = []
    try:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                descriptors.append(os.open(path, os.O_PATH | os.O_CLOEXEC))
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _files(version: int) -> int:
    """Return the file rights that a version supports."""
    known = _REFER - 1
    known |= _REFER if version >= 2 else 0
    known |= _TRUNCATE if version >= 3 else 0
    return known | (_IOCTL_DEV if version >= 5 else 0)


def _attributes(version: int, handled: int) -> tuple[bytes, int]:
    """Return the attributes of a ruleset, and the length that a version accepts."""
    attributes = struct.pack("<QQQ", handled, _BIND_AND_CONNECT, _ABSTRACT_SOCKETS_AND_SIGNALS)
    length = 24 if version >= 6 else 16 if version >= 4 else 8
    return attributes, length


def _allow(ruleset: int, descriptor: int, rights: int) -> None:
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        rights &= _OF_FILES
    kernel.call(
        "landlock_add_rule", ruleset, _RULE_PATH_BENEATH, struct.pack("<Qi", rights, descriptor), 0
    )

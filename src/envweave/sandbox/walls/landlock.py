"""Landlock: a session opens, makes and removes files in the folders it is given, nowhere else.

Where there are namespaces this stands behind the mounts; without them it is the wall around files.
It also stops TCP, sockets without a path, ioctls on devices and signals to processes outside, as
far as the kernel's version of it knows them: `missing` says what a version lacks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from typing import Final

from envweave.sandbox.walls import calls, kernel

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

_ASK_VERSION = 1
_RULE_PATH_BENEATH = 1
_LOG_NOTHING = 1
"""LANDLOCK_RESTRICT_SELF_LOG_SAME_EXEC_OFF: else a session could fill the host's audit log."""

KEEPS_LENGTHS: Final = 3
"""The first version that keeps files outside from being cut short; before, only seccomp does."""

SCOPES_SIGNALS: Final = 6
"""The first version that keeps signals inside."""

_LACKS: Final = (
    (1, "Files outside the session's folders are kept by owner and mode alone: no Landlock."),
    (2, "Files cannot be moved from folder to folder: Landlock is older than version 2."),
    (
        3,
        "That files outside are not cut short is kept by seccomp alone: Landlock before version 3.",
    ),
    (4, "That there is no TCP is kept by seccomp alone: Landlock is older than version 4."),
    (5, "That no ioctl reaches a device is kept by seccomp alone: Landlock before version 5."),
    (6, "That no signal goes out is kept by seccomp alone: Landlock is older than version 6."),
)


def abi() -> int:
    """Return the version of Landlock that the kernel has on; 0 if none."""
    try:
        return kernel.call("landlock_create_ruleset", 0, 0, _ASK_VERSION)
    except OSError as refusal:
        if refusal.errno in {errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}:
            return 0
        raise


def missing(version: int) -> list[str]:
    """Say what this version lacks, a sentence each."""
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
    """Return the descriptor of a set of rules, which processes can shut themselves in by.

    Descriptors may be `O_PATH`, of folders or of single files; they can be closed afterwards.

    Args:
        read: May be read; with `shell` programs there may be started.
        write: May also be changed. Devices and sockets cannot be made there, pipes with `shell`.
        devices: May be read and written, without ioctls.
        listed: What is in these, and below, may be listed, and not read.
        shell: Whether programs may be started.
        version: What `abi()` said, if it was asked before.

    Raises:
        OSError: The kernel has no Landlock.
    """
    version = abi() if version is None else version
    if version < 1:
        raise OSError(errno.EOPNOTSUPP, "landlock: the kernel does not have it on")
    handled = _files(version)
    rules = kernel.call("landlock_create_ruleset", *_described(version, handled), 0)
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
    """Shut this thread, and what it starts, in by a set of rules, for good.

    What is open already stays open.

    Raises:
        OSError: This process lacks `no_new_privileges()`.
    """
    calls.perform([restricting(rules, abi() if version is None else version)])


def restricting(rules: int, version: int) -> calls.Syscall:
    """Return the call of `restrict_self`."""
    return calls.call("landlock_restrict_self", rules, _LOG_NOTHING if version >= 7 else 0)


@contextlib.contextmanager
def opened(paths: Iterable[str]) -> Iterator[list[int]]:
    """Open paths for a set of rules, leaving out those that do not exist."""
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
    """Return the rights on files that a version knows."""
    known = _REFER - 1
    known |= _REFER if version >= 2 else 0
    known |= _TRUNCATE if version >= 3 else 0
    return known | (_IOCTL_DEV if version >= 5 else 0)


def _described(version: int, handled: int) -> tuple[bytes, int]:
    """Return the attributes of a rule set, of the length that a version takes."""
    attributes = struct.pack("<QQQ", handled, _BIND_AND_CONNECT, _ABSTRACT_SOCKETS_AND_SIGNALS)
    length = 24 if version >= 6 else 16 if version >= 4 else 8
    return attributes, length


def _allow(ruleset: int, descriptor: int, rights: int) -> None:
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        rights &= _OF_FILES
    kernel.call(
        "landlock_add_rule", ruleset, _RULE_PATH_BENEATH, struct.pack("<Qi", rights, descriptor), 0
    )

"""Which arguments sessions may pass to allowed calls, on both machines."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import signal
import socket
import termios

import pytest
from sandbox_walls import run_filter

from envweave.sandbox.walls import policy
from envweave.sandbox.walls.seccomp import ALLOW, MACHINES, assemble, refuse

PID = 4711
EPERM, EINVAL, ENOSYS = refuse(errno.EPERM), refuse(errno.EINVAL), refuse(errno.ENOSYS)
NULL = 0
POINTER = 0x7FFF_1234_5678


def session(**options):
    """Return the programs of a session's policy."""
    given = {"shell": False, "pid": None, "signals_scoped": False, "branching": False, **options}
    return {machine: assemble(policy.session_policy(**given), machine) for machine in MACHINES}


PYTHON = session()
SHELL = session(shell=True)
WITHOUT_NAMESPACES = session(pid=PID)
SHARING_FILES = session(pid=PID, files_shared=True)
NOT_COUNTED = session(memory_counted=False)
LENGTHS_NOT_KEPT = session(pid=PID, lengths_kept=False)


def answer(programs, name, *arguments):
    """The action for a call, the same on each machine that has it."""
    given = tuple(argument & (1 << 64) - 1 for argument in arguments)
    found = {
        run_filter(programs[machine], known.audit, known.numbers[name], given)
        for machine, known in MACHINES.items()
        if name in known.numbers
    }
    (action,) = found
    return action


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        # Opening: truncating needs write access.
        ("openat", (-100, POINTER, os.O_RDONLY | os.O_CLOEXEC), ALLOW),
        ("openat", (-100, POINTER, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), ALLOW),
        ("openat", (-100, POINTER, os.O_RDWR | os.O_TRUNC), ALLOW),
        ("openat", (-100, POINTER, os.O_RDONLY | os.O_TRUNC), EPERM),
        ("openat", (-100, POINTER, os.O_ACCMODE | os.O_TRUNC), EPERM),
        ("open", (POINTER, os.O_RDONLY | os.O_TRUNC), EPERM),
        ("open", (POINTER, os.O_WRONLY | os.O_TRUNC), ALLOW),
        # Descriptors: no signals from the kernel, no bigger pipes.
        ("fcntl", (3, fcntl.F_DUPFD_CLOEXEC, 10), ALLOW),
        ("fcntl", (3, fcntl.F_SETFL, os.O_NONBLOCK), ALLOW),
        ("fcntl", (3, fcntl.F_SETLKW, POINTER), ALLOW),
        ("fcntl", (3, fcntl.F_OFD_SETLK, POINTER), ALLOW),
        ("fcntl", (3, fcntl.F_SETOWN, PID), EINVAL),
        ("fcntl", (3, fcntl.F_SETSIG, signal.SIGKILL), EINVAL),
        ("fcntl", (3, 15, POINTER), EINVAL),
        ("fcntl", (3, fcntl.F_SETPIPE_SZ, 1 << 20), EINVAL),
        ("fcntl", (3, fcntl.F_SETLEASE, 0), EINVAL),
        ("fcntl", (3, fcntl.F_NOTIFY, 0), EINVAL),
        ("ioctl", (1, termios.TCGETS, POINTER), ALLOW),
        ("ioctl", (1, termios.FIONBIO, POINTER), ALLOW),
        ("ioctl", (1, termios.TIOCSTI, POINTER), refuse(errno.ENOTTY)),
        ("ioctl", (1, termios.TIOCLINUX, POINTER), refuse(errno.ENOTTY)),
        ("ioctl", (1, termios.TIOCSCTTY, 0), refuse(errno.ENOTTY)),
        ("ioctl", (1, termios.FIOASYNC, POINTER), refuse(errno.ENOTTY)),
        ("ioctl", (1, 1 << 32 | termios.TCGETS, POINTER), refuse(errno.ENOTTY)),
        # Memory.
        ("mmap", (0, 1 << 20, 3, 0x22, -1, 0), ALLOW),
        ("mmap", (0, 1 << 21, 3, 0x4_0022, -1, 0), EPERM),
        ("madvise", (POINTER, 4096, 4), ALLOW),
        ("madvise", (POINTER, 4096, 12), EINVAL),
        ("madvise", (POINTER, 4096, 100), EINVAL),
        ("fadvise64", (3, 0, 0, os.POSIX_FADV_SEQUENTIAL), ALLOW),
        ("fadvise64", (3, 0, 0, os.POSIX_FADV_DONTNEED), EPERM),
        ("futex", (POINTER, 0x80, 2), ALLOW),
        ("futex", (POINTER, 0x189, 0), ALLOW),
        ("futex", (POINTER, 0x86, 0), ENOSYS),
        ("futex", (POINTER, 13, 0), ENOSYS),
        # What a process does to itself.
        ("prctl", (15, POINTER), ALLOW),
        ("prctl", (1, signal.SIGKILL), ALLOW),
        ("prctl", (1, 0), EPERM),
        ("prctl", (1, 1 << 32 | signal.SIGKILL), EPERM),
        ("prctl", (4, 1), EPERM),
        ("prctl", (8, 1), EPERM),
        ("prctl", (22, 2, POINTER), EPERM),
        ("prctl", (24, 0), EPERM),
        ("prctl", (28, 0), EPERM),
        ("prctl", (36, 1), EPERM),
        ("prctl", (38, 0), EPERM),
        ("prctl", (47, 2, 21), EPERM),
        ("arch_prctl", (0x1002, POINTER), ALLOW),
        ("arch_prctl", (0x1001, POINTER), EINVAL),
        ("arch_prctl", (0x5001, 1), EINVAL),
        ("prlimit64", (0, resource.RLIMIT_NOFILE, NULL, POINTER), ALLOW),
        ("prlimit64", (PID, resource.RLIMIT_NOFILE, NULL, POINTER), EPERM),
        ("prlimit64", (1 << 32, resource.RLIMIT_NOFILE, NULL, POINTER), EPERM),
        ("capset", (POINTER, POINTER), EPERM),
        ("setresuid", (-1, 1000, -1), EPERM),
        # Sockets.
        ("socketpair", (socket.AF_UNIX, socket.SOCK_STREAM, 0, POINTER), ALLOW),
        ("socketpair", (socket.AF_UNIX, socket.SOCK_DGRAM, 0, POINTER), ALLOW),
        (
            "socketpair",
            (
                socket.AF_UNIX,
                socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC,
                0,
                POINTER,
            ),
            ALLOW,
        ),
        ("socketpair", (socket.AF_UNIX, socket.SOCK_RAW, 0, POINTER), EPERM),
        ("socketpair", (socket.AF_UNIX, socket.SOCK_STREAM, 1, POINTER), EPERM),
        ("socketpair", (socket.AF_INET, socket.SOCK_STREAM, 0, POINTER), EPERM),
        ("socketpair", (30, socket.SOCK_STREAM, 0, POINTER), EPERM),
        ("sendto", (3, POINTER, 10, socket.MSG_NOSIGNAL, NULL, 0), ALLOW),
        ("sendto", (3, POINTER, 10, 0, POINTER, 16), EPERM),
        ("sendto", (3, POINTER, 10, 0, 1 << 32, 16), EPERM),
        ("sendto", (3, POINTER, 1, socket.MSG_OOB, NULL, 0), EPERM),
        # Signals, in a PID namespace.
        ("kill", (1, signal.SIGTERM), ALLOW),
        ("kill", (-1, signal.SIGTERM), ALLOW),
        ("chmod", (POINTER, 0o755), ALLOW),
        ("utimensat", (-100, POINTER, NULL, 0), ALLOW),
        ("truncate", (POINTER, 0), ALLOW),
    ],
)
def test_a_python_session_may_pass(name, arguments, expected):
    assert answer(PYTHON, name, *arguments) == expected


@pytest.mark.parametrize("kind", ["kill", "tgkill", "tkill"])
@pytest.mark.parametrize("target", [0, 1, PID - 1, -PID, -1, 1 << 32 | PID])
def test_without_a_pid_namespace_a_session_can_only_signal_itself(kind, target):
    assert answer(WITHOUT_NAMESPACES, kind, PID, signal.SIGTERM) == ALLOW
    assert answer(WITHOUT_NAMESPACES, kind, target, signal.SIGTERM) == EPERM


def test_where_landlock_confines_signals_the_filter_allows_them():
    programs = session(pid=PID, signals_scoped=True)

    assert answer(programs, "kill", PID + 1, signal.SIGTERM) == ALLOW


@pytest.mark.parametrize(
    "name",
    ["chmod", "fchmod", "fchmodat", "fchmodat2", "utime", "utimes", "utimensat", "futimesat"],
)
def test_modes_and_times_of_files_cannot_change_where_the_user_id_is_shared(name):
    assert answer(SHARING_FILES, name) == refuse(0)
    assert answer(WITHOUT_NAMESPACES, name) == ALLOW


def test_truncate_is_refused_where_neither_mounts_nor_landlock_prevent_it():
    assert answer(LENGTHS_NOT_KEPT, "truncate", POINTER, 0) == EPERM
    assert answer(LENGTHS_NOT_KEPT, "ftruncate", 5, 0) == ALLOW


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (0o010644, ALLOW),
        (0o020644, EPERM),
        (0o060644, EPERM),
        (0o140644, EPERM),
        (0o100644, EPERM),
        (0o000644, EPERM),
    ],
    ids=["pipe", "character device", "block device", "socket", "file", "file by default"],
)
def test_a_shell_session_makes_named_pipes_but_no_devices(mode, expected):
    assert answer(SHELL, "mknod", POINTER, mode, 0) == expected
    assert answer(SHELL, "mknodat", -100, POINTER, mode, 0) == expected


@pytest.mark.parametrize("name", ["setresuid", "setresgid"])
@pytest.mark.parametrize("kept", [-1, 0xFFFF_FFFF])
def test_a_shell_session_may_set_its_current_user_id(name, kept):
    assert answer(SHELL, name, kept, 1000, kept) == ALLOW
    assert answer(SHELL, name, kept, 65534, kept) == refuse(0)
    assert answer(SHELL, name, 1000, 1000, kept) == EPERM
    assert answer(SHELL, name, kept, 1000, 1000) == EPERM


UNSUPPORTED, NO_OPTION = refuse(errno.EOPNOTSUPP), refuse(errno.ENOPROTOOPT)
BRANCHING = session(branching=True)
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16
SO_PEERPIDFD, RWF_DONTCACHE = 77, 0x80


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        # The page cache is shared: its content is not revealed, and nothing can be evicted.
        ("preadv2", (3, POINTER, 1, 0, 0, 0), ALLOW),
        ("preadv2", (3, POINTER, 1, 0, 0, os.RWF_NOWAIT), UNSUPPORTED),
        ("preadv2", (3, POINTER, 1, 0, 0, os.RWF_NOWAIT | 1 << 32), UNSUPPORTED),
        ("preadv2", (3, POINTER, 1, 0, 0, RWF_DONTCACHE), UNSUPPORTED),
        ("pwritev2", (3, POINTER, 1, 0, 0, os.RWF_DSYNC | os.RWF_SYNC | os.RWF_APPEND), ALLOW),
        ("pwritev2", (3, POINTER, 1, 0, 0, RWF_DONTCACHE), UNSUPPORTED),
        # Allocation only where the file size limit applies.
        ("fallocate", (3, 0, 0, 4096), ALLOW),
        ("fallocate", (3, PUNCH_HOLE | KEEP_SIZE, 0, 4096), ALLOW),
        ("fallocate", (3, KEEP_SIZE, 0, 1 << 40), UNSUPPORTED),
        ("fallocate", (3, KEEP_SIZE | 1 << 32, 0, 1 << 40), UNSUPPORTED),
        ("fallocate", (3, ZERO_RANGE | KEEP_SIZE, 0, 1 << 40), UNSUPPORTED),
        # The type of a socket, not the process at the other end.
        ("getsockopt", (3, socket.SOL_SOCKET, socket.SO_ERROR, POINTER, POINTER), ALLOW),
        ("getsockopt", (3, socket.SOL_SOCKET, socket.SO_TYPE, POINTER, POINTER), ALLOW),
        ("getsockopt", (3, socket.SOL_SOCKET, socket.SO_PEERCRED, POINTER, POINTER), NO_OPTION),
        ("getsockopt", (3, socket.SOL_SOCKET, SO_PEERPIDFD, POINTER, POINTER), NO_OPTION),
        ("getsockopt", (3, socket.IPPROTO_TCP, socket.SO_TYPE, POINTER, POINTER), NO_OPTION),
    ],
)
def test_calls_that_reveal_other_processes_are_refused(name, arguments, expected):
    assert answer(PYTHON, name, *arguments) == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, EPERM),
        (3 | mmap.MAP_ANONYMOUS, EPERM),  # MAP_SHARED_VALIDATE
        (mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | 1 << 32, EPERM),
        (mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, ALLOW),
        (mmap.MAP_SHARED, ALLOW),
        (mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4_0000, EPERM),  # MAP_HUGETLB
    ],
)
def test_without_a_memory_cgroup_anonymous_shared_memory_is_refused(flags, expected):
    assert answer(NOT_COUNTED, "mmap", 0, 4096, 3, flags, -1, 0) == expected


@pytest.mark.parametrize("high", [0, 1 << 32, 1 << 63])
def test_sending_sigcont_is_refused(high):
    waking = signal.SIGCONT | high

    for filters in (BRANCHING, SHELL):
        assert answer(filters, "kill", 1, waking) == EPERM
        assert answer(filters, "tkill", 1, waking) == EPERM
        assert answer(filters, "tgkill", 1, 1, waking) == EPERM
        assert answer(filters, "kill", 1, signal.SIGTERM) == ALLOW

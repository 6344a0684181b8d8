"""Which system calls a session may make, as data: calls that are not listed are refused.

`session_policy` is for sessions. `gate_policy` is installed in the template and inherited by every
session: it passes the calls that branch a session to the host, which knows whether it ordered that
branch. Where both have an action for a call, refusal takes precedence over notification, and
notification over permission.
"""

from __future__ import annotations

import errno
import signal
from typing import Final

from envweave.sandbox.walls import kernel
from envweave.sandbox.walls.seccomp import (
    ALL_BITS,
    ALLOW,
    NOTIFY,
    ArgumentCheck,
    Rule,
    RuleCase,
    SeccompPolicy,
    refuse,
)

_EPERM: Final = refuse(errno.EPERM)
_ENOSYS: Final = refuse(errno.ENOSYS)
_EINVAL: Final = refuse(errno.EINVAL)
_SEEMS_DONE: Final = refuse(0)

# Files. Mounts and Landlock protect them; these calls reach nothing else.
_FILES = """
read write readv writev pread64 pwrite64 preadv pwritev lseek close close_range
creat fstat newfstatat stat lstat statx access faccessat faccessat2 readlink readlinkat
getcwd chdir fchdir mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2
link linkat symlink symlinkat ftruncate fsync fdatasync umask getdents getdents64
flock dup dup2 dup3 statfs fstatfs
getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr
"""

# Landlock does not cover these, so where a session has the same user id as files outside and there
# are no mounts, they would reach those files.
_MODES_AND_TIMES = "chmod fchmod fchmodat fchmodat2 utimensat futimesat utime utimes"

_MEMORY = "munmap mprotect mremap brk msync"

# Waiting, and what event loops need.
_EVENTS = """
poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
eventfd eventfd2 pipe pipe2 timerfd_create timerfd_settime timerfd_gettime
"""

# Time. Not `timer_create`, whose timers use kernel memory that no memory limit counts.
_TIME = """
nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times
alarm setitimer getitimer
"""

# Receiving signals. Sending them has separate rules.
_SIGNALS = """
rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend
sigaltstack pause restart_syscall
"""

# Information about the process and the machine, and limits, which it can only lower.
_KNOWLEDGE = """
getpid gettid getppid getuid geteuid getgid getegid getgroups getresuid getresgid
getpgrp getpgid getsid uname getcpu sysinfo getrusage getrandom capget
sched_yield sched_getaffinity sched_getparam sched_getscheduler sched_rr_get_interval
sched_get_priority_max sched_get_priority_min getpriority getrlimit setrlimit
"""

# Threads. Waiting for children is harmless where there are none.
_THREADS = "set_robust_list set_tid_address rseq exit exit_group wait4 waitid"

# Connected socket pairs are the only sockets. Not `sendmsg`, which hides an address and descriptors
# behind a pointer, nor `setsockopt`, which exposes a lot of the kernel.
_SOCKETS = "recvfrom recvmsg shutdown getsockname getpeername"

# Calls that libraries try first, with a fallback if the kernel lacks them. The flags of `clone3`
# and `openat2` are behind a pointer; `cachestat` reveals what others read.
_LACKING = """
clone3 openat2 copy_file_range membarrier futex_waitv futex_wake futex_wait futex_requeue
map_shadow_stack mseal cachestat pidfd_open timer_create
"""

# Extended attributes, which tools copy with a file where they can.
_NO_ATTRIBUTES = """
setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr
"""

_SHELL = "fork vfork execve execveat"

_THREAD = 0x0001_0F00
"""CLONE_VM, FS, FILES, SIGHAND and THREAD, which every thread library passes. Without FILES each
thread would have a separate descriptor table, and with it a separate limit on open files."""
_THREAD_FLAGS = 0x007D_0F00
"""What thread libraries pass: VM, FS, FILES, SIGHAND, THREAD, SYSVSEM, SETTLS, both TIDs, and
DETACHED, which is obsolete."""
_FORK_FLAGS = 0x0130_0000
"""PARENT_SETTID, CHILD_SETTID and CHILD_CLEARTID."""
_SPAWN_FLAGS = 0x0000_4100
"""VM and VFORK, as in `posix_spawn`."""
_EXIT_SIGNAL = 0xFF
_SHARED_ANONYMOUS = 0x21
"""MAP_SHARED and MAP_ANONYMOUS. MAP_SHARED_VALIDATE has the bit of MAP_SHARED too."""
_INT = 0xFFFF_FFFF
"""Where the kernel takes an `int`, it ignores the upper half of the register."""
_BRANCH_NAMESPACES = kernel.NEW_USERS | kernel.NEW_MOUNTS


def _one_of(argument: int, *values: int, mask: int = ALL_BITS) -> ArgumentCheck:
    return ArgumentCheck(argument, values, mask)


def _without(argument: int, bits: int) -> ArgumentCheck:
    return ArgumentCheck(argument, (0,), bits)


def _with(argument: int, bits: int) -> ArgumentCheck:
    return ArgumentCheck(argument, (bits,), bits)


def _sending(signal_at: int, target: ArgumentCheck | None) -> Rule:
    """Return the rule for a call that sends a signal, by the position of the signal number.

    Never SIGCONT: the host stops a session that uses CPU while no run is open, and one that was
    closed before its branches, and only the host may resume them.
    """
    continuing = RuleCase((ArgumentCheck(signal_at, (int(signal.SIGCONT),), _INT),), _EPERM)
    if target is None:
        return Rule(ALLOW, (continuing,))
    return Rule(_EPERM, (continuing, RuleCase((target,), ALLOW)))


def _only_if(*checks: ArgumentCheck, otherwise: int = _EPERM) -> Rule:
    return Rule(otherwise, (RuleCase(checks, ALLOW),))


# With any flag besides those that the libraries pass (a namespace, another parent, a tracer) it is
# neither a thread nor a fork.
_NEW_THREAD = RuleCase((_with(0, _THREAD), _without(0, ALL_BITS & ~_THREAD_FLAGS)), ALLOW)
# The exit signal of a process is SIGCHLD or none, never SIGCONT.
_NEW_PROCESS = RuleCase(
    (
        _without(0, ALL_BITS & ~(_FORK_FLAGS | _SPAWN_FLAGS | _EXIT_SIGNAL)),
        _one_of(0, 0, int(signal.SIGCHLD), mask=_EXIT_SIGNAL),
    ),
    ALLOW,
)
_NEW_BRANCH = RuleCase((_one_of(0, signal.SIGCHLD, mask=ALL_BITS & ~_FORK_FLAGS),), ALLOW)

_O_ACCMODE, _O_WRONLY, _O_RDWR, _O_TRUNC = 0o3, 0o1, 0o2, 0o1000


def _opening(flags: int) -> Rule:
    """Return the rule for a call that opens files, by the position of its flags.

    POSIX does not define truncating a file while opening it for reading, and Landlock before
    version 3 does not check it.
    """
    return Rule(
        _EPERM,
        (
            RuleCase((_without(flags, _O_TRUNC),), ALLOW),
            RuleCase((_one_of(flags, _O_WRONLY, _O_RDWR, mask=_O_ACCMODE),), ALLOW),
        ),
    )


_CHECKED: Final = {
    "open": _opening(1),
    "openat": _opening(2),
    # No huge pages: the machine has one pool of them, which no process limit counts.
    "mmap": _only_if(_without(3, 0x4_0000)),
    # Not MERGEABLE: the duration of a write would reveal what other sessions have in memory.
    "madvise": _only_if(
        _one_of(2, 0, 1, 2, 3, 4, 8, 10, 11, 14, 15, 16, 17, 18, 19, 22, 23, 24, 102, 103),
        otherwise=_EINVAL,
    ),
    # Not DONTNEED: it evicts what others have in the page cache.
    "fadvise64": _only_if(_one_of(3, 0, 1, 2, 3, 5)),
    # Allocation within the file, and holes. With other modes file systems allocate beyond the
    # end without checking the file size limit.
    "fallocate": _only_if(_one_of(1, 0, 3, mask=_INT), otherwise=refuse(errno.EOPNOTSUPP)),
    # With the flags DSYNC, SYNC and APPEND. Not NOWAIT, which reveals what others have read, as
    # it only succeeds for cached pages, nor DONTCACHE, which evicts them.
    "preadv2": _only_if(_without(5, ALL_BITS & ~0b1_0110), otherwise=refuse(errno.EOPNOTSUPP)),
    "pwritev2": _only_if(_without(5, ALL_BITS & ~0b1_0110), otherwise=refuse(errno.EOPNOTSUPP)),
    # Duplicates, flags and locks. Not the owner of a descriptor, which the kernel sends signals
    # to, nor the size of a pipe, which is memory that no process limit counts.
    "fcntl": _only_if(
        _one_of(1, 0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032, 1034), otherwise=_EINVAL
    ),
    # Terminal attributes and size, bytes to read, blocking mode, close on exec.
    "ioctl": _only_if(
        _one_of(1, 0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x802C_542A),
        otherwise=refuse(errno.ENOTTY),
    ),
    # Names of the thread and of its memory, and queries about itself. It may set the parent-death
    # signal, and never clear it.
    "prctl": Rule(
        _EPERM,
        (
            RuleCase((_one_of(0, 3, 15, 16, 21, 39, 51, 0x5356_4D41),), ALLOW),
            RuleCase((_one_of(0, 1), _one_of(1, signal.SIGKILL)), ALLOW),
        ),
    ),
    # The base of thread-local memory, and permission to use AMX registers.
    "arch_prctl": _only_if(_one_of(0, 0x1002, 0x1003, 0x1021, 0x1022, 0x1023), otherwise=_EINVAL),
    # Not the operations with priority inheritance, which had the worst vulnerabilities.
    "futex": _only_if(_one_of(1, 0, 1, 3, 4, 5, 9, 10, mask=ALL_BITS & ~0x180), otherwise=_ENOSYS),
    # Its own limits, which can only be lowered.
    "prlimit64": _only_if(_one_of(0, 0)),
    # Unix sockets: a stream, datagrams or packets, with NONBLOCK and CLOEXEC.
    "socketpair": _only_if(
        _one_of(0, 1), _one_of(1, 1, 2, 5, mask=ALL_BITS & ~0x8_0800), _one_of(2, 0)
    ),
    # Type and state of a socket: DEBUG to KEEPALIVE, LINGER, PASSCRED to SNDTIMEO, ACCEPTCONN,
    # PROTOCOL and DOMAIN. Not the process at the other end, nor its pidfd.
    "getsockopt": _only_if(
        _one_of(1, 1, mask=_INT),
        _one_of(2, *range(1, 10), 13, 16, 18, 19, 20, 21, 30, 38, 39, mask=_INT),
        otherwise=refuse(errno.ENOPROTOOPT),
    ),
    # Without an address, by which a datagram could reach any socket of the host with a path, and
    # without out-of-band data.
    "sendto": _only_if(_one_of(4, 0), _without(3, 1)),
    # It is implemented by `splice`. Programs fall back to reading and writing.
    "sendfile": Rule(_EINVAL),
    **dict.fromkeys(_LACKING.split(), Rule(_ENOSYS)),
    **dict.fromkeys(_NO_ATTRIBUTES.split(), Rule(refuse(errno.ENOTSUP))),
}

_S_IFMT, _S_IFIFO = 0o170000, 0o010000

# Before it starts a program, `make` sets its user id to the current one. Without privileges no
# process can set another; where user ids are unmapped, the current one appears as the overflow id
# 65534, which the kernel would refuse to set.
_UNCHANGED, _ID, _NOBODY = 0xFFFF_FFFF, 0xFFFF_FFFF, 65534
_REAL_AND_SAVED_UNCHANGED = (_one_of(0, _UNCHANGED, mask=_ID), _one_of(2, _UNCHANGED, mask=_ID))
_SAME_IDENTITY = Rule(
    _EPERM,
    (
        RuleCase((*_REAL_AND_SAVED_UNCHANGED, _one_of(1, _NOBODY, mask=_ID)), _SEEMS_DONE),
        RuleCase(_REAL_AND_SAVED_UNCHANGED, ALLOW),
    ),
)


def session_policy(
    *,
    shell: bool,
    pid: int | None,
    signals_scoped: bool,
    branching: bool,
    memory_counted: bool = True,
    files_shared: bool = False,
    lengths_kept: bool = True,
) -> SeccompPolicy:
    """Return the policy of a session.

    Args:
        shell: Whether it may start processes and programs.
        pid: Its process id where it is in the PID namespace of the host, else `None`.
        signals_scoped: Whether Landlock confines its signals.
        branching: Whether it may branch, with permission of the fork gate.
        memory_counted: Whether a cgroup counts its memory. If not, anonymous shared memory is
            refused: all its pages stay while one of them is mapped, and no process limit counts
            them.
        files_shared: Whether files outside that it can name have its own user id. Then changing
            the mode or the times of a file has no effect, but seems to succeed.
        lengths_kept: Whether mounts or Landlock prevent truncating files outside.
    """
    names = f"{_FILES} {_MEMORY} {_EVENTS} {_TIME} {_SIGNALS} {_KNOWLEDGE} {_THREADS} {_SOCKETS}"
    rules = {**dict.fromkeys(names.split(), Rule(ALLOW)), **_CHECKED}
    modes = Rule(_SEEMS_DONE if files_shared else ALLOW)
    rules.update(dict.fromkeys(_MODES_AND_TIMES.split(), modes))
    rules["truncate"] = Rule(ALLOW if lengths_kept else _EPERM)
    target = None if pid is None or signals_scoped else _one_of(0, pid)
    rules["kill"] = rules["tkill"] = _sending(1, target)
    rules["tgkill"] = _sending(2, target)
    if not memory_counted:
        shared = RuleCase((_with(3, _SHARED_ANONYMOUS),), _EPERM)
        rules["mmap"] = Rule(_EPERM, (shared, *rules["mmap"].cases))
    new_tasks = [_NEW_THREAD]
    if shell:
        new_tasks.append(_NEW_PROCESS)
        rules.update(dict.fromkeys(_SHELL.split(), Rule(ALLOW)))
        # Named pipes only: no devices, no sockets.
        rules["mknod"] = _only_if(_one_of(1, _S_IFIFO, mask=_S_IFMT))
        rules["mknodat"] = _only_if(_one_of(2, _S_IFIFO, mask=_S_IFMT))
        rules["setresuid"] = rules["setresgid"] = _SAME_IDENTITY
        if pid is None:
            # Outside a PID namespace, a process that leaves the session's group would outlive it.
            rules["setsid"] = rules["setpgid"] = Rule(ALLOW)
    if branching:
        new_tasks.append(_NEW_BRANCH)
        rules["fork"] = Rule(ALLOW)
        rules["unshare"] = _only_if(_one_of(0, _BRANCH_NAMESPACES))
        # For a branch, to drop its capabilities in the user namespace that it enters.
        rules["capset"] = Rule(ALLOW)
    rules["clone"] = Rule(_EPERM, tuple(new_tasks))
    return SeccompPolicy(rules, default=_EPERM, unknown=_ENOSYS)


def gate_policy() -> SeccompPolicy:
    """Return the policy of the fork gate, for the template and all its sessions.

    It allows threads, and forks into a new PID namespace, which the template makes and a session's
    policy refuses; and every namespace except the two that a branch enters.
    """
    return SeccompPolicy(
        {
            "fork": Rule(NOTIFY),
            "vfork": Rule(NOTIFY),
            "clone": Rule(
                NOTIFY,
                (
                    RuleCase((_with(0, kernel.NEW_PIDS),), ALLOW),
                    RuleCase((_with(0, _THREAD),), ALLOW),
                ),
            ),
            "unshare": Rule(ALLOW, (RuleCase((_one_of(0, _BRANCH_NAMESPACES),), NOTIFY),)),
        },
        default=ALLOW,
        unknown=ALLOW,
    )

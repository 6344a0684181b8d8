"""Which system calls a session may make, as data: what is not named here is refused.

`session_policy` is for sessions. `gate_policy` stands in the template, under which every session
lives: it hands the calls that branch a session to the host, which alone knows whether it asked for
that branch. Where both speak of a call, refused counts before told, and told before allowed.
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

# Files. The walls around them are the mounts and Landlock; these calls reach no further.
_FILES = """
read write readv writev pread64 pwrite64 preadv pwritev lseek close close_range
creat fstat newfstatat stat lstat statx access faccessat faccessat2 readlink readlinkat
getcwd chdir fchdir mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2
link linkat symlink symlinkat ftruncate fsync fdatasync umask getdents getdents64
flock dup dup2 dup3 statfs fstatfs
getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr
"""

# Landlock does not look at these, so where a session shares its user id with files outside and no
# mounts stand between, they would reach those.
_MODES_AND_TIMES = "chmod fchmod fchmodat fchmodat2 utimensat futimesat utime utimes"

_MEMORY = "munmap mprotect mremap brk msync"

# Waiting, and what event loops wait for.
_EVENTS = """
poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
eventfd eventfd2 pipe pipe2 timerfd_create timerfd_settime timerfd_gettime
"""

# Time. Not `timer_create`, whose timers are kernel memory that no limit on memory counts.
_TIME = """
nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times
alarm setitimer getitimer
"""

# Signals received. Those that are sent have rules of their own.
_SIGNALS = """
rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend
sigaltstack pause restart_syscall
"""

# What a process may know of itself and of the machine, and limits, which it can only lower.
_KNOWLEDGE = """
getpid gettid getppid getuid geteuid getgid getegid getgroups getresuid getresgid
getpgrp getpgid getsid uname getcpu sysinfo getrusage getrandom capget
sched_yield sched_getaffinity sched_getparam sched_getscheduler sched_rr_get_interval
sched_get_priority_max sched_get_priority_min getpriority getrlimit setrlimit
"""

# The life of a thread, and its end. Whoever waits for children where there are none is told so.
_THREADS = "set_robust_list set_tid_address rseq exit exit_group wait4 waitid"

# A pair of connected sockets is the one kind there is; what its ends can do. Not `sendmsg`, which
# hides an address and descriptors behind a pointer, nor `setsockopt`, a wide door to the kernel.
_SOCKETS = "recvfrom recvmsg shutdown getsockname getpeername"

# What libraries try first, and go on without if told that the kernel lacks it. The flags of
# `clone3` and `openat2` are behind a pointer; `cachestat` tells what others read.
_LACKING = """
clone3 openat2 copy_file_range membarrier futex_waitv futex_wake futex_wait futex_requeue
map_shadow_stack mseal cachestat pidfd_open timer_create
"""

# Attributes that a tool copies along with a file where it can.
_NO_ATTRIBUTES = """
setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr
"""

_SHELL = "fork vfork execve execveat"

_THREAD = 0x0001_0F00
"""CLONE_VM, FS, FILES, SIGHAND and THREAD, which every thread library passes. Without FILES each
thread would have a table of descriptors, and with it a limit on open files, of its own."""
_THREAD_FLAGS = 0x007D_0F00
"""What thread libraries pass: VM, FS, FILES, SIGHAND, THREAD, SYSVSEM, SETTLS, both TIDs, and
DETACHED, which has no meaning any more."""
_FORK_FLAGS = 0x0130_0000
"""PARENT_SETTID, CHILD_SETTID and CHILD_CLEARTID."""
_SPAWN_FLAGS = 0x0000_4100
"""VM and VFORK, as in `posix_spawn`."""
_EXIT_SIGNAL = 0xFF
_SHARED_ANONYMOUS = 0x21
"""MAP_SHARED and MAP_ANONYMOUS. MAP_SHARED_VALIDATE has the bit of MAP_SHARED too."""
_INT = 0xFFFF_FFFF
"""Where the kernel takes an `int`, the upper half of the register means nothing."""
_BRANCH_NAMESPACES = kernel.NEW_USERS | kernel.NEW_MOUNTS


def _one_of(argument: int, *values: int, mask: int = ALL_BITS) -> ArgumentCheck:
    return ArgumentCheck(argument, values, mask)


def _without(argument: int, bits: int) -> ArgumentCheck:
    return ArgumentCheck(argument, (0,), bits)


def _with(argument: int, bits: int) -> ArgumentCheck:
    return ArgumentCheck(argument, (bits,), bits)


def _sending(signal_at: int, target: ArgumentCheck | None) -> Rule:
    """Return the rule of a call that sends a signal, by the place of its number.

    Never SIGCONT: the host stops a session that works while no run is open, and one that was closed
    before its branches, and only the host may wake them.
    """
    continuing = RuleCase((ArgumentCheck(signal_at, (int(signal.SIGCONT),), _INT),), _EPERM)
    if target is None:
        return Rule(ALLOW, (continuing,))
    return Rule(_EPERM, (continuing, RuleCase((target,), ALLOW)))


def _only_if(*checks: ArgumentCheck, otherwise: int = _EPERM) -> Rule:
    return Rule(otherwise, (RuleCase(checks, ALLOW),))


# With any flag beside those that the libraries pass (a namespace, a parent of one's choice, a
# tracer) it is no thread and no fork.
_NEW_THREAD = RuleCase((_with(0, _THREAD), _without(0, ALL_BITS & ~_THREAD_FLAGS)), ALLOW)
# A process tells its parent of its end by SIGCHLD or not at all, never by SIGCONT.
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
    """Return the rule of a call that opens files, by the place of its flags.

    Cutting a file short while opening it for reading is nothing that POSIX gives a meaning to, and
    Landlock before its third version overlooks it.
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
    # No huge pages: the machine has one pool of them, which no limit of a process counts.
    "mmap": _only_if(_without(3, 0x4_0000)),
    # Not MERGEABLE: how long a write takes would tell what other sessions hold in memory.
    "madvise": _only_if(
        _one_of(2, 0, 1, 2, 3, 4, 8, 10, 11, 14, 15, 16, 17, 18, 19, 22, 23, 24, 102, 103),
        otherwise=_EINVAL,
    ),
    # Not DONTNEED: it drops what others have in the page cache.
    "fadvise64": _only_if(_one_of(3, 0, 1, 2, 3, 5)),
    # Room as far as the file reaches, and holes. With other modes file systems give room beyond
    # the end, at once and without a look at the limit on a file's size.
    "fallocate": _only_if(_one_of(1, 0, 3, mask=_INT), otherwise=refuse(errno.EOPNOTSUPP)),
    # With the flags DSYNC, SYNC and APPEND. Not NOWAIT, which tells what others have read, as it
    # finds only that in the page cache, nor DONTCACHE, which drops it from there.
    "preadv2": _only_if(_without(5, ALL_BITS & ~0b1_0110), otherwise=refuse(errno.EOPNOTSUPP)),
    "pwritev2": _only_if(_without(5, ALL_BITS & ~0b1_0110), otherwise=refuse(errno.EOPNOTSUPP)),
    # Duplicates, flags and locks. Not the owner of a descriptor, whom the kernel sends signals on
    # its behalf, nor the size of a pipe, which is memory that no limit of a process counts.
    "fcntl": _only_if(
        _one_of(1, 0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032, 1034), otherwise=_EINVAL
    ),
    # Is it a terminal, how wide, how much is there to read, blocking or not, closed on exec.
    "ioctl": _only_if(
        _one_of(1, 0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x802C_542A),
        otherwise=refuse(errno.ENOTTY),
    ),
    # Names of the thread and of its memory, and what it may ask of itself. That it dies with its
    # parent it may wish, and never take back.
    "prctl": Rule(
        _EPERM,
        (
            RuleCase((_one_of(0, 3, 15, 16, 21, 39, 51, 0x5356_4D41),), ALLOW),
            RuleCase((_one_of(0, 1), _one_of(1, signal.SIGKILL)), ALLOW),
        ),
    ),
    # The base of thread-local memory, and leave to use wide matrix registers.
    "arch_prctl": _only_if(_one_of(0, 0x1002, 0x1003, 0x1021, 0x1022, 0x1023), otherwise=_EINVAL),
    # Not the operations with inherited priority: the worst faults of futexes were theirs.
    "futex": _only_if(_one_of(1, 0, 1, 3, 4, 5, 9, 10, mask=ALL_BITS & ~0x180), otherwise=_ENOSYS),
    # Limits of oneself, which can only be lowered.
    "prlimit64": _only_if(_one_of(0, 0)),
    # Unix sockets: a stream, datagrams or packets, with NONBLOCK and CLOEXEC.
    "socketpair": _only_if(
        _one_of(0, 1), _one_of(1, 1, 2, 5, mask=ALL_BITS & ~0x8_0800), _one_of(2, 0)
    ),
    # Of what kind a socket is and how it stands: DEBUG to KEEPALIVE, LINGER, PASSCRED to SNDTIMEO,
    # ACCEPTCONN, PROTOCOL and DOMAIN. Not who is at the other end, nor a descriptor of him.
    "getsockopt": _only_if(
        _one_of(1, 1, mask=_INT),
        _one_of(2, *range(1, 10), 13, 16, 18, 19, 20, 21, 30, 38, 39, mask=_INT),
        otherwise=refuse(errno.ENOPROTOOPT),
    ),
    # Without an address, by which a datagram reaches any socket of the host that has a path, and
    # nothing out of band.
    "sendto": _only_if(_one_of(4, 0), _without(3, 1)),
    # A copy by the machinery of `splice`. Whoever is told this falls back to reading and writing.
    "sendfile": Rule(_EINVAL),
    **dict.fromkeys(_LACKING.split(), Rule(_ENOSYS)),
    **dict.fromkeys(_NO_ATTRIBUTES.split(), Rule(refuse(errno.ENOTSUP))),
}

_S_IFMT, _S_IFIFO = 0o170000, 0o010000

# Before it starts a program, `make` takes the identity that it has. Without rights nobody can take
# another; where user ids have no map, everybody seems to be the nobody that the kernel shows, and
# the kernel would refuse to make somebody of him.
_KEPT, _ID, _NOBODY = 0xFFFF_FFFF, 0xFFFF_FFFF, 65534
_REAL_AND_SAVED_KEPT = (_one_of(0, _KEPT, mask=_ID), _one_of(2, _KEPT, mask=_ID))
_SAME_IDENTITY = Rule(
    _EPERM,
    (
        RuleCase((*_REAL_AND_SAVED_KEPT, _one_of(1, _NOBODY, mask=_ID)), _SEEMS_DONE),
        RuleCase(_REAL_AND_SAVED_KEPT, ALLOW),
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
    """Return what the system calls of a session get.

    Args:
        shell: Whether it may start processes and programs.
        pid: Its process id where it shares the process ids of the host, else `None`.
        signals_scoped: Whether Landlock keeps its signals inside.
        branching: Whether it may ask the host, by the gate, to branch.
        memory_counted: Whether a cgroup counts its memory. If not, it may not have memory that is
            shared and has no file: all pages stay while one of them is mapped, and no limit of a
            process counts them.
        files_shared: Whether files outside that it can name have its own user id. Then to change
            the mode or the times of a file does nothing, and seems done.
        lengths_kept: Whether mounts or Landlock keep it from cutting files outside short.
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
    births = [_NEW_THREAD]
    if shell:
        births.append(_NEW_PROCESS)
        rules.update(dict.fromkeys(_SHELL.split(), Rule(ALLOW)))
        # Pipes with a name, and nothing else that has one.
        rules["mknod"] = _only_if(_one_of(1, _S_IFIFO, mask=_S_IFMT))
        rules["mknodat"] = _only_if(_one_of(2, _S_IFIFO, mask=_S_IFMT))
        rules["setresuid"] = rules["setresgid"] = _SAME_IDENTITY
        if pid is None:
            # Elsewhere who leaves the session's process group would outlive it.
            rules["setsid"] = rules["setpgid"] = Rule(ALLOW)
    if branching:
        births.append(_NEW_BRANCH)
        rules["fork"] = Rule(ALLOW)
        rules["unshare"] = _only_if(_one_of(0, _BRANCH_NAMESPACES))
        # What a branch has in the user namespace that it enters, it drops.
        rules["capset"] = Rule(ALLOW)
    rules["clone"] = Rule(_EPERM, tuple(births))
    return SeccompPolicy(rules, default=_EPERM, unknown=_ENOSYS)


def gate_policy() -> SeccompPolicy:
    """Return the policy of the gate, for the template and all its sessions.

    Threads pass, and births into process ids of their own, which a session's policy refuses and
    the template makes. So does every namespace but the two that a branch enters.
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

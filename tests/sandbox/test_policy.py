"""Which calls sessions may make, according to the assembled programs of both machines."""

from __future__ import annotations

import errno
import random
import signal

import pytest
from sandbox_walls import run_filter

from envweave.sandbox.walls import policy
from envweave.sandbox.walls.seccomp import ALLOW, MACHINES, NOTIFY, assemble, refuse

PID = 4711

# Flags of clone.
VM, FS, FILES, SIGHAND, PTRACE, VFORK = 0x100, 0x200, 0x400, 0x800, 0x2000, 0x4000
PARENT, THREAD, SYSVSEM, SETTLS = 0x8000, 0x1_0000, 0x4_0000, 0x8_0000
PARENT_SETTID, CHILD_CLEARTID, CHILD_SETTID = 0x10_0000, 0x20_0000, 0x100_0000
PIDFD, UNTRACED = 0x1000, 0x80_0000
GLIBC_THREAD = (
    VM | FS | FILES | SIGHAND | THREAD | SYSVSEM | SETTLS | PARENT_SETTID | CHILD_CLEARTID
)
MUSL_THREAD = GLIBC_THREAD | 0x40_0000
GLIBC_FORK = CHILD_CLEARTID | CHILD_SETTID | signal.SIGCHLD
POSIX_SPAWN = VM | VFORK | signal.SIGCHLD
NEW_TIME, NEW_MOUNTS, NEW_CGROUP, NEW_UTS = 0x80, 0x2_0000, 0x200_0000, 0x400_0000
NEW_IPC, NEW_USERS, NEW_PIDS, NEW_NET = 0x800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000
NAMESPACES = (NEW_MOUNTS, NEW_CGROUP, NEW_UTS, NEW_IPC, NEW_USERS, NEW_PIDS, NEW_NET)
"""Of time there is no flag of `clone`: that bit belongs to the signal there."""

SESSIONS = {
    "python": policy.session_policy(shell=False, pid=None, signals_scoped=False, branching=False),
    "branching": policy.session_policy(shell=False, pid=None, signals_scoped=True, branching=True),
    "confined by landlock": policy.session_policy(
        shell=False,
        pid=PID,
        signals_scoped=False,
        branching=False,
        files_shared=True,
        lengths_kept=False,
    ),
    "shell": policy.session_policy(shell=True, pid=None, signals_scoped=True, branching=False),
    "shell confined by landlock": policy.session_policy(
        shell=True, pid=PID, signals_scoped=False, branching=False
    ),
}
PROGRAMS = {
    (name, machine): assemble(one, machine)
    for name, one in {**SESSIONS, "gate": policy.gate_policy()}.items()
    for machine in MACHINES
}


def action(session: str, machine: str, name: str, *arguments: int) -> int:
    known = MACHINES[machine]
    return run_filter(PROGRAMS[session, machine], known.audit, known.numbers[name], arguments)


def answers(session: str, name: str, *arguments: int) -> set[int]:
    """The action for a call, on each machine that has it."""
    found = {
        action(session, machine, name, *arguments)
        for machine, known in MACHINES.items()
        if name in known.numbers
    }
    assert found, f"no machine has {name}"
    return found


NEVER = {
    "namespaces and mounts": """mount umount2 pivot_root chroot setns open_tree move_mount fsopen
        fsconfig fsmount fspick mount_setattr statmount listmount open_tree_attr""",
    "other processes": """ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_open
        pidfd_getfd pidfd_send_signal rt_sigqueueinfo rt_tgsigqueueinfo process_mrelease
        move_pages migrate_pages""",
    "wide doors to the kernel": """bpf perf_event_open userfaultfd io_uring_setup io_uring_enter
        io_uring_register io_setup io_submit seccomp keyctl add_key request_key fanotify_init
        inotify_init inotify_init1 inotify_add_watch quotactl quotactl_fd lookup_dcookie
        name_to_handle_at open_by_handle_at splice tee vmsplice sendfile copy_file_range
        remap_file_pages modify_ldt set_thread_area pkey_alloc pkey_mprotect landlock_create_ruleset
        landlock_add_rule landlock_restrict_self lsm_set_self_attr""",
    "the machine": """reboot kexec_load kexec_file_load init_module finit_module delete_module
        swapon swapoff iopl ioperm acct syslog sethostname setdomainname settimeofday clock_settime
        adjtimex clock_adjtime vhangup sync syncfs personality""",
    "the network": """socket connect bind listen accept accept4 sendmsg sendmmsg recvmmsg
        setsockopt""",
    "who one is": """setuid setgid setreuid setregid setfsuid setfsgid
        setgroups chown fchown lchown fchownat setxattr lsetxattr fsetxattr removexattr
        setxattrat removexattrat file_setattr""",
    "memory that no limit counts": """memfd_create memfd_secret shmget shmat shmctl semget semop
        semctl semtimedop msgget msgsnd msgrcv msgctl mq_open mq_unlink mq_timedsend timer_create
        timer_settime mlock mlock2 mlockall""",
    "the share of the machine": """sched_setaffinity sched_setscheduler sched_setparam sched_setattr
        setpriority ioprio_set mbind set_mempolicy set_mempolicy_home_node""",
    "what others do": "mincore cachestat get_mempolicy",
    "what hides its flags": "clone3 openat2",
}


@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.parametrize("family", NEVER)
def test_no_session_may_ever_call(family, session):
    dice = random.Random(family)
    arguments = [(), (PID,), (0, PID), *(tuple(dice.randbytes(6)) for _ in range(20))]

    allowed = {
        name
        for name in NEVER[family].split()
        for given in arguments
        if ALLOW in answers(session, name, *given)
    }

    assert allowed == set()


@pytest.mark.parametrize("session", ["python", "branching", "confined by landlock"])
@pytest.mark.parametrize("name", ["vfork", "execve", "execveat", "mknodat", "setsid", "setresuid"])
def test_python_sessions_start_no_program(session, name):
    assert answers(session, name) == {refuse(errno.EPERM)}


@pytest.mark.parametrize("name", ["fork", "vfork", "execve", "execveat", "wait4", "setsid"])
def test_shell_sessions_start_programs(name):
    assert answers("shell", name) == {ALLOW}


@pytest.mark.parametrize("name", ["setsid", "setpgid"])
def test_without_a_pid_namespace_a_shell_session_stays_in_its_process_group(name):
    assert answers("shell confined by landlock", name) == {refuse(errno.EPERM)}


@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.parametrize("flags", [GLIBC_THREAD, MUSL_THREAD])
def test_every_session_may_start_threads(session, flags):
    assert answers(session, "clone", flags, 0x7000, 0, 0, 0) == {ALLOW}


@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.parametrize("flag", [VM, FS, FILES, SIGHAND, THREAD])
def test_a_thread_shares_all_that_threads_share(session, flag):
    assert answers(session, "clone", GLIBC_THREAD & ~flag) == {refuse(errno.EPERM)}


@pytest.mark.parametrize("session", SESSIONS)
def test_no_process_can_resume_its_parent_by_its_exit_signal(session):
    assert answers(session, "clone", int(signal.SIGCONT)) == {refuse(errno.EPERM)}


@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.parametrize("base", [0, signal.SIGCHLD, GLIBC_FORK, GLIBC_THREAD, POSIX_SPAWN])
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_no_session_enters_a_namespace_by_clone(session, base, namespace):
    assert answers(session, "clone", base | namespace) == {refuse(errno.EPERM)}


@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.parametrize("flag", [PTRACE, UNTRACED, PARENT, PIDFD, 1 << 32, 1 << 63])
@pytest.mark.parametrize("base", [GLIBC_THREAD, GLIBC_FORK])
def test_no_session_passes_other_flags_to_clone(session, flag, base):
    assert answers(session, "clone", base | flag) == {refuse(errno.EPERM)}


@pytest.mark.parametrize("flags", [GLIBC_FORK, signal.SIGCHLD, POSIX_SPAWN, VM, THREAD, 0])
def test_python_sessions_may_only_start_threads(flags):
    assert answers("python", "clone", flags) == {refuse(errno.EPERM)}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (GLIBC_FORK, ALLOW),
        (signal.SIGCHLD, ALLOW),
        (POSIX_SPAWN, refuse(errno.EPERM)),
        (0, refuse(errno.EPERM)),
        (CHILD_CLEARTID | CHILD_SETTID | signal.SIGUSR1, refuse(errno.EPERM)),
    ],
)
def test_a_session_that_branches_may_only_fork_plainly(flags, expected):
    assert answers("branching", "clone", flags) == {expected}


@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.parametrize("flags", [0, NEW_TIME, *NAMESPACES, NEW_USERS | NEW_PIDS, FS, FILES])
def test_unshare_is_refused_to_all_sessions(session, flags):
    assert answers(session, "unshare", flags) == {refuse(errno.EPERM)}


@pytest.mark.parametrize(
    ("session", "expected"), [("branching", ALLOW), ("python", refuse(errno.EPERM))]
)
def test_only_a_session_that_branches_may_enter_the_namespaces_of_a_branch(session, expected):
    assert answers(session, "unshare", NEW_USERS | NEW_MOUNTS) == {expected}
    assert answers(session, "unshare", 1 << 32 | NEW_USERS | NEW_MOUNTS) == {refuse(errno.EPERM)}


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("clone", (GLIBC_FORK,), NOTIFY),
        ("clone", (signal.SIGCHLD | PIDFD,), NOTIFY),
        ("clone", (POSIX_SPAWN,), NOTIFY),
        ("clone", (VM,), NOTIFY),
        ("clone", (GLIBC_THREAD,), ALLOW),
        ("clone", (signal.SIGCHLD | PIDFD | NEW_PIDS | NEW_MOUNTS,), ALLOW),
        ("fork", (), NOTIFY),
        ("vfork", (), NOTIFY),
        ("unshare", (NEW_USERS | NEW_MOUNTS,), NOTIFY),
        ("unshare", (NEW_USERS,), ALLOW),
        ("unshare", (NEW_MOUNTS | NEW_NET,), ALLOW),
        ("read", (), ALLOW),
        ("mount", (), ALLOW),
    ],
)
def test_the_gate_notifies_the_host_of_branching_and_allows_all_else(name, arguments, expected):
    assert answers("gate", name, *arguments) == {expected}

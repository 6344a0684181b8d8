"""The numbers of system calls on the two supported machines.

Policies refer to calls by name. A name that a machine lacks (`fork` on aarch64) is absent from its
table, and so from every program assembled for it.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping
from types import MappingProxyType

AUDIT_ARCH_X86_64 = 0xC000003E
AUDIT_ARCH_AARCH64 = 0xC00000B7
"""The calling convention, as a filter sees it (`linux/audit.h`)."""


def _numbered(table: str) -> Mapping[str, int]:
    """Parse a table whose lines start with the number of their first name."""
    numbers: dict[str, int] = {}
    for line in table.split("\n"):
        first, *names = line.split()
        numbers.update((name, int(first) + offset) for offset, name in enumerate(names))
    return MappingProxyType(numbers)


X86_64 = _numbered("""\
0 read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction
14 rt_sigprocmask rt_sigreturn ioctl pread64 pwrite64 readv writev access pipe select sched_yield
25 mremap msync mincore madvise shmget shmat shmctl dup dup2 pause nanosleep getitimer alarm
38 setitimer getpid sendfile socket connect accept sendto recvfrom sendmsg recvmsg shutdown bind
50 listen getsockname getpeername socketpair setsockopt getsockopt clone fork vfork execve exit
61 wait4 kill uname semget semop semctl shmdt msgget msgsnd msgrcv msgctl fcntl flock fsync
75 fdatasync truncate ftruncate getdents getcwd chdir fchdir rename mkdir rmdir creat link unlink
88 symlink readlink chmod fchmod chown fchown lchown umask gettimeofday getrlimit getrusage
99 sysinfo times ptrace getuid syslog getgid setuid setgid geteuid getegid setpgid getppid getpgrp
112 setsid setreuid setregid getgroups setgroups setresuid getresuid setresgid getresgid getpgid
122 setfsuid setfsgid getsid capget capset rt_sigpending rt_sigtimedwait rt_sigqueueinfo
130 rt_sigsuspend sigaltstack utime mknod uselib personality ustat statfs fstatfs sysfs
140 getpriority setpriority sched_setparam sched_getparam sched_setscheduler sched_getscheduler
146 sched_get_priority_max sched_get_priority_min sched_rr_get_interval mlock munlock mlockall
152 munlockall vhangup modify_ldt pivot_root _sysctl prctl arch_prctl adjtimex setrlimit chroot
162 sync acct settimeofday mount umount2 swapon swapoff reboot sethostname setdomainname iopl
173 ioperm create_module init_module delete_module get_kernel_syms query_module quotactl
180 nfsservctl getpmsg putpmsg afs_syscall tuxcall security gettid readahead setxattr lsetxattr
190 fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr
198 lremovexattr fremovexattr tkill time futex sched_setaffinity sched_getaffinity set_thread_area
206 io_setup io_destroy io_getevents io_submit io_cancel get_thread_area lookup_dcookie
213 epoll_create epoll_ctl_old epoll_wait_old remap_file_pages getdents64 set_tid_address
219 restart_syscall semtimedop fadvise64 timer_create timer_settime timer_gettime timer_getoverrun
226 timer_delete clock_settime clock_gettime clock_getres clock_nanosleep exit_group epoll_wait
233 epoll_ctl tgkill utimes vserver mbind set_mempolicy get_mempolicy mq_open mq_unlink
242 mq_timedsend mq_timedreceive mq_notify mq_getsetattr kexec_load waitid add_key request_key
250 keyctl ioprio_set ioprio_get inotify_init inotify_add_watch inotify_rm_watch migrate_pages
257 openat mkdirat mknodat fchownat futimesat newfstatat unlinkat renameat linkat symlinkat
267 readlinkat fchmodat faccessat pselect6 ppoll unshare set_robust_list get_robust_list splice
276 tee sync_file_range vmsplice move_pages utimensat epoll_pwait signalfd timerfd_create eventfd
285 fallocate timerfd_settime timerfd_gettime accept4 signalfd4 eventfd2 epoll_create1 dup3 pipe2
294 inotify_init1 preadv pwritev rt_tgsigqueueinfo perf_event_open recvmmsg fanotify_init
301 fanotify_mark prlimit64 name_to_handle_at open_by_handle_at clock_adjtime syncfs sendmmsg
308 setns getcpu process_vm_readv process_vm_writev kcmp finit_module sched_setattr sched_getattr
316 renameat2 seccomp getrandom memfd_create kexec_file_load bpf execveat userfaultfd membarrier
325 mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc pkey_free statx io_pgetevents
334 rseq
424 pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen
431 fsconfig fsmount fspick pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2
440 process_madvise epoll_pwait2 mount_setattr quotactl_fd landlock_create_ruleset
445 landlock_add_rule landlock_restrict_self memfd_secret process_mrelease futex_waitv
450 set_mempolicy_home_node cachestat fchmodat2 map_shadow_stack futex_wake futex_wait
456 futex_requeue statmount listmount lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal
463 setxattrat getxattrat listxattrat removexattrat open_tree_attr file_getattr file_setattr""")

AARCH64 = _numbered("""\
0 io_setup io_destroy io_submit io_cancel io_getevents setxattr lsetxattr fsetxattr getxattr
9 lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr getcwd
18 lookup_dcookie eventfd2 epoll_create1 epoll_ctl epoll_pwait dup dup3 fcntl inotify_init1
27 inotify_add_watch inotify_rm_watch ioctl ioprio_set ioprio_get flock mknodat mkdirat unlinkat
36 symlinkat linkat renameat umount2 mount pivot_root nfsservctl statfs fstatfs truncate ftruncate
47 fallocate faccessat chdir fchdir chroot fchmod fchmodat fchownat fchown openat close vhangup
59 pipe2 quotactl getdents64 lseek read write readv writev pread64 pwrite64 preadv pwritev
71 sendfile pselect6 ppoll signalfd4 vmsplice splice tee readlinkat newfstatat fstat sync fsync
83 fdatasync sync_file_range timerfd_create timerfd_settime timerfd_gettime utimensat acct capget
91 capset personality exit exit_group waitid set_tid_address unshare futex set_robust_list
100 get_robust_list nanosleep getitimer setitimer kexec_load init_module delete_module
107 timer_create timer_gettime timer_getoverrun timer_settime timer_delete clock_settime
113 clock_gettime clock_getres clock_nanosleep syslog ptrace sched_setparam sched_setscheduler
120 sched_getscheduler sched_getparam sched_setaffinity sched_getaffinity sched_yield
125 sched_get_priority_max sched_get_priority_min sched_rr_get_interval restart_syscall kill tkill
131 tgkill sigaltstack rt_sigsuspend rt_sigaction rt_sigprocmask rt_sigpending rt_sigtimedwait
138 rt_sigqueueinfo rt_sigreturn setpriority getpriority reboot setregid setgid setreuid setuid
147 setresuid getresuid setresgid getresgid setfsuid setfsgid times setpgid getpgid getsid setsid
158 getgroups setgroups uname sethostname setdomainname getrlimit setrlimit getrusage umask prctl
168 getcpu gettimeofday settimeofday adjtimex getpid getppid getuid geteuid getgid getegid gettid
179 sysinfo mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr msgget msgctl
188 msgrcv msgsnd semget semctl semtimedop semop shmget shmctl shmat shmdt socket socketpair bind
201 listen accept connect getsockname getpeername sendto recvfrom setsockopt getsockopt shutdown
211 sendmsg recvmsg readahead brk munmap mremap add_key request_key keyctl clone execve mmap
223 fadvise64 swapon swapoff mprotect msync mlock munlock mlockall munlockall mincore madvise
234 remap_file_pages mbind get_mempolicy set_mempolicy migrate_pages move_pages rt_tgsigqueueinfo
241 perf_event_open accept4 recvmmsg
260 wait4 prlimit64 fanotify_init fanotify_mark name_to_handle_at open_by_handle_at clock_adjtime
267 syncfs setns sendmmsg process_vm_readv process_vm_writev kcmp finit_module sched_setattr
275 sched_getattr renameat2 seccomp getrandom memfd_create bpf execveat userfaultfd membarrier
284 mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc pkey_free statx io_pgetevents
293 rseq kexec_file_load
424 pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen
431 fsconfig fsmount fspick pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2
440 process_madvise epoll_pwait2 mount_setattr quotactl_fd landlock_create_ruleset
445 landlock_add_rule landlock_restrict_self memfd_secret process_mrelease futex_waitv
450 set_mempolicy_home_node cachestat fchmodat2 map_shadow_stack futex_wake futex_wait
456 futex_requeue statmount listmount lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal
463 setxattrat getxattrat listxattrat removexattrat open_tree_attr file_getattr file_setattr""")

MACHINE = os.uname().machine if sys.platform == "linux" and sys.maxsize > 1 << 32 else "other"
"""The current machine: `x86_64`, `aarch64`, or one that is not supported. A 32-bit interpreter uses
other numbers than the 64-bit kernel under it."""

NUMBERS: Mapping[str, int] = {"x86_64": X86_64, "aarch64": AARCH64}.get(MACHINE, {})
"""The table of the current machine; empty if it is not supported."""


def number(name: str) -> int:
    """Return the number of a call on the current machine.

    Raises:
        OSError: The machine is not supported, or it has no such call. The errno is `ENOSYS`, as if
            the kernel had refused.
    """
    try:
        return NUMBERS[name]
    except KeyError:
        reason = (
            f"{MACHINE} has no such system call"
            if NUMBERS
            else f"only 64-bit Linux on x86_64 and aarch64 is supported, not {MACHINE!r}"
        )
        raise OSError(errno.ENOSYS, f"{name}: {reason}") from None

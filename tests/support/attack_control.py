"""The attacks that may be played where there are no walls, to see that the judge can say no.

Only by a user without rights, and only these. The others would be felt beyond the session: they
signal every process of the user (`kill_all`), stop the host by attaching to it (`ptrace_parent`),
type into the terminal (`tiocsti`), leave objects in the kernel (`sys_msgget`), show what this
machine keeps secret (`proc_1_environ`, `metadata_service`), or would harm it if ever run as root.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping

ESCAPING = frozenset({
    # They get through wherever nothing stops them: the control is of no use if they do not.
    "a_descriptor_of_the_host", "descriptors_with_owners", "devices_by_other_words",
    "drop_what_others_have_read", "folder_moved_from_under", "fork_with_each_flag",
    "futexes_that_inherit", "network_by_bash", "numbers_with_high_words",
    "paths_without_reading", "what_others_have_read",
    "clone_in_every_dress", "connect_abstract", "connect_raw_syscall", "connect_tcp",
    "connect_unix_path", "ctypes_system", "datagram_from_a_pair", "datagram_unix_path",
    "dlopen_dropped_so", "docker_sock", "exec_in_place", "handles_without_reading",
    "host_environ", "int80_compat", "kill_the_template", "listen_server", "memfd_exec",
    "module_os_leak", "os_system", "outlive_the_template", "posix_spawn", "prctl_undo",
    "prlimit_host", "read_canary_dotdot", "read_secret_by_openat2", "read_secret_file",
    "scan_for_processes", "signal_by_a_descriptor", "signal_the_host", "signals_by_other_calls",
    "spoil_the_neighbours_files", "steer_the_host", "symlink_out", "sys_adjtimex", "sys_keyctl",
    "sys_memfd_create_shm", "sys_modify_ldt", "watch_the_host", "write_anywhere",
})  # fmt: skip

HARMLESS = ESCAPING | {
    # Here the kernel, its configuration, or what is no wall may stop them as well.
    "open_while_it_turns",
    "asyncio_leftover", "atexit_os_exit", "bigint_pow", "binary_fd1", "c_loop_no_signals",
    "catch_base_loop", "clone3_raw", "clone_newuser", "close_proto", "cpu_loop",
    "daemon_survives_close", "daemon_that_execs", "del_resurrect_hang", "disk_fill",
    "equals_everything", "equals_everything_object", "exc_no_str", "exotic_families",
    "ext_type_msgpack", "faulthandler_crash_code", "fd_exhaust", "finally_sleep", "flood_proto",
    "forge_the_next_reply", "forge_tool_call", "forge_with_last_id", "format_leak", "gen_frame",
    "hardlink_out", "heap_scan_secret", "host_memory", "huge_stderr", "ignore_signals_loop",
    "io_uring", "kill_own_group", "list_the_host", "mem_bytes", "mem_shared_anon",
    "name_to_handle", "nested_msgpack_bomb", "nul_and_ctrl", "os_exit_zero", "partial_frame_hang",
    "patch_builtins", "perf_events", "pidfd_of_the_host", "poison_modules_persist",
    "print_marker", "ptrace_traceme", "raise_own_limits", "regex_redos", "repr_hang",
    "scm_rights_to_host", "segv", "setuid0", "sigstop_self", "sleep_forever",
    "socketpair_of_others", "steal_next_code", "sys_bpf", "sys_mincore", "sys_mlockall",
    "sys_move_pages", "sys_process_madvise", "sys_statmount", "sys_userfaultfd", "sys_vmsplice",
    "thread_bomb", "thread_survives", "timer_flood", "tool_bad_args", "tool_dunder", "tool_flood",
    "unshare_user", "vm_readv_scan", "wait_for_the_error", "what_was_left_behind",
    "what_was_left_open", "write_into_the_host",
}  # fmt: skip


def bound_processes() -> None:
    """Bound how many processes this user may have: what a wall lets through must not reach far."""
    _bound({resource.RLIMIT_NPROC: 2000})


def bound_this_process() -> None:
    """Bound what this process and its children may use up where there are no walls."""
    _bound(
        {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_FSIZE: 256 << 20,
            resource.RLIMIT_NOFILE: 4096,
            resource.RLIMIT_MEMLOCK: 1 << 20,
        }
    )


def _bound(wanted: Mapping[int, int]) -> None:
    for what, most in wanted.items():
        _, hard = resource.getrlimit(what)
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (bound, bound))

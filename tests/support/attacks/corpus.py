"""The attacks of `tests/sandbox/attacks`, and which of them are harmless without walls."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

FOLDER = Path(__file__).resolve().parents[2] / "sandbox/attacks"

PROMISES = (
    "not_escaped",
    "no_leak",
    "host_ok",
    "sibling_ok",
    "bounded_time",
    "bounded_output",
    "session_ok",
    "status_not_ok",
    "error_reported",
    "no_connect",
    "no_procs_after_close",
    "fresh_session_clean",
    "second_step_real",
    "answer_not_accepted",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """Code that runs in a session, and what must hold afterwards.

    Attributes:
        family: What it abuses, as tables group it.
        source: Where the technique is publicly known from.
        profile: `fork` where the session may start processes.
        timeout_s: How long each step may run.
        pause_s: How long no run is open between two steps.
        must_hold: Some of `PROMISES`.
        steps: Pieces of code, with placeholders, for one fresh session.
        known: By tier, why it gets through there, and why that is borne. The docs say it too.
    """

    id: str
    family: str
    source: str
    profile: Literal["python", "fork"]
    timeout_s: float
    must_hold: tuple[str, ...]
    steps: tuple[str, ...]
    pause_s: float = 0.0
    note: str = ""
    known: Mapping[str, str] = field(default_factory=dict)


def load(folder: Path = FOLDER) -> list[Attack]:
    """Read every attack, by family and id.

    Raises:
        ValueError: A file does not say what an attack must say.
    """
    attacks = [one for path in sorted(folder.glob("*.json")) for one in _read(path)]
    seen: set[str] = set()
    for one in attacks:
        if one.id in seen:
            raise ValueError(f"There are two attacks called {one.id!r}.")
        seen.add(one.id)
    return sorted(attacks, key=lambda one: (one.family, one.id))


def pick(attacks: Iterable[Attack], wanted: Iterable[str]) -> list[Attack]:
    """Return the attacks whose id or family is wanted; all of them if nothing is asked for.

    Raises:
        ValueError: Nothing is called so.
    """
    attacks, wanted = list(attacks), list(wanted)
    for name in wanted:
        if not any(name in (one.id, one.family) for one in attacks):
            families = ", ".join(sorted({one.family for one in attacks}))
            raise ValueError(f"No attack and no family is called {name!r}. Families: {families}.")
    return [one for one in attacks if not wanted or {one.id, one.family} & set(wanted)]


def _read(path: Path) -> list[Attack]:
    file = json.loads(path.read_text(encoding="utf-8"))
    return [_attack(file["family"], entry, path.name) for entry in file["attacks"]]


def _attack(family: str, entry: Mapping[str, Any], where: str) -> Attack:
    unknown = set(entry["must_hold"]) - set(PROMISES)
    if unknown or entry["profile"] not in ("python", "fork") or not entry["steps"]:
        wrong = f"unknown promises {sorted(unknown)}" if unknown else "no such profile, or no step"
        raise ValueError(f"{where}: {entry['id']!r} cannot be judged: {wrong}.")
    steps = tuple("\n".join(lines) for lines in entry["steps"])
    fields = {**entry, "steps": steps, "must_hold": tuple(entry["must_hold"])}
    return Attack(family=family, **fields)


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

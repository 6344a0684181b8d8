"""Real cgroups of sessions, with processes that try to exceed their limits."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envweave.errors import IsolationError, OptionError
from envweave.sandbox import Sandbox
from envweave.sandbox.host.cgroups import Cgroups, find_cgroups
from envweave.sandbox.host.session_cgroups import (
    Cgroup,
    CgroupLimits,
    CgroupV1,
    CgroupV2,
    find_cgroup_paths,
)

FOUND = find_cgroups()
LIMITS = CgroupLimits(memory_bytes=64 << 20, processes=16)
TIMEOUT_S = 20.0

IN_CI = os.environ.get("CI") == "true"

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def cgroups() -> Cgroups:
    if FOUND.cgroups is None:
        (pytest.fail if IN_CI else pytest.skip)(FOUND.reason)
    return FOUND.cgroups


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts Python with code that begins when it reads a line."""
    started: list[subprocess.Popen[str]] = []

    def start_one(code: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", "input()\n" + textwrap.dedent(code)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.wait(TIMEOUT_S)
        for pipe in (process.stdin, process.stdout):  # its children may hold the other ends
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@pytest.fixture
def group(cgroups: Cgroups) -> Iterator[Cgroup]:
    made = cgroups.create("test", LIMITS)
    yield made
    assert made.remove(TIMEOUT_S)


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


def test_a_process_that_uses_too_much_memory_is_killed_and_reported(
    group: Cgroup, start: Start
) -> None:
    process = start("b = bytearray(256 << 20)\nprint('escaped')")
    group.add(process.pid)
    before = group.memory_hit()

    go(process)
    output, _ = process.communicate(timeout=TIMEOUT_S)

    assert (before, process.returncode, output) == (False, -signal.SIGKILL, "")
    assert group.memory_hit() is True


def test_processes_that_each_use_little_are_limited_together(group: Cgroup, start: Start) -> None:
    process = start(
        """
        import os, signal
        children = []
        for _ in range(8):
            if (pid := os.fork()) == 0:
                b = bytearray(24 << 20)
                signal.pause()
            children.append(pid)
        pid, status = os.wait()
        print(pid in children, os.WTERMSIG(status))
        """
    )
    group.add(process.pid)

    go(process)

    assert process.stdout is not None
    assert process.stdout.readline() == "True 9\n"
    assert group.memory_hit() is True


def test_a_process_within_its_memory_is_left_alone(group: Cgroup, start: Start) -> None:
    process = start("b = bytearray(16 << 20)\nprint(len(b))")
    group.add(process.pid)

    go(process)
    output, _ = process.communicate(timeout=TIMEOUT_S)

    assert (process.returncode, output) == (0, f"{16 << 20}\n")
    assert group.memory_hit() is False


def test_a_process_tree_cannot_exceed_its_limit(group: Cgroup, start: Start) -> None:
    process = start(
        """
        import os, signal
        made = 0
        while True:
            try:
                if os.fork() == 0:
                    signal.pause()
                made += 1
            except BlockingIOError:
                break
        print(made, flush=True)
        signal.pause()
        """
    )
    group.add(process.pid)

    go(process)

    assert process.stdout is not None
    assert process.stdout.readline() == f"{LIMITS.processes - 1}\n"
    assert len(group.pids()) == LIMITS.processes


def test_a_fork_bomb_is_killed_completely(cgroups: Cgroups, start: Start) -> None:
    group = cgroups.create("bomb", CgroupLimits(memory_bytes=512 << 20, processes=64))
    process = start(
        """
        import os
        os.setsid()
        print("lit", flush=True)
        while True:
            try:
                os.fork()
                if os.fork():
                    os._exit(0)
            except BlockingIOError:
                pass
        """
    )
    group.add(process.pid)
    go(process)
    assert process.stdout is not None
    process.stdout.readline()
    until(lambda: len(group.pids()) > 8)

    group.kill_all()

    until(lambda: group.pids() == [])
    assert group.remove()


def test_removing_a_cgroup_kills_its_processes(cgroups: Cgroups, start: Start) -> None:
    group = cgroups.create("alive", LIMITS)
    folders = group.folders
    process = start("import signal; signal.pause()")
    group.add(process.pid)

    gone = group.remove()

    assert gone is True
    assert process.wait(TIMEOUT_S) == -signal.SIGKILL
    assert not any(folder.exists() for folder in folders)


def test_killing_or_removing_twice_is_allowed(cgroups: Cgroups) -> None:
    group = cgroups.create("empty", LIMITS)
    assert group.remove() is True

    group.kill_all()

    assert group.remove() is True
    assert (group.pids(), group.memory_hit()) == ([], False)


def test_two_sessions_may_have_the_same_name(cgroups: Cgroups) -> None:
    first, second = cgroups.create("same", LIMITS), cgroups.create("same", LIMITS)

    assert set(first.folders).isdisjoint(second.folders)
    assert first.remove()
    assert second.remove()


def test_cpu_time_can_be_limited(cgroups: Cgroups) -> None:
    assert cgroups.has_cpus

    group = cgroups.create("slow", CgroupLimits(memory_bytes=64 << 20, processes=4, cpus=0.25))

    quotas = [
        one.read_text().split()[0]
        for folder in group.folders
        for one in (folder / "cpu.cfs_quota_us", folder / "cpu.max")
        if one.exists()
    ]
    assert quotas == ["25000"]
    assert group.remove()


def test_cgroups_of_a_killed_host_are_swept_and_those_of_a_live_one_are_not(
    cgroups: Cgroups, group: Cgroup
) -> None:
    code = """
    import subprocess, sys
    from envweave.sandbox.host.cgroups import CgroupLimits, find_cgroups
    found = find_cgroups().cgroups
    group = found.create("left", CgroupLimits(memory_bytes=64 << 20, processes=4))
    inside = subprocess.Popen([sys.executable, "-c", "input()"], stdin=sys.stdin)
    group.add(inside.pid)
    print(inside.pid, *group.folders, flush=True)
    input()
    """
    host = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert host.stdout is not None
    pid, *left = host.stdout.readline().split()
    while_it_lives = cgroups.sweep()
    inside = os.pidfd_open(int(pid))
    host.kill()
    host.wait(TIMEOUT_S)

    swept = cgroups.sweep()

    host.communicate()
    os.close(inside)
    assert (while_it_lives, swept) == (0, 1)
    assert not any(Path(folder).exists() for folder in left)
    assert all(folder.exists() for folder in group.folders)


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 65])
def test_an_invalid_name_is_refused(cgroups: Cgroups, name: str) -> None:
    with pytest.raises(OptionError, match="Invalid cgroup name"):
        cgroups.create(name, LIMITS)


@pytest.mark.parametrize(
    ("limits", "result"),
    [
        ({"memory_bytes": 0, "processes": 4}, "memory_bytes=0"),
        ({"memory_bytes": 1 << 30, "processes": True}, "processes=True"),
        ({"memory_bytes": 1 << 30, "processes": 4, "cpus": 0}, "cpus=0"),
    ],
)
def test_invalid_limits_are_refused(limits: dict[str, int], result: str) -> None:
    with pytest.raises(OptionError, match=result):
        CgroupLimits(**limits)


UNIFIED = find_cgroup_paths().v2


@pytest.mark.skipif(
    UNIFIED is None or not os.access(UNIFIED, os.W_OK),
    reason="needs a folder of cgroups of version 2 that is writable",
)
def test_a_v2_cgroup_is_killed_completely_even_without_limits(start: Start) -> None:
    assert UNIFIED is not None
    folder = UNIFIED / f"envweave-test-{os.getpid()}"
    folder.mkdir()
    group = CgroupV2([folder])
    process = start("import os, signal\nos.fork()\nprint('forked', flush=True)\nsignal.pause()")
    group.add(process.pid)
    go(process)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["forked\n"] * 2
    members = group.pids()

    gone = group.remove(TIMEOUT_S)

    assert len(members) == 2
    assert gone is True
    assert process.wait(TIMEOUT_S) == -signal.SIGKILL


@pytest.mark.parametrize("isolation", ["namespace", "landlock"])
def test_a_session_that_cannot_join_its_cgroup_reports_it(
    cgroups: Cgroups, monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    @contextlib.contextmanager
    def read_only(group: Cgroup) -> Iterator[list[int]]:
        opened = [os.open(folder / group.own_file, os.O_RDONLY) for folder in group.folders]
        try:
            yield opened
        finally:
            for one in opened:
                os.close(one)

    monkeypatch.setattr(Cgroup, "open_files", read_only)
    with pytest.raises(IsolationError, match="cgroup: write: Bad file descriptor"):
        Sandbox(isolation=isolation).close()


def test_all_processes_of_a_large_cgroup_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = list(range(1, 5000))
    (tmp_path / "cgroup.procs").write_text("".join(f"{one}\n" for one in pids))
    read = os.read
    # As the kernel does: a page at a time, whatever the buffer size.
    monkeypatch.setattr(os, "read", lambda file, length: read(file, min(length, 4096)))

    assert CgroupV2([tmp_path]).pids() == pids


@pytest.mark.parametrize(
    ("peak", "failures", "kills", "hit"),
    [
        pytest.param(64 << 20, 0, "oom_kill 1", True, id="at the limit"),
        pytest.param(60 << 20, 3, "oom_kill 1", True, id="a charge failed"),
        pytest.param(64 << 20, 3, "oom_kill 0", False, id="the kernel found memory to give"),
        pytest.param(60 << 20, 0, "oom_kill 1", False, id="the whole machine ran out"),
        pytest.param(64 << 20, 3, "under_oom 0", True, id="before Linux 4.13"),
    ],
)
def test_memory_hit_needs_a_reached_limit_and_a_killed_process(
    tmp_path: Path, peak: int, failures: int, kills: str, hit: bool
) -> None:
    (tmp_path / "memory.limit_in_bytes").write_text(f"{64 << 20}\n")
    (tmp_path / "memory.max_usage_in_bytes").write_text(f"{peak}\n")
    (tmp_path / "memory.failcnt").write_text(f"{failures}\n")
    (tmp_path / "memory.oom_control").write_text(f"{kills}\n")

    result = CgroupV1({"memory": tmp_path, "pids": tmp_path}).memory_hit()

    assert result is hit


@pytest.mark.parametrize(
    ("used", "failures", "kills", "members", "reusable"),
    [
        pytest.param(100_000, 0, 0, "", True, id="empty"),
        pytest.param(100_000, 0, 0, "7\n", False, id="a process is in it"),
        pytest.param(8 << 20, 0, 0, "", False, id="it holds memory"),
        pytest.param(100_000, 3, 0, "", False, id="its limit was met"),
        pytest.param(100_000, 0, 1, "", False, id="a process was killed"),
    ],
)
def test_a_cgroup_is_reusable_if_it_is_empty_and_never_hit_a_limit(
    tmp_path: Path, used: int, failures: int, kills: int, members: str, reusable: bool
) -> None:
    (tmp_path / "cgroup.procs").write_text(members)
    (tmp_path / "memory.usage_in_bytes").write_text(f"{used}\n")
    (tmp_path / "memory.failcnt").write_text(f"{failures}\n")
    (tmp_path / "memory.oom_control").write_text(f"oom_kill {kills}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    (tmp_path / "memory.events").write_text(f"max {failures}\noom {kills}\noom_kill {kills}\n")

    result = [
        CgroupV1({"memory": tmp_path, "pids": tmp_path}).is_reusable(),
        CgroupV2([tmp_path]).is_reusable(),
    ]

    assert result == [reusable, reusable]


@pytest.mark.parametrize("version", [1, 2])
def test_a_removed_cgroup_is_not_reusable(tmp_path: Path, version: int) -> None:
    folder = tmp_path / "gone"
    group = CgroupV2([folder]) if version == 2 else CgroupV1({"memory": folder, "pids": folder})
    assert group.try_remove()

    assert group.is_reusable() is False

"""Memory of every kind is limited: by a cgroup where one can be made, by the filter elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from envweave.sandbox import Limits, Sandbox, Session
from envweave.sandbox.host.cgroups import find_cgroups

pytestmark = pytest.mark.slow  # starts many sandbox sessions

IN_CI = os.environ.get("CI") == "true"
FOUND = find_cgroups()
LIMITS = Limits(memory_bytes=128 << 20, disk_bytes=1 << 20, timeout_s=60)
TIERS = ["namespace", "landlock"]

HOLD_SHARED = """
import ctypes, mmap
library = ctypes.CDLL(None)
library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
kept = []
for _ in range(40):
    memory = mmap.mmap(-1, 16 << 20)
    memory.write(bytes(16 << 20))
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    library.munmap(address + 4096, (16 << 20) - 4096)
    kept.append(memory)
len(kept)
"""

HOLD_READ_ONLY = """
import ctypes
library = ctypes.CDLL(None)
library.mmap.restype = ctypes.c_void_p
library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
held = 0
while held < 800:
    address = library.mmap(None, 16 << 20, 3, 0x22, -1, 0)
    ctypes.memset(address, 1, 16 << 20)
    library.mprotect(address, 16 << 20, 1)
    held += 16
"""


@pytest.fixture(scope="module", params=TIERS)
def counted(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox whose sessions have cgroups by default."""
    if FOUND.cgroups is None:
        (pytest.fail if IN_CI else pytest.skip)(FOUND.reason)
    with Sandbox(isolation=request.param, limits=LIMITS) as box:
        yield box


@pytest.fixture(scope="module", params=TIERS)
def uncounted(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with Sandbox(isolation=request.param, limits=LIMITS, cgroups="never") as box:
        yield box


def folders(session: Session) -> list[Path]:
    cgroup = session._handle._resources.cgroup  # type: ignore[attr-defined]
    return [] if cgroup is None else cgroup.folders


def test_shared_memory_counts_even_after_unmapping(counted: Sandbox) -> None:
    with counted.session() as session:
        result = session.run(HOLD_SHARED)

    assert (result.exception_type, result.limits_hit) == ("MemoryLimit", ("memory",))
    assert result.session_ended


def test_memory_that_was_made_read_only_counts_in_a_cgroup(counted: Sandbox) -> None:
    with counted.session() as session:
        result = session.run(HOLD_READ_ONLY)

    assert result.limits_hit == ("memory",)


def test_shared_memory_within_the_limit_works_in_a_cgroup(counted: Sandbox) -> None:
    with counted.session() as session:
        result = session.run(
            "import mmap\nmemory = mmap.mmap(-1, 1 << 20)\nmemory[0] = 7\n"
            "memory[0], len(open('/dev/zero', 'rb').read(4))"
        )

    assert result.return_value == (7, 4)


def test_private_memory_over_the_limit_still_raises_in_the_code(counted: Sandbox) -> None:
    with counted.session() as session:
        session.run("open('full', 'wb').write(bytes(500_000))")

        result = session.run("x = []\nwhile True: x.append(b'x' * (1 << 20))")

        assert (result.exception_type, result.limits_hit) == ("MemoryError", ("memory",))
        assert session.run("x = None; 1 + 1").return_value == 2


def test_a_reused_cgroup_behaves_like_a_new_one(counted: Sandbox) -> None:
    results = []
    for _ in range(12):
        with counted.session() as session:
            results.append(
                session.run(
                    "import threading\nthread = threading.Thread(target=print, args=('ran',))\n"
                    "thread.start(); thread.join()"
                ).stdout
            )

    assert results == ["ran\n"] * 12


def test_closing_a_sandbox_removes_every_cgroup() -> None:
    with Sandbox(limits=LIMITS) as box:
        sessions = box.sessions(4)
        made = [folder for session in sessions for folder in folders(session)]
        for session in sessions[:2]:
            session.close()

    assert len(made) in (0, 4, 8)  # none where none can be made; version 1 has two for each
    assert not any(folder.exists() for folder in made)


def test_a_branch_has_a_separate_cgroup_and_a_kill_there_is_reported() -> None:
    if FOUND.cgroups is None:
        (pytest.fail if IN_CI else pytest.skip)(FOUND.reason)
    with (
        Sandbox(isolation="namespace", limits=LIMITS) as box,
        box.session() as session,
        session.branch() as branch,
    ):
        own = set(folders(session)) & set(folders(branch))

        result = branch.run(HOLD_SHARED)

        assert own == set()
        assert (result.exception_type, result.limits_hit) == ("MemoryLimit", ("memory",))
        assert session.run("1 + 1").return_value == 2


def test_without_a_cgroup_anonymous_shared_memory_is_refused(uncounted: Sandbox) -> None:
    with uncounted.session() as session:
        refused = [
            session.run(code).exception_type
            for code in (
                "import mmap; mmap.mmap(-1, 4096)",
                "import mmap; mmap.mmap(-1, 4096, flags=mmap.MAP_ANONYMOUS | 3)",
            )
        ]
        zero = session.run("open('/dev/zero', 'rb')")
        private = session.run("import mmap; len(mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | 32))")
        of_a_file = session.run(
            "file = open('shared', 'w+b'); file.truncate(4096)\nlen(mmap.mmap(file.fileno(), 4096))"
        )

    assert refused == ["PermissionError", "PermissionError"]
    assert zero.exception_type in ("FileNotFoundError", "PermissionError")
    assert (private.return_value, of_a_file.return_value) == (4096, 4096)
    assert any("mmap.mmap(-1, n)" in sentence for sentence in uncounted.tier.missing)


def test_without_a_cgroup_memory_that_was_made_read_only_is_watched(uncounted: Sandbox) -> None:
    with uncounted.session() as session:
        result = session.run(HOLD_READ_ONLY)

    assert (result.exception_type, result.limits_hit) == ("MemoryLimit", ("memory",))


def test_open_files_are_limited_for_all_threads_together(uncounted: Sandbox) -> None:
    alone = 0x0001_0900  # CLONE_VM, SIGHAND and THREAD, but neither FS nor FILES
    with uncounted.session() as session:
        result = session.run(
            "import ctypes\nlibrary = ctypes.CDLL(None, use_errno=True)\n"
            f"library.syscall({56 if os.uname().machine == 'x86_64' else 220}, {alone}, 0, 0, 0, 0)"
            ", ctypes.get_errno()"
        )

    assert result.return_value == (-1, 1)


def test_the_landlock_tier_reports_that_stat_reaches_outside() -> None:
    with Sandbox(isolation="landlock") as box:
        assert any("`stat`" in sentence for sentence in box.tier.missing)

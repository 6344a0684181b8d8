"""Resource limits: what a process of a session may use, and that it cannot raise them again."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from envweave.sandbox import Limits

if sys.platform != "linux":
    pytest.skip("the walls are Linux's", allow_module_level=True)

import resource

from envweave.sandbox.walls import rlimits

MEGABYTE = 1 << 20


def run_limited(code: str, work, *, before: str = "", counted_with: int = 100_000, **limits):
    """Run code under these limits and return what it printed as JSON."""
    program = f"""
import json, os, resource, sys
from envweave.sandbox.execution import Limits
from envweave.sandbox.walls import rlimits
{before}
session_limits = rlimits.for_session(Limits(**{limits!r}), counted_with={counted_with})
rlimits.apply(session_limits)
{textwrap.dedent(code)}
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_each_limit_has_the_requested_value():
    limits = Limits(
        memory_bytes=100 * MEGABYTE, disk_bytes=5 * MEGABYTE, open_files=20, processes=7
    )

    alone = rlimits.for_session(limits, counted_with=0)
    among_others = rlimits.for_session(limits, counted_with=7, address_space_bytes=MEGABYTE)

    assert alone == {
        resource.RLIMIT_CORE: 1,
        resource.RLIMIT_NOFILE: 20,
        resource.RLIMIT_FSIZE: 5 * MEGABYTE,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_DATA: 100 * MEGABYTE,
        resource.RLIMIT_AS: 100 * MEGABYTE + rlimits.ADDRESS_SPACE,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 64,
        resource.RLIMIT_STACK: 8 * MEGABYTE,
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_RTPRIO: 0,
        resource.RLIMIT_NPROC: 7,
    }
    assert among_others[resource.RLIMIT_NPROC] == 14
    assert among_others[resource.RLIMIT_AS] == 101 * MEGABYTE


def test_memory_files_and_descriptors_stop_at_their_limits(tmp_path):
    results = run_limited(
        """
        import errno, mmap

        def ending(act):
            try:
                act()
            except (MemoryError, OSError) as error:
                return getattr(error, "errno", None) or "memory"

        def fill():
            with open("big", "wb") as file:
                for _ in range(3):
                    file.write(bytes(1 << 20))
                    file.flush()

        shared = []
        def share():
            while True:
                shared.append(mmap.mmap(-1, 64 << 20))

        results = [
            ending(lambda: bytearray(300 << 20)),
            ending(fill) == errno.EFBIG,
            os.stat("big").st_size,
            ending(lambda: [os.dup(0) for _ in range(40)]) == errno.EMFILE,
            ending(share) in ("memory", errno.ENOMEM), len(shared) * 64 < 200 + 1024,
            len(bytearray(50 << 20)) >> 20,
        ]
        print(json.dumps(results))
        """,
        tmp_path,
        memory_bytes=200 * MEGABYTE,
        disk_bytes=2 * MEGABYTE,
        open_files=32,
    )

    assert results == ["memory", True, 2 * MEGABYTE, True, True, True, 50]


def test_an_existing_lower_limit_is_kept(tmp_path):
    results = run_limited(
        "print(json.dumps([resource.getrlimit(kind) for kind in "
        "(resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_STACK)]))",
        tmp_path,
        before=(
            "resource.setrlimit(resource.RLIMIT_NOFILE, (16, 24))\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 1 << 20))\n"
            "resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, resource.RLIM_INFINITY))"
        ),
        open_files=64,
    )

    assert results == [[24, 24], [MEGABYTE, MEGABYTE], [8 * MEGABYTE, 8 * MEGABYTE]]


def test_an_unprivileged_process_cannot_raise_a_limit_again(tmp_path):
    results = run_limited(
        """
        from envweave.sandbox.walls import capabilities

        capabilities.drop_all()
        refused = []
        for kind, value in session_limits.items():
            try:
                resource.setrlimit(kind, (value + 1, value + 1))
            except ValueError:
                refused.append(kind)
        print(json.dumps(sorted(refused) == sorted(session_limits)))
        """,
        tmp_path,
        counted_with=0,
    )

    assert results is True

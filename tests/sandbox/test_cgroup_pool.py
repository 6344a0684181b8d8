"""Which cgroups of ended sessions are used again."""

from __future__ import annotations

from typing import Any

from envweave.sandbox.host.cgroups import CgroupPool
from envweave.sandbox.host.session_cgroups import CgroupLimits


class FakeCgroup:
    """Empty at once. The first removal removes only one of its two folders."""

    def __init__(self) -> None:
        self.folders = ["memory", "pids"]

    def is_drained(self) -> bool:
        return True

    def is_reusable(self) -> bool:
        return True

    def try_remove(self) -> bool:
        self.folders.pop()
        return not self.folders

    def remove(self) -> bool:
        self.folders.clear()
        return True

    def kill_all(self) -> None:
        pass


class FakeCgroups:
    def create(self, _name: str, _limits: Any) -> FakeCgroup:
        return FakeCgroup()


def test_a_cgroup_that_is_removed_in_part_is_not_used_again() -> None:
    pool: Any = CgroupPool(
        FakeCgroups(), CgroupLimits(memory_bytes=1 << 26, processes=10), is_reused=True
    )  # type: ignore[arg-type]
    acquired = [pool.acquire() for _ in range(33)]  # one more than are kept
    for one in acquired:
        pool.release(one)
    pool.clean_up()
    kept = [pool.acquire() for _ in range(32)]

    pool.clean_up()

    assert all(len(one.folders) == 2 for one in kept)
    assert len(pool.acquire().folders) == 2

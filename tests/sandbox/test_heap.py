"""What a session allocates lies together, also if the template's heap has gaps."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
from envweave.sandbox.inside.heap import fill_gaps

def pages():
    made = [bytes(size) for size in (20, 70, 200) for _ in range(50)]
    return len({id(one) >> 12 for one in made})

held = [bytes(size) for _ in range(3000) for size in (20, 70, 200)]
del held[::61]  # one gap a page, or so
before = pages()
fill_gaps()
print(before, pages())
"""


def test_new_objects_share_pages_once_the_gaps_are_filled() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )

    before, after = map(int, done.stdout.split())

    assert after <= 12  # three size classes, and each may cross a page or two
    assert before > 2 * after


GROWTH = """
from envweave.sandbox.inside.heap import fill_gaps

def kilobytes():
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("VmSize")).split()[1])

before = kilobytes()
fill_gaps()
print(kilobytes() - before)
"""


def test_little_memory_is_used_where_addresses_of_malloc_do_not_rise() -> None:
    # Large blocks are then mapped, each below the last, and small ones lie below all of them.
    allocator = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "4096"}

    done = subprocess.run(
        [sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True, env=allocator
    )

    assert int(done.stdout) < 32_000

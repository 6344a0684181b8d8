"""What a test leaves open or running, told apart from what others had left before it."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from typing import final


@final
class Leftovers:
    """Knows what was there when it was made, and tells what has come since and is still there.

    What earlier tests dropped without closing it is gone before: it cannot go in mid-test.
    """

    def __init__(self) -> None:
        gc.collect()
        self._threads = set(threading.enumerate())
        self._descriptors = _descriptors()

    def threads(self, named: str = "") -> list[threading.Thread]:
        """Return the threads that have come, or those of them with this in their name."""
        came = set(threading.enumerate()) - self._threads
        return [one for one in came if named in one.name]

    def descriptors(self) -> list[tuple[int, str]]:
        """Return the descriptors that have come, and of what: also where the number is old."""
        return sorted(_descriptors() - self._descriptors)


def _descriptors() -> set[tuple[int, str]]:
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - a name, and no path
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))  # noqa: PTH115
    return found

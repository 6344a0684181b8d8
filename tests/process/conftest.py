"""Checks that these tests leave nothing behind, and a trap to kill a worker during a call."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    children, threads = len(_children()), set(threading.enumerate())
    yield
    assert len(_children()) == children  # those of a whole module may have been replaced
    assert set(threading.enumerate()) <= threads


def _children() -> set[int]:
    """Return the processes that this one has started, also those that have ended."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        if int(fields[1]) == os.getpid():
            found.add(int(stat.parent.name))
    return found


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """A function that kills the next process that waits in `Crashing`."""
    os.mkfifo(tmp_path / "here")
    hunters = []

    def hunt() -> None:
        with (tmp_path / "here").open(encoding="utf-8") as pipe:
            os.kill(int(pipe.readline()), signal.SIGKILL)

    def set_trap() -> None:
        hunter = threading.Thread(target=hunt, daemon=True)
        hunter.start()
        hunters.append(hunter)

    yield set_trap
    for hunter in hunters:
        hunter.join(30)
        assert not hunter.is_alive()

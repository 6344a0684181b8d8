"""What every test may count on, and how several processes share them: see `./dev test`."""

from __future__ import annotations

import gc
import signal

import pytest

# Whoever starts the tests in the background of a shell has Ctrl-C ignored, by them and by all that
# they start. Tests of interrupts mean the usual.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take long, so that none is left to one process at the end.

    Where one process runs all of them, their order is left to chance.
    """
    if hasattr(config, "workerinput"):
        long = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path not in long)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Have no search for garbage look at all that was imported: it stays anyway."""
    gc.collect()
    gc.freeze()

"""Short stretches of code that a Ctrl-C must not cut in two."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put a Ctrl-C off to the end of the block; a second one comes through.

    Only the main thread is ever interrupted, and only if its handler is a function.
    """
    usual: Any = None
    if threading.current_thread() is threading.main_thread():
        usual = signal.getsignal(signal.SIGINT)
    if not callable(usual):
        yield
        return
    noted: list[tuple[Any, ...]] = []

    def note(*interrupt: Any) -> None:
        noted.append(interrupt)
        if len(noted) > 1:
            usual(*interrupt)

    try:
        signal.signal(signal.SIGINT, note)
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if noted:
            usual(*noted[0])

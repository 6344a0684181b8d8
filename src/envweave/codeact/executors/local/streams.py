"""What a thread of code prints, kept; what the others print goes where it went."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

from envweave.sandbox.inside.output import CapturedOutput

NOWHERE = -1
"""The descriptor of what is kept: there is none."""

_NAMES = ("stdout", "stderr")
_lock = threading.Lock()  # protects the tables, and who stands in `sys`
_printing: dict[int, tuple[KeptText, KeptText]] = {}
_before: dict[str, Any] = {}


@final
class KeptText(io.TextIOBase):
    """`sys.stdout` or `sys.stderr`, as one thread of code sees it."""

    encoding = "utf-8"
    errors = "backslashreplace"
    newlines = None

    def __init__(self, limit_bytes: int, name: str) -> None:
        self._kept = CapturedOutput(NOWHERE, limit_bytes)
        self.buffer = _KeptBytes(self._kept)
        self.name = name
        self.mode = "w"

    def write(self, text: str) -> int:
        """Keep text."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        text = str.__str__(text)
        self._kept.add(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:  # type: ignore[override]
        """Keep each."""
        for line in lines:
            self.write(line)

    def reconfigure(self, **_options: Any) -> None:
        """Accept what a real stream accepts; nothing is buffered or translated here."""

    def writable(self) -> bool:
        """Say yes."""
        return True

    def close(self) -> None:
        """Stay open: later cells write here too."""

    def take(self) -> tuple[str, bool]:
        """Return all that was kept, and whether something was cut; keep from the start again."""
        return self._kept.take()


@final
class _KeptBytes(io.RawIOBase):
    """The `buffer` of such a stream."""

    def __init__(self, kept: CapturedOutput) -> None:
        self._kept = kept

    def write(self, data: Any) -> int:
        """Keep bytes."""
        data = bytes(data)
        self._kept.add_bytes(data)
        return len(data)

    def writable(self) -> bool:
        """Say yes."""
        return True

    def close(self) -> None:
        """Stay open."""


@final
class _ByThread:
    """Stands in `sys` for a stream while code runs, and is another one to each thread of code."""

    def __init__(self, which: int, others: Any) -> None:
        self.others = others
        self._which = which

    def write(self, text: str) -> Any:
        """Write to the stream of this thread."""
        return self._stream().write(text)

    def flush(self) -> None:
        """Flush the stream of this thread."""
        self._stream().flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream(), name)

    def _stream(self) -> Any:
        mine = _printing.get(threading.get_ident())
        return self.others if mine is None else mine[self._which]


@contextlib.contextmanager
def keeping(
    stdout: KeptText, stderr: KeptText, is_left_behind: Callable[[], bool]
) -> Iterator[None]:
    """Keep what this thread prints in the block.

    What code puts into `sys.stdout` is taken out again at the end of the block, unless the thread
    was left behind: by then it may be somebody else's.
    """
    thread = threading.get_ident()
    with _lock:
        _printing[thread] = (stdout, stderr)
        _stand_in()
    try:
        yield
    finally:
        with _lock:
            del _printing[thread]
            if not is_left_behind():
                _stand_in(_before)
            if not _printing:
                _step_back()


def _stand_in(before: dict[str, Any] | None = None) -> None:
    """Stand before both streams; before those in `before`, if somebody took our place."""
    for which, name in enumerate(_NAMES):
        now = getattr(sys, name)
        if type(now) is not _ByThread:
            _before[name] = now if before is None else before[name]
            setattr(sys, name, _ByThread(which, _before[name]))


def _step_back() -> None:
    for name in _NAMES:
        now = getattr(sys, name)
        if type(now) is _ByThread:
            setattr(sys, name, now.others)

"""Captures the output of code that runs in one thread, while other threads print as before."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, TextIO, final


@final
class CapturedStream(io.RawIOBase):
    """Keeps what is written, up to a limit."""

    mode = "w"

    def __init__(self, limit_bytes: int, name: str) -> None:
        self.name = name
        self._limit = limit_bytes
        self._data = bytearray()
        self._dropped = 0

    def stream(self) -> TextIO:
        """Return the text stream that writes here."""
        return io.TextIOWrapper(
            self,
            encoding="utf-8",
            errors="backslashreplace",
            newline="\n",
            write_through=True,
        )

    def writable(self) -> bool:
        """Return true."""
        return True

    def write(self, data: Any) -> int:
        """Keep bytes."""
        data = bytes(data)
        kept = data[: self._limit - len(self._data)]
        self._data += kept
        self._dropped += len(data) - len(kept)
        return len(data)

    def text(self) -> tuple[str, bool]:
        """Return what was kept, and whether anything was dropped."""
        if not self._dropped:
            return self._data.decode(errors="backslashreplace"), False
        return f"{self._data.decode(errors='ignore')}\n... [{self._dropped} bytes cut]", True


_captured: ContextVar[Mapping[str, TextIO] | None] = ContextVar("captured", default=None)
_streams_lock = threading.Lock()  # protects what is in `sys`, and the count
_redirections: set[object] = set()


@final
class _StreamOfThread:
    """Replaces a stream in `sys` while code runs: each thread writes to its own, or the host's."""

    def __init__(self, name: str, host: Any) -> None:
        self.host = host
        self._name = name

    def write(self, text: str) -> Any:
        """Write to the stream of this thread."""
        return self._stream().write(text)

    def flush(self) -> None:
        """Flush the stream of this thread."""
        self._stream().flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream(), name)

    def _stream(self) -> Any:
        captured = _captured.get()
        return self.host if captured is None else captured[self._name]


@contextlib.contextmanager
def capture_output(
    stdout: TextIO, stderr: TextIO, is_left_behind: Callable[[], bool]
) -> Iterator[None]:
    """Capture what this thread prints. Other threads print to the host's streams.

    Streams that the code puts into `sys` are taken out at the end, unless it was left behind: by
    then they may be the host's.
    """
    token = _captured.set({"stdout": stdout, "stderr": stderr})
    me = object()
    with _streams_lock:
        _redirections.add(me)
        for name in ("stdout", "stderr"):
            if type(getattr(sys, name)) is not _StreamOfThread:
                setattr(sys, name, _StreamOfThread(name, getattr(sys, name)))
        before = sys.stdout, sys.stderr
    try:
        yield
    finally:
        _captured.reset(token)
        with _streams_lock:
            _redirections.discard(me)
            if not is_left_behind():
                sys.stdout, sys.stderr = before
            for name in ("stdout", "stderr"):
                now: Any = getattr(sys, name)
                if not _redirections and type(now) is _StreamOfThread:
                    setattr(sys, name, now.host)

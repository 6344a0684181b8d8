"""What code writes to its output and error streams, kept up to a limit.

Python's own streams keep text here. What C code and child processes write goes straight to
descriptors 1 and 2, which are files in memory; it is fetched from there before more text is kept,
so that both stand in the order in which they were written.
"""

from __future__ import annotations

import codecs
import io
import os
from collections.abc import Iterable
from typing import Any, final

from envweave.sandbox.protocol.encoding import OWN

__builtins__ = OWN

_seek = os.lseek
_read_at = os.pread
_truncate = os.ftruncate
_status = os.fstat
_write = os.write
_open = os.open
_close = os.close
_copy_to = os.dup2
_memory_file = os.memfd_create
_HERE = os.SEEK_CUR
_START = os.SEEK_SET
_NAMELESS = os.O_TMPFILE | os.O_RDWR
_decoder = codecs.getincrementaldecoder("utf-8")
_Text = io.TextIOBase
_Binary = io.RawIOBase


@final
class Kept:
    """What came through one of the two descriptors, in order, and how much of it was cut."""

    def __init__(self, descriptor: int, limit_bytes: int) -> None:
        self._descriptor = descriptor
        self._limit = limit_bytes
        self._folder = ""
        self._pieces: list[str] = []
        self._room = limit_bytes
        self._lost = 0
        self._is_child = False
        self._decoder = _decoder("backslashreplace")
        self._is_split = False
        self._file: tuple[int, int] | None = None

    def start(self, folder: str) -> None:
        """Fetch from the file that the descriptor leads to now; make another in this folder."""
        self._folder = folder
        self._file = self._identify()

    def add(self, text: str) -> None:
        """Keep text, after what others wrote before it."""
        if self._is_split:
            self._end_bytes()
        self._add(text)

    def _add(self, text: str) -> None:
        if self._is_child:
            _write(self._descriptor, text.encode("utf-8", "backslashreplace"))
            return
        if _position(self._descriptor):
            self.fetch()
        self._keep(text)

    def add_bytes(self, data: bytes) -> None:
        """Keep bytes; a character may be cut in two between calls."""
        text = self._decoder.decode(data)
        self._is_split = bool(self._decoder.getstate()[0])
        if text:
            self._add(text)

    def fetch(self) -> None:
        """Take over what was written to the descriptor itself."""
        descriptor = self._descriptor
        try:
            status = _status(descriptor)
            # Code may have put another file in its place, and that one is the code's.
            if (status.st_dev, status.st_ino) != self._file or not status.st_size:
                return
            data = _read_at(descriptor, min(status.st_size, self._room + 4), 0)
            _truncate(descriptor, 0)
            _seek(descriptor, 0, _START)
        except OSError:
            return
        self._lost += status.st_size - len(data)
        self._keep(data.decode("utf-8", "backslashreplace"))

    def take(self) -> tuple[str, bool]:
        """Return all that was kept, and whether something was cut; keep from the start again."""
        if self._is_child:
            return "", False
        if self._is_split:
            self._end_bytes()
        if _position(self._descriptor):
            self.fetch()
        pieces, self._pieces = self._pieces, []
        if not pieces and not self._lost:
            return "", False
        lost, self._lost = self._lost, 0
        self._room = self._limit
        text = "".join(pieces)
        if lost:
            text += f"\n... [{lost} bytes cut]"
        return text, lost > 0

    def start_over(self) -> None:
        """Drop everything: this process is a copy, and what was written is the original's.

        The copy's descriptor leads nowhere until `reopen`.
        """
        self._pieces, self._room, self._lost = [], self._limit, 0
        self._is_child = False
        self._file = None
        nowhere = _open("/dev/null", os.O_RDWR)
        _copy_to(nowhere, self._descriptor)
        _close(nowhere)

    def reopen(self) -> None:
        """Give the descriptor a file again, after `start_over`."""
        if self._file is not None:
            return
        try:
            file = _memory_file("output", 0)
        except OSError:
            # The walls refuse more files in memory; the work folder holds some without a name.
            try:
                file = _open(self._folder, _NAMELESS, 0o600)
            except OSError:
                return
        _copy_to(file, self._descriptor)
        _close(file)
        self._file = self._identify()

    def be_child(self) -> None:
        """Pass everything on to the descriptor: this is a child process of the session's."""
        self._pieces, self._is_child = [], True

    def _end_bytes(self) -> None:
        self._is_split = False
        self._add(self._decoder.decode(b"", final=True))
        self._decoder.reset()

    def _keep(self, text: str) -> None:
        if not text.isascii():
            # Halves of surrogate pairs cannot be sent.
            data = text.encode("utf-8", "backslashreplace")
            size = len(data)
            if size <= self._room:
                text = data.decode("utf-8")
            else:
                text = data[: self._room].decode("utf-8", "ignore")
        else:
            size = len(text)
        if size <= self._room:
            self._pieces.append(text)
            self._room -= size
        else:
            if self._room:
                self._pieces.append(text[: self._room])
            self._lost += size - self._room
            self._room = 0

    def _identify(self) -> tuple[int, int] | None:
        try:
            status = _status(self._descriptor)
        except OSError:
            return None
        return status.st_dev, status.st_ino


def _position(descriptor: int) -> int:
    """Return how far the descriptor has been written; 0 if it cannot be told."""
    try:
        return _seek(descriptor, 0, _HERE)
    except OSError:
        return 0


@final
class BinaryStream(_Binary):
    """The `buffer` of a text stream."""

    def __init__(self, kept: Kept, descriptor: int, name: str) -> None:
        self._kept = kept
        self._descriptor = descriptor
        self.name = name
        self.mode = "wb"

    def write(self, data: Any) -> int:
        """Keep bytes."""
        data = bytes(data)
        self._kept.add_bytes(data)
        return len(data)

    def writable(self) -> bool:
        """Say yes."""
        return True

    def fileno(self) -> int:
        """Return the descriptor that children write to."""
        return self._descriptor

    def close(self) -> None:
        """Stay open: later cells write here too."""


@final
class TextStream(_Text):
    """`sys.stdout` or `sys.stderr`."""

    encoding = "utf-8"
    errors = "backslashreplace"
    newlines = None

    def __init__(self, kept: Kept, descriptor: int, name: str) -> None:
        self._kept = kept
        self._descriptor = descriptor
        self.buffer = BinaryStream(kept, descriptor, name)
        self.name = name
        self.mode = "w"
        self.line_buffering = False
        self.write_through = False

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

    def isatty(self) -> bool:
        """Say no."""
        return False

    def fileno(self) -> int:
        """Return the descriptor that children write to."""
        return self._descriptor

    def close(self) -> None:
        """Stay open: later cells write here too."""

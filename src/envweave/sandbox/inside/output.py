"""Captures the output and error streams of code, up to a limit.

Python's own streams add text here. C code and child processes write directly to descriptors 1 and
2, which are files in memory; their output is fetched before more text is added, so that all of it
stays in the order in which it was written.
"""

from __future__ import annotations

import codecs
import io
import os
from collections.abc import Iterable
from struct import Struct
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
_device_and_inode = Struct("<QQ").unpack_from  # of what `fstat` writes, on both machines
_Text = io.TextIOBase
_Binary = io.RawIOBase


@final
class CapturedOutput:
    """The output of one of the two descriptors, in order, and how much was truncated."""

    def __init__(self, descriptor: int, limit_bytes: int) -> None:
        self._descriptor = descriptor
        self._limit = limit_bytes
        self._folder = ""
        self._pieces: list[str] = []
        self._left_bytes = limit_bytes
        self._truncated_bytes = 0
        self._is_child = False
        self._decoder = _decoder("backslashreplace")
        self._is_split = False
        self._file: tuple[int, ...] | bytearray | None = None

    def start(self, folder: str, status: bytearray | None = None) -> None:
        """Fetch from the current file of the descriptor; `reopen` makes another in this folder.

        Args:
            folder: The work folder.
            status: The memory to which `fstat` writes the status of that file before any code runs.
        """
        self._folder = folder
        self._file = self._identify() if status is None else status

    def add(self, text: str) -> None:
        """Add text, after what was written to the descriptor before."""
        if self._is_split:
            self._end_bytes()
        self._add(text)

    def _add(self, text: str) -> None:
        if self._is_child:
            _write(self._descriptor, text.encode("utf-8", "backslashreplace"))
            return
        if _position(self._descriptor):
            self.fetch()
        self._append(text)

    def add_bytes(self, data: bytes) -> None:
        """Add bytes; a character may be split between calls."""
        text = self._decoder.decode(data)
        self._is_split = bool(self._decoder.getstate()[0])
        if text:
            self._add(text)

    def fetch(self) -> None:
        """Add what was written to the descriptor itself."""
        descriptor = self._descriptor
        try:
            if type(self._file) is bytearray:
                self._file = _device_and_inode(self._file)
            status = _status(descriptor)
            # The code may have redirected the descriptor to a file of its own.
            if (status.st_dev, status.st_ino) != self._file or not status.st_size:
                return
            data = _read_at(descriptor, min(status.st_size, self._left_bytes + 4), 0)
            _truncate(descriptor, 0)
            _seek(descriptor, 0, _START)
        except OSError:
            return
        self._truncated_bytes += status.st_size - len(data)
        self._append(data.decode("utf-8", "backslashreplace"))

    def take(self) -> tuple[str, bool]:
        """Return the captured text and whether it was truncated; start again."""
        if self._is_child:
            return "", False
        if self._is_split:
            self._end_bytes()
        if _position(self._descriptor):
            self.fetch()
        pieces, self._pieces = self._pieces, []
        if not pieces and not self._truncated_bytes:
            return "", False
        truncated, self._truncated_bytes = self._truncated_bytes, 0
        self._left_bytes = self._limit
        text = "".join(pieces)
        if truncated:
            text += f"\n... [{truncated} bytes cut]"
        return text, truncated > 0

    def reset_after_fork(self) -> None:
        """Drop everything: this process is a copy, and the output belongs to the original.

        The descriptor of the copy is /dev/null until `reopen`.
        """
        self._pieces, self._left_bytes, self._truncated_bytes = [], self._limit, 0
        self._is_child = False
        self._file = None
        null = _open("/dev/null", os.O_RDWR)
        _copy_to(null, self._descriptor)
        _close(null)

    def reopen(self) -> None:
        """Give the descriptor a file again, after `reset_after_fork`."""
        if self._file is not None:
            return
        try:
            file = _memory_file("output", 0)
        except OSError:
            # The walls refuse more files in memory; use an unnamed file in the work folder.
            try:
                file = _open(self._folder, _NAMELESS, 0o600)
            except OSError:
                return
        _copy_to(file, self._descriptor)
        _close(file)
        self._file = self._identify()

    def pass_through(self) -> None:
        """Write everything to the descriptor: this is a child process of the session."""
        self._pieces, self._is_child = [], True

    def _end_bytes(self) -> None:
        self._is_split = False
        self._add(self._decoder.decode(b"", final=True))
        self._decoder.reset()

    def _append(self, text: str) -> None:
        if not text.isascii():
            # Lone surrogates cannot be sent.
            data = text.encode("utf-8", "backslashreplace")
            size = len(data)
            if size <= self._left_bytes:
                text = data.decode("utf-8")
            else:
                text = data[: self._left_bytes].decode("utf-8", "ignore")
        else:
            size = len(text)
        if size <= self._left_bytes:
            self._pieces.append(text)
            self._left_bytes -= size
        else:
            if self._left_bytes:
                self._pieces.append(text[: self._left_bytes])
            self._truncated_bytes += size - self._left_bytes
            self._left_bytes = 0

    def _identify(self) -> tuple[int, int] | None:
        try:
            status = _status(self._descriptor)
        except OSError:
            return None
        return status.st_dev, status.st_ino


def _position(descriptor: int) -> int:
    """Return how much was written to the descriptor; 0 if that is unknown."""
    try:
        return _seek(descriptor, 0, _HERE)
    except OSError:
        return 0


@final
class BinaryStream(_Binary):
    """The `buffer` of a text stream."""

    def __init__(self, output: CapturedOutput, descriptor: int, name: str) -> None:
        self._output = output
        self._descriptor = descriptor
        self.name = name
        self.mode = "wb"

    def write(self, data: Any) -> int:
        """Add bytes."""
        data = bytes(data)
        self._output.add_bytes(data)
        return len(data)

    def writable(self) -> bool:
        """Return `True`."""
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

    def __init__(self, output: CapturedOutput, descriptor: int, name: str) -> None:
        self._output = output
        self._descriptor = descriptor
        self.buffer = BinaryStream(output, descriptor, name)
        self.name = name
        self.mode = "w"
        self.line_buffering = False
        self.write_through = False

    def write(self, text: str) -> int:
        """Add text."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        text = str.__str__(text)
        self._output.add(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:  # type: ignore[override]
        """Add each line."""
        for line in lines:
            self.write(line)

    def reconfigure(self, **_options: Any) -> None:
        """Accept what a real stream accepts; nothing is buffered or translated here."""

    def writable(self) -> bool:
        """Return `True`."""
        return True

    def isatty(self) -> bool:
        """Return `False`."""
        return False

    def fileno(self) -> int:
        """Return the descriptor that children write to."""
        return self._descriptor

    def close(self) -> None:
        """Stay open: later cells write here too."""

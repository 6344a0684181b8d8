"""Reads, writes and lists files of the work folder for the host.

Uses no function of `os` that is written in Python: the code may have replaced what it calls.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import final

from envweave.sandbox.protocol.encoding import OWN

__builtins__ = OWN

_MAX_LISTED = 100_000
_READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_WRITING = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_open = os.open
_close = os.close
_read = os.read
_write = os.write
_status = os.fstat
_make_folder = os.mkdir
_scan = os.scandir
_is_folder = stat.S_ISDIR
_is_file = stat.S_ISREG


@final
class WorkFiles:
    """Reads, writes and lists below one folder."""

    def __init__(self, limit_bytes: int) -> None:
        self._folder = ""
        self._limit_bytes = limit_bytes

    def start(self, folder: str) -> None:
        """Set the folder."""
        self._folder = folder.rstrip("/")

    def read(self, path: str) -> bytes:
        """Return the content of a regular file."""
        descriptor = _open(self._at(path), _READING)
        try:
            status = _status(descriptor)
            _refuse_unless_regular(path, status.st_mode)
            if status.st_size > self._limit_bytes:
                raise ValueError(
                    f"{path!r} has {status.st_size} bytes, more than the limit of "
                    f"{self._limit_bytes} for one call."
                )
            pieces = []
            left = self._limit_bytes
            while left > 0 and (piece := _read(descriptor, min(left, 1 << 20))):
                pieces.append(piece)
                left -= len(piece)
            return b"".join(pieces)
        finally:
            _close(descriptor)

    def write(self, path: str, content: bytes) -> None:
        """Write a file, creating parent folders as needed."""
        target = self._at(path)
        above = target.find("/", len(self._folder) + 1)
        while above > 0:
            with suppress(FileExistsError):
                _make_folder(target[:above])
            above = target.find("/", above + 1)
        descriptor = _open(target, _WRITING, 0o600)
        try:
            _refuse_unless_regular(path, _status(descriptor).st_mode)
            left = memoryview(content)
            while left:
                left = left[_write(descriptor, left) :]
        finally:
            _close(descriptor)

    def list(self, path: str) -> list[str]:
        """Return the paths of the files below a folder, relative to the work folder, sorted.

        Symbolic links are listed as files, whatever their target.
        """
        start = self._at(path)
        found: list[str] = []
        folders = [start]
        while folders:
            with _scan(folders.pop() or "/") as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        found.append(entry.path[len(self._folder) + 1 :])
            if len(found) > _MAX_LISTED:
                raise ValueError(f"There are more than {_MAX_LISTED} files below {path!r}.")
        return sorted(
            one.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            for one in found
        )

    def _at(self, path: str) -> str:
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if path.startswith("/") or ".." in parts or "\0" in path:
            raise ValueError(
                f"The path {path!r} is not in the work folder. It must be relative to that, "
                "without '..'."
            )
        return "/".join([self._folder, *parts])


def _refuse_unless_regular(path: str, mode: int) -> None:
    if _is_folder(mode):
        raise IsADirectoryError(f"{path!r} is a folder.")
    if not _is_file(mode):
        raise ValueError(f"{path!r} is neither a file nor a folder.")

"""Writes the events of one recorder to a file of its own, from a thread of its own.

The caller's thread appends what it has taken to a queue. The thread turns that into lines and
writes whole lines only, at most `GATHER_S` after they were taken and at once when an episode ends.
A caller that is faster than the thread waits when `MAX_PENDING` steps or `MAX_PENDING_BYTES` are
queued, so this is the most that a killed process loses.

If the disk is full, the file is cut to its last whole line, the program goes on without recording,
and its next call warns (`RecordingWarning`). A forked copy of the process records nothing.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
import warnings
import weakref
from collections import deque
from pathlib import Path
from typing import Any, Protocol, final

from envweave.errors import OptionError, RecordingError, RecordingWarning, format_error
from envweave.lifetime import CloseGuard

logger = logging.getLogger("envweave.recording")

GATHER_S = 0.02
"""How long events are gathered before they are written."""

MAX_PENDING = 50_000
"""How many steps may be queued before the caller waits; a batch has a step in each row."""

MAX_PENDING_BYTES = 64 * 2**20
"""How many bytes of values may be queued before the caller waits."""

_CHUNK = 256 * 1024  # bytes in one write

PATTERN = "events-*.jsonl"
"""The names of the files of a run's writers."""


class Lines(Protocol):
    """Turns what a caller's thread took into lines."""

    def opening(self) -> bytes:
        """Return the first line of a file."""
        ...

    def lines(self, taken: Any) -> list[bytes]:
        """Return the lines of one event, each with its newline."""
        ...

    def closing(self) -> bytes:
        """Return the last lines of a file that is closed."""
        ...


class EventWriter(Protocol):
    """Takes the events of a recording; see `RunWriter`."""

    def put(self, taken: Any, size: int) -> None:
        """Take an event whose values have `size` bytes."""

    def hurry(self) -> None:
        """Have what was put written at once."""

    def close(self) -> None:
        """Write everything. May be called twice."""


def read_directory(record: Any) -> Path:
    """Return the directory of a `record=` option.

    Raises:
        OptionError: It is not a path.
    """
    if not isinstance(record, str | os.PathLike) or not os.fspath(record):
        raise OptionError(
            f"record must be the path of a directory, such as 'runs/x', got {record!r}."
        )
    return Path(os.fspath(record))


@final
class RunWriter:
    """Writes one file of a run. One thread at a time may call it.

    Args:
        directory: The directory of the run; made if there is none.
        lines: Makes the lines.

    Attributes:
        path: The file.

    Raises:
        RecordingError: The file cannot be made.
    """

    def __init__(self, directory: Path, lines: Lines) -> None:
        self._core = core = _Core(directory, lines)
        self.path = core.path
        self._guard = CloseGuard(
            self,
            core.close,
            f"A recording into {str(directory)!r} was dropped without close(). Close what was made "
            "with record=, or use it in a `with` block.",
        )
        _cores.add(core)
        core.thread.start()

    def put(self, taken: Any, size: int, steps: int = 1) -> None:
        """Queue an event of some steps and bytes of values; it must never change afterwards."""
        core = self._core
        if core.failure is not None:
            core.warn_once()
            return
        core.queue.append((taken, size, steps))
        core.put_bytes += size
        core.put_steps += steps
        if not core.is_awake:
            core.is_awake = True
            core.wake.set()
        if (
            core.put_steps - core.done_steps > MAX_PENDING
            or core.put_bytes - core.done_bytes > MAX_PENDING_BYTES
        ):
            core.wait_for_room()

    def hurry(self) -> None:
        """Have what is queued written at once: an episode has ended."""
        self._core.hurry.set()

    def flush(self) -> None:
        """Wait until everything that was put is written."""
        self._core.flush()

    def close(self) -> None:
        """Write everything and close the file. May be called twice."""
        self._guard.disarm()
        self._core.close()
        self._core.warn_once()


@final
class _Core:
    """What the writer and its thread share; it does not refer to the writer."""

    def __init__(self, directory: Path, lines: Lines) -> None:
        self.queue: deque[Any] = deque()
        # `put_` is written by the caller's thread, `done_` by ours.
        self.put_bytes = self.done_bytes = 0
        self.put_steps = self.done_steps = 0
        self.is_awake = False
        self.failure: str | None = None
        self.wake = threading.Event()
        self.hurry = threading.Event()
        self._room = threading.Condition()
        self._lines = lines
        self._is_closing = False
        self._is_copy = False
        self._has_warned = False
        self._size = 0  # of the whole lines in the file
        self.path, self._fd = _create(directory)
        try:
            self._write([lines.opening()])
        except OSError as error:
            os.close(self._fd)
            raise _cannot(directory, error) from error
        self.thread = threading.Thread(target=self._run, name="envweave-recording", daemon=True)

    # On the caller's thread

    def warn_once(self) -> None:
        if self.failure and not self._has_warned:
            self._has_warned = True
            warnings.warn(self.failure, RecordingWarning, stacklevel=4)

    def wait_for_room(self) -> None:
        self.hurry.set()
        with self._room:
            while self.failure is None and (
                self.put_steps - self.done_steps > MAX_PENDING // 2
                or self.put_bytes - self.done_bytes > MAX_PENDING_BYTES // 2
            ):
                self._room.wait(0.1)

    def flush(self) -> None:
        self.is_awake = True
        self.wake.set()
        self.hurry.set()
        with self._room:
            while (
                self.failure is None
                and self.thread.is_alive()
                and (self.queue or self.put_bytes > self.done_bytes)
            ):
                self.hurry.set()
                self._room.wait(0.05)

    def close(self) -> bool:
        """Write everything and close the file; return whether there was anything to close."""
        if self._is_copy or self._is_closing:
            return False
        self._is_closing = True
        self.wake.set()
        self.hurry.set()
        if threading.current_thread() is not self.thread:
            self.thread.join()
        return True

    def abandon(self) -> None:
        """Stop recording in a forked copy of the process; the original goes on."""
        self._is_copy = True
        self.failure = ""
        self.queue.clear()
        os.close(self._fd)

    # On the writer's thread

    def _run(self) -> None:
        try:
            while True:
                self.wake.wait()
                if not self._is_closing:
                    self.hurry.wait(GATHER_S)
                self.wake.clear()
                self.hurry.clear()
                self.is_awake = False  # before the queue is emptied, so that no event is left
                closing = self._is_closing
                self._drain()
                if closing:
                    break
            if self.failure is None:
                self._write([self._lines.closing()])
        except OSError as error:
            self._fail(error)
        finally:
            os.close(self._fd)
            with self._room:
                self._room.notify_all()

    def _drain(self) -> None:
        lines: list[bytes] = []
        size = 0
        while self.queue:
            taken, count, steps = self.queue.popleft()
            try:
                made = self._lines.lines(taken)
            except OSError:
                self._write(lines)
                raise
            except Exception:
                logger.exception("an event could not be recorded")
                made = []
            lines += made
            size += sum(map(len, made))
            self.done_bytes += count
            self.done_steps += steps
            if size >= _CHUNK:
                self._write(lines)
                lines, size = [], 0
        self._write(lines)

    def _write(self, lines: list[bytes]) -> None:
        data = b"".join(lines)
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, memoryview(data)[written:])
        finally:
            self._size += data.rfind(b"\n", 0, written) + 1
        with self._room:
            self._room.notify_all()

    def _fail(self, error: OSError) -> None:
        """Stop recording: cut off a torn line, and have the caller warned."""
        try:
            os.ftruncate(self._fd, self._size)
        except OSError:
            logger.warning("the last line of %s is torn", self.path)
        failure = (
            f"Recording into {str(self.path)!r} stopped: {error.strerror or error}. What was "
            "written before can be loaded; the program continues without recording."
        )
        logger.error(failure)
        self.failure = failure
        self.queue.clear()


_cores: weakref.WeakSet[_Core] = weakref.WeakSet()


def _abandon_copies() -> None:
    for core in list(_cores):
        if core.thread.ident is not None:
            core.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_copies)


def _create(directory: Path) -> tuple[Path, int]:
    now = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    path = directory / f"events-{now}-{os.getpid()}-{secrets.token_hex(4)}.jsonl"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _cannot(directory, error) from error
    _lock(fd)
    for other in directory.glob(PATTERN):
        if other != path:
            repair(other)
    return path, fd


def _cannot(directory: Path, error: OSError) -> RecordingError:
    why = error.strerror or format_error(error)
    return RecordingError(
        f"Nothing can be recorded into {str(directory)!r}: {why}. "
        "Choose another directory for record=."
    )


def _lock(fd: int) -> bool:
    """Lock a file for its writer; return whether no other has it."""
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def repair(path: Path) -> bool:
    """Cut the torn last line off a file whose writer is gone; return whether there was one."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # another user's; readers ignore the torn line
    try:
        if not _is_torn(fd) or not _lock(fd):
            return False
        os.ftruncate(fd, _end_of_lines(fd))
    except OSError:
        return False
    finally:
        os.close(fd)
    logger.info("cut a torn line off %s", path)
    return True


def _is_torn(fd: int) -> bool:
    size = os.lseek(fd, 0, os.SEEK_END)
    return size > 0 and os.pread(fd, 1, size - 1) != b"\n"


def _end_of_lines(fd: int) -> int:
    end = os.lseek(fd, 0, os.SEEK_END)
    while end > 0:
        start = max(0, end - _CHUNK)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0

"""Work folders on the host's disk, for sessions without a file system of their own.

The agent controls the content: links are not followed, and depth and number are arbitrary.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class WorkFolder:
    """A folder on the host's disk that one session may write to."""

    def __init__(self, parent: Path, user: int | None, disk_bytes: int, files: int) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="session-", dir=parent))
        self._disk_bytes = disk_bytes
        self._files = files
        (self.path / "tmp").mkdir(0o700)
        if user is not None:
            os.chown(self.path / "tmp", user, user)
            os.chown(self.path, user, user)

    def is_over(self) -> bool:
        """Whether it exceeds its size or file limit."""
        used = 0
        try:
            for files, status in enumerate(_walk(self.path), 1):
                used += status.st_blocks * 512
                if used > self._disk_bytes or files > self._files:
                    return True
        except OSError:  # deeper than a path can name, or not readable by this user
            return True
        return False

    def remove(self) -> None:
        """Remove it and all that is in it. Harmless twice."""
        remove_tree(self.path)


def _walk(path: Path) -> Iterator[os.stat_result]:
    """Yield the status of everything below a folder.

    Raises:
        OSError: Something is deeper than a path can name, or not readable by this user.
    """
    folders = [str(path)]
    while folders:
        with _skipping_removed(), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with _skipping_removed():
                    yield entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)


@contextlib.contextmanager
def _skipping_removed() -> Iterator[None]:
    """Skip what was removed meanwhile. But raise for what cannot be read: it may hide anything."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.EACCES):
            raise


def remove_tree(path: Path) -> None:
    """Remove a folder with arbitrary content, once no process writes to it.

    One folder is open at a time and none is named by its path, so that neither recursion, nor open
    files, nor the maximal path length is a limit. What this user may not remove stays.
    """
    try:
        here = os.open(path, _FLAGS)
    except OSError:
        with contextlib.suppress(OSError):  # for example no descriptor is left; it may be empty
            path.rmdir()
        return
    try:
        levels = [_Level("", _remove_files(here), _identity(here))]
        while True:
            if levels[-1].folders:
                name = levels[-1].folders.pop()
                here = _enter(here, name)
                levels.append(_Level(name, _remove_files(here), _identity(here)))
            elif len(levels) > 1:
                above = os.open("..", _FLAGS, dir_fd=here)
                os.close(here)
                here = above
                if _identity(here) != levels[-2].identity:
                    break  # moved meanwhile; this may not be a folder of the session
                with contextlib.suppress(OSError):
                    os.rmdir(levels.pop().name, dir_fd=here)
            else:
                break
    except OSError:
        pass  # owned by another user
    finally:
        os.close(here)
    with contextlib.suppress(OSError):
        path.rmdir()


class _Level(NamedTuple):
    """A folder on the way down: its name, the folders left in it, and its identity.

    A killed process may still finish a system call that moves a folder meanwhile.
    """

    name: str
    folders: list[str]
    identity: tuple[int, int]


def _identity(folder: int) -> tuple[int, int]:
    status = os.fstat(folder)
    return status.st_dev, status.st_ino


def _enter(here: int, name: str) -> int:
    """Open a subfolder and close its parent, whatever the mode of the subfolder."""
    try:
        inner = os.open(name, _FLAGS, dir_fd=here)
    except PermissionError:
        closed = os.open(name, _FLAGS | os.O_PATH, dir_fd=here)  # never the target of a link
        try:
            os.chmod(f"/proc/self/fd/{closed}", 0o700)
        finally:
            os.close(closed)
        inner = os.open(name, _FLAGS, dir_fd=here)
    os.close(here)
    return inner


def _remove_files(here: int) -> list[str]:
    """Remove the files in an open folder; return the names of its subfolders."""
    with contextlib.suppress(OSError):
        os.fchmod(here, 0o700)
    folders = []
    with os.scandir(here) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.name, dir_fd=here)
    return folders

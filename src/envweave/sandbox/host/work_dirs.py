"""The work folder of a session that has no file system of its own: made, watched, removed.

What is in it is the agent's: links are not followed, and depth and number are whatever it liked.
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
        """Say whether it holds more than it may."""
        used = 0
        try:
            for files, status in enumerate(_walk(self.path), 1):
                used += status.st_blocks * 512
                if used > self._disk_bytes or files > self._files:
                    return True
        except OSError:  # deeper than a path can name, or closed to this user
            return True
        return False

    def remove(self) -> None:
        """Remove it and all that is in it. Harmless twice."""
        remove_tree(self.path)


def _walk(path: Path) -> Iterator[os.stat_result]:
    """Yield what is known of everything below a folder.

    Raises:
        OSError: Something is deeper than a path can name, or closed to this user.
    """
    folders = [str(path)]
    while folders:
        with _gone(), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with _gone():
                    yield entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)


@contextlib.contextmanager
def _gone() -> Iterator[None]:
    """Pass over what has gone meanwhile. What cannot be seen could hide any amount."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.EACCES):
            raise


def remove_tree(path: Path) -> None:
    """Remove a folder whose content may be of any shape, when nobody writes to it any more.

    One folder is open at a time and none is named by its path, so that neither recursion, nor open
    files, nor the longest path is a limit. What is not this user's to remove stays.
    """
    try:
        here = os.open(path, _FLAGS)
    except OSError:
        with contextlib.suppress(OSError):  # no descriptor is left, say, and it may be empty
            path.rmdir()
        return
    try:
        way = [_Level("", _folders_in(here), _identity(here))]
        while True:
            if way[-1].folders:
                name = way[-1].folders.pop()
                here = _enter(here, name)
                way.append(_Level(name, _folders_in(here), _identity(here)))
            elif len(way) > 1:
                above = os.open("..", _FLAGS, dir_fd=here)
                os.close(here)
                here = above
                if _identity(here) != way[-2].identity:
                    break  # moved meanwhile, and this may be no folder of the session's
                with contextlib.suppress(OSError):
                    os.rmdir(way.pop().name, dir_fd=here)
            else:
                break
    except OSError:
        pass  # closed even to its owner's chmod: another's
    finally:
        os.close(here)
    with contextlib.suppress(OSError):
        path.rmdir()


class _Level(NamedTuple):
    """A folder on the way down: its name above, the folders in it that are left, and which it is.

    Who is killed may still end the call that it was in, and move a folder from under our feet.
    """

    name: str
    folders: list[str]
    identity: tuple[int, int]


def _identity(folder: int) -> tuple[int, int]:
    status = os.fstat(folder)
    return status.st_dev, status.st_ino


def _enter(here: int, name: str) -> int:
    """Open a folder of an open one in its stead, whatever its mode."""
    try:
        inner = os.open(name, _FLAGS, dir_fd=here)
    except PermissionError:
        closed = os.open(name, _FLAGS | os.O_PATH, dir_fd=here)  # never what a link leads to
        try:
            os.chmod(f"/proc/self/fd/{closed}", 0o700)
        finally:
            os.close(closed)
        inner = os.open(name, _FLAGS, dir_fd=here)
    os.close(here)
    return inner


def _folders_in(here: int) -> list[str]:
    """Remove the files of an open folder, and return the names of the folders."""
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

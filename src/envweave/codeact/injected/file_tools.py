"""The file tools themselves. Also run inside sessions, so it imports nothing of ours."""

# `os` alone: importing `pathlib` would cost every session a while, and `/tmp` is the session's.
# ruff: noqa: PTH103, PTH106, PTH107, PTH109, PTH112, PTH114, PTH118, PTH120, PTH123, S108

import os


class FileTools:
    """Reads, writes and lists files below one folder, where `/tmp` is its folder `tmp`."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")

    def file_read(self, path: str) -> str:
        """Return the text that a file holds.

        Args:
            path: Relative to the work folder; `/tmp/…` is the session's own.
        """
        with open(self._at(path), encoding="utf-8", errors="replace", newline="") as file:
            return file.read()

    def file_write(self, path: str, content: str) -> int:
        """Write text to a file, in place of what it held; return how many characters.

        Args:
            path: Relative to the work folder; folders above it are made.
            content: The text.
        """
        return self._write(path, content, "w")

    def file_append(self, path: str, content: str) -> int:
        """Add text at the end of a file, which need not exist; return how many characters.

        Args:
            path: Relative to the work folder; folders above it are made.
            content: The text.
        """
        return self._write(path, content, "a")

    def file_list(self, path: str = ".") -> list[str]:
        """Return the names in a folder, sorted; those of folders end in `/`.

        Args:
            path: Relative to the work folder.
        """
        with os.scandir(self._at(path)) as entries:
            return sorted(
                entry.name + ("/" if entry.is_dir(follow_symlinks=False) else "")
                for entry in entries
            )

    def file_exists(self, path: str) -> bool:
        """Return whether there is such a file or folder.

        Args:
            path: Relative to the work folder.
        """
        return os.path.lexists(self._at(path, follow=False))

    def file_delete(self, path: str) -> None:
        """Delete a file, a link, or a folder that is empty.

        Args:
            path: Relative to the work folder.
        """
        place = self._at(path, follow=False)
        if os.path.isdir(place) and not os.path.islink(place):
            os.rmdir(place)
        else:
            os.remove(place)

    def _write(self, path: str, content: str, mode: str) -> int:
        place = self._at(path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, mode, encoding="utf-8", newline="") as file:
            return file.write(content)

    def _at(self, path: str, *, follow: bool = True) -> str:
        """Return where a path leads: the folder, or below it.

        Args:
            path: What the caller named.
            follow: Whether, if it is a link, what that leads to must be there as well.
        """
        if path == "/tmp" or path.startswith("/tmp/"):
            path = self.root + path
        here = os.getcwd()
        if not self._holds(here):
            here = self.root  # of a program that runs elsewhere
        place = os.path.normpath(os.path.join(here, path))
        above, name = os.path.split(place)
        real = os.path.realpath(place) if follow else os.path.join(os.path.realpath(above), name)
        if not self._holds(real):
            raise PermissionError(
                f"{path!r} is outside the session's files. Use a path relative to the work "
                "folder, or below /tmp."
            )
        return place

    def _holds(self, place: str) -> bool:
        inside = [self.root, os.path.realpath(self.root), os.path.realpath(self.root + "/tmp")]
        return any(place == one or place.startswith(one + "/") for one in inside)

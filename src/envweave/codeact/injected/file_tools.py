"""The file tools. Also runs inside sessions, so it imports only the standard library."""

# Only `os`: importing `pathlib` would slow down the start of sessions. `/tmp` is the session's.
# ruff: noqa: PTH103, PTH106, PTH107, PTH109, PTH112, PTH114, PTH118, PTH120, PTH123, S108

import os


class FileTools:
    """Reads, writes and lists files below one folder, where `/tmp` is its folder `tmp`."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")

    def file_read(self, path: str) -> str:
        """Return the text of a file.

        Args:
            path: Relative to the work folder; `/tmp/…` is the session's own.
        """
        with open(self._resolve(path), encoding="utf-8", errors="replace", newline="") as file:
            return file.read()

    def file_write(self, path: str, content: str) -> int:
        """Write text to a file, replacing its content; return the number of characters.

        Args:
            path: Relative to the work folder; missing folders are created.
            content: The text.
        """
        return self._write(path, content, "w")

    def file_append(self, path: str, content: str) -> int:
        """Append text to a file, creating it if necessary; return the number of characters.

        Args:
            path: Relative to the work folder; missing folders are created.
            content: The text.
        """
        return self._write(path, content, "a")

    def file_list(self, path: str = ".") -> list[str]:
        """Return the names in a folder, sorted; those of folders end in `/`.

        Args:
            path: Relative to the work folder.
        """
        with os.scandir(self._resolve(path)) as entries:
            return sorted(
                entry.name + ("/" if entry.is_dir(follow_symlinks=False) else "")
                for entry in entries
            )

    def file_exists(self, path: str) -> bool:
        """Return whether there is such a file or folder.

        Args:
            path: Relative to the work folder.
        """
        return os.path.lexists(self._resolve(path, follow=False))

    def file_delete(self, path: str) -> None:
        """Delete a file, a link, or an empty folder.

        Args:
            path: Relative to the work folder.
        """
        place = self._resolve(path, follow=False)
        if os.path.isdir(place) and not os.path.islink(place):
            os.rmdir(place)
        else:
            os.remove(place)

    def _write(self, path: str, content: str, mode: str) -> int:
        place = self._resolve(path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, mode, encoding="utf-8", newline="") as file:
            return file.write(content)

    def _resolve(self, path: str, *, follow: bool = True) -> str:
        """Return the absolute path of a file, which must be the root folder or below it.

        Args:
            path: The path that the caller passed.
            follow: Whether the target of a symbolic link must be below the root, too.
        """
        if path == "/tmp" or path.startswith("/tmp/"):
            path = self.root + path
        here = os.getcwd()
        if not self._contains(here):
            here = self.root  # the program has changed its folder
        place = os.path.normpath(os.path.join(here, path))
        above, name = os.path.split(place)
        real = os.path.realpath(place) if follow else os.path.join(os.path.realpath(above), name)
        if not self._contains(real):
            raise PermissionError(
                f"{path!r} is outside the session's files. Use a path relative to the work "
                "folder, or below /tmp."
            )
        return place

    def _contains(self, place: str) -> bool:
        inside = [self.root, os.path.realpath(self.root), os.path.realpath(self.root + "/tmp")]
        return any(place == one or place.startswith(one + "/") for one in inside)

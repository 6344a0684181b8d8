"""What a caller may ask of a session besides running code, and how the answers are read."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from envweave.errors import (
    NameNotFoundError,
    OptionError,
    PlainDataError,
    SandboxError,
    WorkFileError,
)
from envweave.sandbox.messages import Failure

Reading = Callable[[Any], Any]
"""Returns the value of a reply. A `TypeError` says that no session of ours sends such a one."""

_TEXT_LIMIT = 2000
_FILE_CALLS = ("read_file", "write_file", "list_files")
_FILE_ERRORS = (
    "FileExistsError",
    "FileNotFoundError",
    "IsADirectoryError",
    "NotADirectoryError",
    "OSError",
    "PermissionError",
)


def work_path(path: Any, work: str | None, call: str) -> str:
    """Return a path of the work folder, relative to it.

    Raises:
        OptionError: It leads elsewhere, or is no path.
    """
    if isinstance(path, PurePath):
        path = str(path)
    if not isinstance(path, str) or "\0" in path:
        raise OptionError(f"{call}: a path is text without NUL characters.")
    inside = path
    if path.startswith("/"):
        if work is None or not (path + "/").startswith(work.rstrip("/") + "/"):
            where = f", or begins with {work}" if work else ""
            raise OptionError(
                f"{call}: the path leads out of the session. It is relative to the work "
                f"folder{where}."
            )
        inside = path[len(work.rstrip("/")) :].lstrip("/")
    if not is_inside(inside or "."):
        raise OptionError(
            f"{call}: a path is relative to the work folder, and does not go up with '..'."
        )
    try:
        inside.encode()
    except UnicodeEncodeError:
        raise OptionError(f"{call}: a path is text that UTF-8 can say.") from None
    return posixpath.normpath(inside) if inside else "."


def is_inside(path: str) -> bool:
    """Whether a relative path stays in its folder, whoever joins the two."""
    return bool(path) and path[0] != "/" and "\0" not in path and ".." not in path.split("/")


def file_path(path: Any, work: str | None, call: str) -> str:
    """Return the path of a file of the work folder, relative to it.

    Raises:
        OptionError: It leads elsewhere, or is no path of a file.
    """
    inside = work_path(path, work, call)
    if inside == "." or str(path).endswith("/"):
        raise OptionError(f"{call}: this names a folder. Name a file in it.")
    return inside


def variable(name: Any, call: str) -> str:
    """Return the name of a variable.

    Raises:
        OptionError: No variable can have it.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise OptionError(f"{call}: a variable's name is a Python identifier.")
    return name


def seed_of(seed: Any, call: str) -> int | None:
    """Return a seed.

    Raises:
        OptionError: It is none.
    """
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 63:
        raise OptionError(f"{call}(seed={seed!r}): expected a whole number from 0 to 2**63 - 1.")
    return seed


def content(data: Any, call: str) -> bytes:
    """Return what a file is to hold.

    Raises:
        PlainDataError: It is no bytes.
    """
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise PlainDataError(
        f"{call}: a file holds bytes, and this is {type(data).__name__}. Encode text first."
    )


def as_anything(value: Any) -> Any:
    """Read plain data."""
    return value


def as_nothing(value: Any) -> None:
    """Read the reply to what returns nothing."""
    if value is not None:
        raise TypeError("a value where there is none")


def as_bytes(value: Any) -> bytes:
    """Read what a file holds."""
    if type(value) is not bytes:
        raise TypeError("a file that is not bytes")
    return value


def as_paths(value: Any) -> list[str]:
    """Read paths. Whoever joins one of them to a folder stays in that folder."""
    if type(value) is not list or not all(type(path) is str and is_inside(path) for path in value):
        raise TypeError("a list of files that are none of its own")
    return value


def failure_error(call: str, failure: Failure) -> SandboxError:
    """Return the error for a call that the session could not carry out, in its own words."""
    text = failure.message[:_TEXT_LIMIT]
    if failure.type == "NameError":
        return NameNotFoundError(f"{call}: {text}")
    if failure.type == "PlainDataError":
        return PlainDataError(f"{call}: {text}")
    if failure.type in _FILE_ERRORS or (
        failure.type == "ValueError" and call.startswith(_FILE_CALLS)
    ):
        return WorkFileError(f"{call}: {text}")
    return SandboxError(f"{call}: {failure.type[:100]}: {text}")

"""Run a program as a user without rights, from tests that run as root."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from staging import NoInterpreterError, python_for_others, stage


@dataclass(frozen=True)
class OtherUser:
    """A user without rights, and a copy of envweave that this user can run.

    Attributes:
        python: An interpreter that has envweave, msgspec and numpy.
        folder: Where the copy lies: `tests/support` and `scripts` are in it too.
    """

    user: int
    group: int
    python: Path
    folder: Path

    def run(self, arguments: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess:
        """Run the interpreter with these arguments, as `subprocess.run` does."""
        return subprocess.run(
            [self.python, *arguments],
            user=self.user,
            group=self.group,
            extra_groups=[],
            cwd="/",
            env={"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            check=False,
            **options,
        )


@contextlib.contextmanager
def other_user(name: str = "nobody") -> Iterator[OtherUser]:
    """Have a user without rights, and a copy of envweave, until the block ends.

    Raises:
        LookupError: There is no such user.
        PermissionError: Only root may run programs as somebody else.
        NoInterpreterError: No Python that others may run fits the modules that are installed.
    """
    if os.geteuid() != 0:
        raise PermissionError("Only root may run programs as another user.")
    python = python_for_others()
    entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    # Not below pytest's own folders, which nobody else may enter.
    folder = Path(tempfile.mkdtemp(prefix="envweave-for-others-"))
    try:
        interpreter = stage(folder, python)
        yield OtherUser(entry.pw_uid, entry.pw_gid, interpreter, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


__all__ = ["NoInterpreterError", "OtherUser", "other_user"]

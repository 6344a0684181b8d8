"""Python in a process of its own for sandbox.py: plain, in bubblewrap, in a Docker container."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ordered import NotAvailableError
from sandbox_box import Box
from sandbox_code import add

LOOP = Path(__file__).with_name("sandbox_loop.py")


class PipeSession:
    """A process that runs code on its pipes, and keeps what it has.

    Attributes:
        ends: Called at its end, which is then waited for instead of forced.
    """

    def __init__(self, command: list[str], ends: Callable[[], object] | None = None) -> None:
        self.ends = ends
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, code: str) -> Any:
        self._say(code)
        while True:
            kind, value = self._hear()
            if kind == "value":
                return value
            if kind == "error":
                raise RuntimeError(value)
            self._say(add(*value))

    def _say(self, value: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{value!r}\n")
        self._process.stdin.flush()

    def _hear(self) -> tuple[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise NotAvailableError(f"{self._process.args[0]} ended: {self._process.wait()}")
        kind, value = ast.literal_eval(line)
        return kind, value

    def close(self) -> None:
        if self.ends is None:
            self._process.kill()
        else:
            self.ends()
        # Its input ends here, and the program with it.
        with self._process:
            pass


def _python() -> str:
    """Return the interpreter itself: in a virtual environment it takes longer to start."""
    return str(getattr(sys, "_base_executable", sys.executable))


def open_subprocess() -> Box:
    command = [_python(), "-I", "-B", str(LOOP)]
    return Box(lambda: PipeSession(command))


def open_bubblewrap() -> Box:
    program = shutil.which("bwrap")
    if program is None:
        raise NotAvailableError("bwrap is not installed; on Debian: apt install bubblewrap")
    seen = ["/usr", "/bin", "/lib", "/lib64", str(Path(_python()).resolve().parents[1])]
    walls = [
        *("--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"),
        *(word for path in seen for word in ("--ro-bind-try", path, path)),
        *("--ro-bind", str(LOOP), "/loop.py", "--dev", "/dev", "--proc", "/proc"),
        *("--tmpfs", "/tmp"),
    ]
    command = [program, *walls, _python(), "-I", "-B", "/loop.py"]
    return Box(lambda: PipeSession(command))

"""Run the command in this process, or as a separate one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from envweave.cli import main


@dataclass(frozen=True)
class Ran:
    """The result of a command. In `text`, all whitespace is collapsed."""

    code: int
    stdout: str
    stderr: str

    @property
    def text(self) -> str:
        return " ".join(self.stdout.split())


Run = Callable[..., Ran]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory of the command; modules imported from it are unloaded afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        if path.stem not in before:
            sys.modules.pop(path.stem, None)


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "GITHUB_ACTIONS", "TTY_COMPATIBLE", "PYTHONSAFEPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def envweave(here: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process."""

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = main(arguments)
        return Ran(code, *capsys.readouterr())

    return run


@pytest.fixture
def process(here: Path) -> Run:
    """Runs the command as a separate process, in the same directory."""

    def run(*arguments: str, code: str = "", **variables: str) -> Ran:
        how = ["-c", code] if code else ["-m", "envweave.cli"]
        done = subprocess.run(
            [sys.executable, *how, *arguments],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run

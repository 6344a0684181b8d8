"""A terminal for the commands on a documentation page, and the servers that they start."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import final

import pytest
from installations import venv_python, with_envweave

ROOT = Path(__file__).parents[2]

RUN = {
    "curl": ["curl", "--silent", "--show-error", "--max-time", "60"],
    "envweave": [sys.executable, "-m", "envweave.cli"],
    "pytest": [
        *(sys.executable, "-m", "pytest"),
        *(f"-pno:{plugin}" for plugin in ("cacheprovider", "randomly", "schemathesis", "xdist")),
    ],
    "python": [sys.executable],
    "uvicorn": [sys.executable, "-m", "uvicorn"],
}
NOT_RUN = {"pip", "uv", "source", "docker", "kubectl", "./dev"}  # they install, or take long
OPENENV = "openenv/bin/"
"""Where pages have OpenEnv installed, which needs a virtual environment of its own."""

VERIFIERS = {"classic/bin/": "verifiers-classic", "v1/bin/": "verifiers-v1"}
"""Where pages have the generations of verifiers, and envweave, installed."""

_PORT = re.compile(r"(?:(?<=127\.0\.0\.1:)|(?<=--port ))80\d\d\b")
_VARIABLE = re.compile(r"[A-Z_]+=")


@final
class Terminal:
    """Runs commands. What a page calls port 8000, or 8001, is one that is free.

    A command that ends in `&` goes on until `kill %1`, or until the page ends.
    """

    def __init__(self) -> None:
        self._ports: dict[str, str] = {}
        self._running: list[_Server] = []

    def real(self, text: str) -> str:
        """Return what a page says, with the ports that it has here."""
        return _PORT.sub(lambda port: self._ports.setdefault(port[0], _free_port()), text)

    def shown(self, text: str) -> str:
        """Return what was printed, with the ports that the page shows."""
        for shown, real in self._ports.items():
            text = re.sub(rf"(?<=:){real}\b", shown, text)
        return text

    def type(self, command: str, location: str) -> str | None:
        """Run a command and return what it prints; `None` if it cannot be run here."""
        if "--port" not in command:
            command = re.sub(r"^([A-Z_]+=\S+ )*envweave serve\b", r"\g<0> --port 8000", command)
        words = shlex.split(self.real(command), comments=True)
        variables = {}
        while _VARIABLE.match(words[0]):
            name, _, value = words.pop(0).partition("=")
            variables[name] = value
        if words == ["kill", "%1"]:
            return self._kill(location)
        if words[0].startswith(tuple(VERIFIERS)):
            variables = {
                **with_envweave(HF_HUB_OFFLINE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1"),
                **variables,
            }
        program = _program(words[0], location)
        if program is None or words == ["pytest"]:
            return None
        stays = words[-1] == "&"
        started = subprocess.Popen(
            [*program, *words[1 : -1 if stays else None]],
            env={**os.environ, "COLUMNS": "88", "NO_COLOR": "1", "TERM": "dumb", **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if stays:
            self._running.append(_Server(started))
            return self.shown(self._running[-1].until_it_listens(location))
        with started:
            try:
                printed, _ = started.communicate(timeout=300)
            finally:
                started.kill()
        documented = re.search(r"# exits with (\d+)$", command)
        assert started.returncode == (int(documented[1]) if documented else 0), (
            f"{location}: {command}\n{printed}"
        )
        return self.shown(printed)

    def _kill(self, location: str) -> str:
        """End the first that runs, in order, and return what it printed meanwhile."""
        return self.shown(self._running.pop(0).end(location))

    def close(self) -> None:
        """End whatever still runs."""
        while self._running:
            self._kill("the end of the page")


@final
class _Server:
    """What was left running, and what it prints."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._printed: list[str] = []
        self._listens = threading.Event()
        # A pipe that is not read would block the server.
        self._reader = threading.Thread(target=self._read, name="what a page's server prints")
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._printed.append(line)
            if re.search(r" on (http|unix)://\S+", line):
                self._listens.set()
        self._listens.set()

    def until_it_listens(self, location: str) -> str:
        """Wait until it says where it is, and return what it printed so far."""
        assert self._listens.wait(60), f"{location}: it says nothing"
        printed = "".join(self._printed)
        assert re.search(r" on (http|unix)://", printed), f"{location}: it ended\n{printed}"
        self._printed.clear()
        return printed

    def end(self, location: str) -> str:
        """Have it come to its end, and return what it printed since."""
        self._process.terminate()
        with self._process:
            try:
                code = self._process.wait(60)
            finally:
                self._process.kill()
                self._reader.join()
        printed = "".join(self._printed)
        assert code in (0, -signal.SIGTERM), f"{location}: it ended with {code}\n{printed}"
        return printed


def _program(word: str, location: str) -> list[str] | None:
    """Return how a program is run; `None` if it is not run here."""
    if word in NOT_RUN or (word == "curl" and shutil.which("curl") is None):
        return None
    if word.startswith(OPENENV):
        python = _openenv_python()
        if python is None:
            pytest.skip("OpenEnv is not set up. Run scripts/openenv-venv once.")
        return [str(python.parent / word.removeprefix(OPENENV))]
    for place_of_venv, name in VERIFIERS.items():
        if word.startswith(place_of_venv):
            return [str(venv_python(name).parent / word.removeprefix(place_of_venv))]
    assert word in RUN, f"{location}: no rule for running {word!r}"
    return RUN[word]


@functools.cache
def _openenv_python() -> Path | None:
    script = ROOT / "scripts/openenv-venv"
    asked = [sys.executable, script]  # as tests/interop asks: another python is another place
    if os.environ.get("CI") != "true":
        asked.append("--where")
    found = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=False)
    return None if found.returncode else Path(found.stdout.strip())


def _free_port() -> str:
    """Return a free port below the range from which the kernel assigns ports."""
    while True:
        port = secrets.choice(range(20_000, 30_000))
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return str(port)

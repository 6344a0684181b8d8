"""The two sides of remote.py: how each starts its server and its client, as processes."""

from __future__ import annotations

import functools
import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ordered import HERE, PATIENCE_S, NotAvailableError, Ordered, end

from envweave.bench.memory import tree_bytes

OURS, THEIRS = "envweave", "OpenEnv"
POLL_S = 0.002
LAST_LINES = 5


@dataclass(frozen=True, slots=True)
class Setting:
    """How a server is run, where there is a choice.

    Attributes:
        awaited: The environment has `step_async`, which takes no thread.
        compressed: Frames are compressed, as uvicorn and OpenEnv's client agree to by default.
        workers: How many server processes share the port.
    """

    awaited: bool = False
    compressed: bool = True
    workers: int = 1

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


TEMPLATE = Setting()
"""As OpenEnv's own template for a new environment has it."""
QUICKEST = Setting(awaited=True, compressed=False)
TRIED = (TEMPLATE, Setting(awaited=True), QUICKEST)
TRIED_WITH_MANY = (*TRIED, Setting(awaited=True, compressed=False, workers=2))


@functools.cache
def openenv_python() -> str:
    """Return the interpreter of OpenEnv's virtual environment, which is set up if need be.

    Raises:
        NotAvailableError: It cannot be set up.
    """
    script = HERE.parent / "scripts/openenv-venv"
    done = subprocess.run(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise NotAvailableError("scripts/openenv-venv could not set it up")
    return done.stdout.strip()


def python_of(side: str) -> str:
    """Return the interpreter that a side runs in."""
    return openenv_python() if side == THEIRS else sys.executable


def server_command(side: str, port: int, setting: Setting, *, serves: str) -> list[str]:
    """Return what starts a side's server, as its documentation has it."""
    if side == OURS:
        return [
            *(sys.executable, "-m", "envweave.cli", "serve", serves),
            *("--host", "127.0.0.1", "--port", str(port), "--max-sessions", "4096"),
        ]
    return [
        *(openenv_python(), "-m", "uvicorn", "remote_openenv_app:app"),
        *("--host", "127.0.0.1", "--port", str(port), "--workers", str(setting.workers)),
        *("--ws-per-message-deflate", str(setting.compressed).lower(), "--no-access-log"),
    ]


COUNT = "pkg://remote_envweave_env:Count"


@dataclass
class Server:
    """A server process that has answered `/health`.

    Attributes:
        url: Where it is.
        began_s: How long it took from its start to that answer.
    """

    side: str
    setting: Setting = TEMPLATE
    size: int = 200
    serves: str = COUNT
    url: str = field(init=False, default="")
    began_s: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        port = _free_port()
        command = server_command(self.side, port, self.setting, serves=self.serves)
        # The file goes with the server.
        self._log = tempfile.NamedTemporaryFile("w+", suffix=".log")  # noqa: SIM115
        began_s = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            cwd=HERE,
            env=_surroundings(self.side, self.size, REMOTE_AWAITED=str(int(self.setting.awaited))),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            self._wait(port, began_s + PATIENCE_S)
        except BaseException:
            self.stop()
            raise
        self.began_s = time.perf_counter() - began_s
        self.url = f"http://127.0.0.1:{port}"

    def _wait(self, port: int, until_s: float) -> None:
        while not (_is_healthy(port) and self._workers_are_up()):
            if self._process.poll() is not None:
                raise NotAvailableError(f"its server ended: {self._last_lines()}")
            if time.perf_counter() > until_s:
                raise NotAvailableError(f"its server did not start: {self._last_lines()}")
            time.sleep(POLL_S)

    def _workers_are_up(self) -> bool:
        # The first of several answers for all, and would be given every session.
        told = Path(self._log.name).read_text() if self.setting.workers > 1 else ""
        return self.setting.workers == 1 or (
            told.count("Application startup complete") >= self.setting.workers
        )

    def _last_lines(self) -> str:
        lines = Path(self._log.name).read_text().strip().splitlines()
        return " / ".join(line.strip() for line in lines[-LAST_LINES:])

    def bytes_taken(self) -> int:
        """Return how much memory it takes, with its processes."""
        return tree_bytes(self._process.pid) or 0

    def stop(self) -> None:
        """End it, if need be by force."""
        end(self._process, whole_group=True)
        self._log.close()


class Client:
    """A client process, told what to do line by line."""

    def __init__(self, side: str, size: int = 200) -> None:
        command = [python_of(side), str(HERE / "remote_client.py"), side.lower()]
        self._process = Ordered(command, _surroundings(side, size), what="its client")
        self.stop = self._process.stop

    def open(self, url: str, how: str, sessions: int) -> None:
        """Open sessions, each in an episode."""
        self._process.ask(do="open", url=url, how=how, sessions=sessions)

    def run(self, seconds: float) -> float:
        """Step all sessions for so long, and return steps a second."""
        answer = self._process.ask(do="run", seconds=seconds)
        return float(answer["steps"]) / float(answer["seconds"])

    def close(self) -> None:
        """Close its sessions."""
        self._process.ask(do="close")


class Pair:
    """A client process and the server process it talks to."""

    def __init__(self, side: str, setting: Setting = TEMPLATE, size: int = 200) -> None:
        # The client first: it starts while the server does.
        self._client = Client(side, size)
        try:
            self.server = Server(side, setting, size)
        except BaseException:
            self._client.stop()
            raise
        self.run, self.close = self._client.run, self._client.close

    def open(self, how: str, sessions: int) -> None:
        """Open sessions, each in an episode."""
        self._client.open(self.server.url, how, sessions)

    def stop(self) -> None:
        """End both."""
        self._client.stop()
        self.server.stop()


def seconds_of(side: str, code: str, size: int = 200) -> float:
    """Run a program that prints seconds, in a side's interpreter, and return them."""
    done = subprocess.run(
        [python_of(side), "-c", code],
        cwd=HERE,
        env=_surroundings(side, size),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode:
        raise NotAvailableError(done.stderr.strip().splitlines()[-1])
    return float(done.stdout.split()[-1])


def _surroundings(side: str, size: int, **more: str) -> dict[str, str]:
    # Where envweave is found is nothing that OpenEnv's interpreter should look through.
    paths = [str(HERE), os.environ.get("PYTHONPATH") if side == OURS else None]
    told = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "REMOTE_SIZE": str(size)}
    return {**os.environ, **told, **more}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()

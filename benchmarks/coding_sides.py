"""The two sides of coding.py: how each starts its server and its client, as processes."""

from __future__ import annotations

import functools
import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ordered import HERE, PATIENCE_S, NotAvailableError, Ordered, end

OURS, THEIRS = "envweave", "OpenEnv"
CIRCLE_S = 1.0
"""How long our server lets code run: how long one circle is."""
POLL_S = 0.01
LAST_LINES = 5


@functools.cache
def openenv_python() -> str:
    """Return the interpreter of OpenEnv's virtual environment for code, set up if need be.

    Raises:
        NotAvailableError: It cannot be set up.
    """
    script = HERE.parent / "scripts/openenv-venv"
    done = subprocess.run(
        [sys.executable, str(script), "--coding"], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise NotAvailableError("scripts/openenv-venv --coding could not set it up")
    return done.stdout.strip()


def _server_command(side: str, port: int) -> list[str]:
    if side == OURS:
        return [
            *(sys.executable, "-m", "envweave.cli", "serve", "coding-v0"),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--arg", f'limits={{"timeout_s": {CIRCLE_S}}}'),
        ]
    return [
        *(openenv_python(), "-m", "uvicorn", "coding_openenv_app:app", "--no-access-log"),
        # Its frames are not compressed: that is quicker on one machine.
        *("--host", "127.0.0.1", "--port", str(port), "--ws-per-message-deflate", "false"),
    ]


def _surroundings(side: str) -> dict[str, str]:
    # Where envweave is found is nothing that OpenEnv's interpreter should look through.
    paths = [str(HERE), os.environ.get("PYTHONPATH") if side == OURS else None]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


class Server:
    """A server process that has answered `/health`.

    Attributes:
        url: Where it is.
    """

    def __init__(self, side: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as one:
            port = int(one.getsockname()[1])
        # The file goes with the server.
        self._log = tempfile.NamedTemporaryFile("w+", suffix=".log")  # noqa: SIM115
        self._process = subprocess.Popen(
            _server_command(side, port),
            cwd=HERE,
            env=_surroundings(side),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.url = f"http://127.0.0.1:{port}"
        try:
            self._wait(port, time.perf_counter() + PATIENCE_S)
        except BaseException:
            self.stop()
            raise

    def _wait(self, port: int, until_s: float) -> None:
        while not _is_healthy(port):
            if self._process.poll() is not None:
                raise NotAvailableError(f"its server ended: {self._last_lines()}")
            if time.perf_counter() > until_s:
                raise NotAvailableError(f"its server did not start: {self._last_lines()}")
            time.sleep(POLL_S)

    def _last_lines(self) -> str:
        lines = Path(self._log.name).read_text().strip().splitlines()
        return " / ".join(line.strip() for line in lines[-LAST_LINES:])

    def stop(self) -> None:
        """End it, if need be by force."""
        end(self._process, whole_group=True)
        self._log.close()


class Pair:
    """A client process and the server process it talks to."""

    def __init__(self, side: str) -> None:
        python = openenv_python() if side == THEIRS else sys.executable
        # The client first: it starts while the server does.
        command = [python, str(HERE / "coding_client.py"), side.lower()]
        self._client = Ordered(command, _surroundings(side), what="its client")
        try:
            self._server = Server(side)
        except BaseException:
            self._client.stop()
            raise

    def open(self, how: str) -> None:
        """Open one session, in an episode."""
        self._client.ask(do="open", url=self._server.url, how=how)

    def close(self) -> None:
        """Close its sessions."""
        self._client.ask(do="close")

    def run(self, piece: str, seconds: float) -> float:
        """Run a piece of code again and again for so long, and return how long once takes."""
        answer = self._client.ask(do="run", piece=piece, seconds=seconds)
        return float(answer["seconds"]) / float(answer["steps"])

    def gather(self, sessions: int) -> None:
        """Open many sessions, each in an episode."""
        self._client.ask(do="gather", url=self._server.url, sessions=sessions)

    def crowd(self, seconds: float, *, circling: bool) -> dict[str, Any]:
        """Step all of them for so long; see `Crowd`."""
        return self._client.ask(do="crowd", seconds=seconds, circling=circling)

    def stop(self) -> None:
        """End both."""
        self._client.stop()
        self._server.stop()


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()

"""The processes that a benchmark starts: workers that take requests as JSON lines, and servers.

Workers import this module in other virtual environments, so it needs only the standard library.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120.0
_POLL_S = 0.002
_LAST_LINES = 5


class NotAvailableError(Exception):
    """A library cannot be measured here; the message gives the reason."""


@functools.cache
def script_python(script: str, *arguments: str) -> str:
    """Return the interpreter of the virtual environment that a script of ours installs.

    Raises:
        NotAvailableError: It cannot be installed.
    """
    command = [sys.executable, str(ROOT / script), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise NotAvailableError(f"{' '.join([script, *arguments])} failed to install it")
    return done.stdout.strip()


def child_variables(python: str, **more: str) -> dict[str, str]:
    """Return the environment variables for a child process with this interpreter.

    It can import `benchmarks`. Only our own interpreter gets the rest of PYTHONPATH, where
    envweave may be.
    """
    paths = [str(ROOT), os.environ.get("PYTHONPATH") if python == sys.executable else None]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}


class JsonProcess:
    """A child process that answers requests, one JSON object per line."""

    def __init__(self, python: str, module: str, *arguments: str, **variables: str) -> None:
        self._name = module
        self._process = subprocess.Popen(
            [python, "-m", module, *arguments],
            cwd=ROOT,
            env=child_variables(python, **variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        self._readable = selectors.DefaultSelector()
        self._readable.register(self._process.stdout, selectors.EVENT_READ)

    @property
    def pid(self) -> int:
        """The ID of the process."""
        return self._process.pid

    def request(self, command: str, **parameters: Any) -> dict[str, Any]:
        """Send a request and return the reply.

        Raises:
            NotAvailableError: It failed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps({"command": command, **parameters}).encode() + b"\n"
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise NotAvailableError(f"{self._name} exited") from None
        if not self._readable.select(TIMEOUT_S):
            raise NotAvailableError(f"{self._name} did not reply within {TIMEOUT_S:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise NotAvailableError(f"{self._name} exited")
        reply: dict[str, Any] = json.loads(line)
        if "problem" in reply:
            raise NotAvailableError(reply["problem"])
        return reply

    def stop(self) -> None:
        """Let it close its sessions, then end it."""
        with contextlib.suppress(NotAvailableError):
            self.request("close")
        terminate(self._process)
        self._readable.close()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()


def serve_requests(handle: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer the requests on standard input until it is closed."""
    # Output that a library prints must not mix with the replies.
    replies, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        try:
            reply = handle(json.loads(line))
        except NotAvailableError as error:
            reply = {"problem": str(error)}
        except Exception as error:  # noqa: BLE001 - sent to the parent process
            reply = {"problem": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)


class ServerProcess:
    """A server process that has answered `/health`.

    Attributes:
        url: Its address.
        startup_s: How long it took to answer.
        pid: The ID of the process.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        *,
        is_ready: Callable[[str], bool] = lambda log: True,
        **variables: str,
    ) -> None:
        """Start it and wait.

        Args:
            command: Returns the command for a port; the first word is its interpreter.
            is_ready: Whether a server with this log, which answers, is complete.
            **variables: Additional environment variables.
        """
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
        words = command(port)
        self._log = tempfile.NamedTemporaryFile("w+", suffix=".log")  # noqa: SIM115 - see `stop`
        start_s = time.perf_counter()
        self._process = subprocess.Popen(
            words,
            cwd=ROOT,
            env=child_variables(words[0], **variables),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.url = f"http://127.0.0.1:{port}"
        try:
            while not (answers_health(port) and is_ready(self._text())):
                self._check(start_s + TIMEOUT_S)
                time.sleep(_POLL_S)
        except BaseException:
            self.stop()
            raise
        self.startup_s = time.perf_counter() - start_s

    def _check(self, deadline_s: float) -> None:
        if self._process.poll() is not None:
            raise NotAvailableError(f"the server exited: {self._last_lines()}")
        if time.perf_counter() > deadline_s:
            raise NotAvailableError(f"the server did not start: {self._last_lines()}")

    def _text(self) -> str:
        return Path(self._log.name).read_text()

    def _last_lines(self) -> str:
        lines = self._text().strip().splitlines()
        return " / ".join(line.strip() for line in lines[-_LAST_LINES:])

    def stop(self) -> None:
        """End it and its child processes."""
        terminate(self._process, whole_group=True)
        self._log.close()


def answers_health(port: int) -> bool:
    """Whether a server on this port of the loopback answers `/health`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def terminate(process: subprocess.Popen[bytes], *, whole_group: bool = False) -> None:
    """End a process with SIGTERM, and with SIGKILL if that is not enough."""

    def send(number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number) if whole_group else process.send_signal(number)

    send(signal.SIGTERM)
    try:
        process.wait(5.0)
    except subprocess.TimeoutExpired:
        send(signal.SIGKILL)
        process.wait()
    if whole_group:
        send(signal.SIGKILL)

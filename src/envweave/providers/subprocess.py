"""`SubprocessProvider`: a server in a process of this machine, without a container engine."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, final

from envweave.errors import CallOrderError, DefinitionError, StartupError
from envweave.lifetime import AtExit, CloseGuard, OwnerProcess
from envweave.providers.base import WatchedProvider
from envweave.providers.child_main import BOOT
from envweave.providers.import_paths import server_config
from envweave.registry import EnvSpec
from envweave.registry.registry import LOCAL
from envweave.wire.faults import INTERNAL, error_of
from envweave.wire.messages import WireFault

STOP_S = 10.0
"""How long a server may take to close its environments before it is killed."""

_EXIT_S = 0.2
"""How long to wait for the exit of a process whose connections have closed."""

_LINES_KEPT = 20


@final
class ServerProcess:
    """A server process, which ends when this process does, however that ends.

    Args:
        config: The configuration of the server, as `envweave.cli.server_main` takes it.
        env_vars: Added to the environment variables.
        python: Another interpreter to run it, with separate packages.
    """

    def __init__(
        self, config: Mapping[str, Any], env_vars: Mapping[str, str], python: str | None = None
    ) -> None:
        self._name = str(config["id"])
        path = [one for one in sys.path if isinstance(one, str)]
        command, variables = [sys.executable], dict(os.environ)
        if python is not None:
            from envweave.providers.interpreter import import_folder, isolated_variables

            path = [str(import_folder())]
            command, variables = [python, "-P"], isolated_variables()
        self._owner = OwnerProcess()
        ready_r, ready_w = os.pipe()
        # Never written to: the server reads EOF when this process, which holds the other end, dies.
        life_r, life_w = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, or the caller's choice
                [*command, "-c", BOOT],
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(ready_w, life_r),
                env={**variables, **env_vars},
                start_new_session=True,  # Ctrl-C reaches only the caller, which closes the server
            )
        except BaseException:
            os.close(ready_r)
            os.close(life_w)
            raise
        finally:
            os.close(ready_w)
            os.close(life_r)
        self._ready_fd, self._life_fd = ready_r, life_w
        self._is_ready = False
        self._printed = _StderrReader(self._process)
        self._exit_thread = threading.Thread(
            target=self._wait_for_exit, name=f"envweave server {self.pid} exit", daemon=True
        )
        self._exit_thread.start()
        try:
            server = {**config, "ready_fd": ready_w, "lifeline_fd": life_r, "quiet": True}
            self._send_config({"path": path, "keeps_path": python is not None, "server": server})
        except BaseException:
            self.stop()
            raise

    def _send_config(self, config: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(json.dumps(config).encode() + b"\n")

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def _wait_for_exit(self) -> None:
        """Reap the process, and kill the rest of its process group.

        A process that the server forked would keep its connections open, and no client would
        notice that the server is gone.
        """
        self._process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def why_gone(self) -> str | None:
        """Return how the process ended; `None` while it runs."""
        self._exit_thread.join(_EXIT_S)
        code = self._process.returncode
        if code is None:
            return None
        how = f"exited with code {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"
        last = self._printed.last_lines()
        shown = f" Its last lines:\n{last}" if last else ""
        return f"The server process {self.pid} {how}.{shown}"

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until it accepts calls.

        Raises:
            EnvWeaveError: The environment cannot be made.
            StartupError: The process exited, or `timeout_s` seconds passed.
        """
        if self._is_ready:
            return
        ends_s, line = time.monotonic() + timeout_s, b""
        while not line.endswith(b"\n"):
            left_s = ends_s - time.monotonic()
            if left_s <= 0 or not select.select([self._ready_fd], [], [], left_s)[0]:
                raise self._startup_error(f"did not answer within {timeout_s:g} s")
            chunk = os.read(self._ready_fd, 65536)
            if not chunk:
                raise self._startup_error(f"exited {self._exit_status()}")
            line += chunk
        report = json.loads(line)
        if "fault" in report:
            fault = WireFault(**report["fault"])
            if fault.code == INTERNAL.code:
                raise self._startup_error(f"could not start: {fault.message}")
            raise error_of(fault)
        self._is_ready = True

    def _exit_status(self) -> str:
        self._exit_thread.join(STOP_S)
        code = self._process.returncode
        if code is None:
            return "without a reason"
        return f"with code {code}" if code >= 0 else f"by {_signal_name(-code)}"

    def _startup_error(self, how: str) -> StartupError:
        last = self._printed.last_lines()
        shown = f" Its last lines:\n{last}" if last else " It printed nothing."
        return StartupError(f"The server process for {self._name!r} {how}.{shown}")

    def stop(self) -> None:
        """Stop it with SIGTERM, and with SIGKILL after `STOP_S`. May be called twice.

        Does nothing in a forked copy of the process that started it.
        """
        if self._life_fd < 0 or not self._owner.is_current:
            return
        process = self._process
        life_fd, self._life_fd = self._life_fd, -1
        try:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            self._exit_thread.join(STOP_S)
        finally:
            if self._exit_thread.is_alive():
                process.kill()
            self._exit_thread.join()
            os.close(life_fd)
            os.close(self._ready_fd)
            self._printed.end()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


@final
class _StderrReader:
    """Copies a process's stderr to ours, and keeps the last lines.

    A full pipe would block the process, so a thread reads it until the process ends.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        self._pipe = process.stderr
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._thread = threading.Thread(
            target=self._copy, name=f"envweave server {process.pid} stderr", daemon=True
        )
        self._thread.start()

    def _copy(self) -> None:
        for line in self._pipe:
            text = line.decode(errors="replace")
            self._lines.append(text.rstrip("\n"))
            with contextlib.suppress(OSError, ValueError):  # closed, as at the end of a program
                sys.stderr.write(text)

    def last_lines(self) -> str:
        """Return the last lines, after waiting briefly for the end of the output."""
        self._thread.join(1.0)
        return "\n".join(self._lines)

    def end(self) -> None:
        """Stop reading, when the process has ended."""
        self._thread.join(STOP_S)
        if not self._thread.is_alive():
            self._pipe.close()


START_S = 60.0
"""How long a server may take to start."""

_LONGEST_PATH = 100  # of a unix socket, with a margin


@final
class SubprocessProvider(WatchedProvider):
    """Starts a server process for an ID, on a unix socket that only this user can reach.

    It is not isolated: the environment can do what its user can. The process ends when its parent
    does, even if that is killed.

    ```python
    class EchoEnv(HTTPEnvClient[EchoAction, EchoObservation]):
        pass

    with EchoEnv.from_docker_image("echo-v0", provider=SubprocessProvider()) as env:
        env.reset()
    ```

    Args:
        python: The interpreter to run it with, such as that of a virtual environment; by default
            the current one. Another one imports its own packages, and this envweave.
        **options: Fields of `ServerOptions`, such as `workers=2`.
    """

    def __init__(self, *, python: str | None = None, **options: Any) -> None:
        self._python = python
        # A client that stops the server no longer needs its episodes.
        self._options = {"drain_s": 0, **options}
        self._process: ServerProcess | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._unstopped: CloseGuard | None = None

    @property
    def pid(self) -> int | None:
        """The id of the server process; `None` while there is none."""
        return None if self._process is None else self._process.pid

    @property
    def token(self) -> str | None:
        """The access token of the server that was started; `None` if it needs none."""
        token: str | None = self._options.get("token")
        return token

    def why_gone(self) -> str | None:
        """Return how the server process ended; `None` while it runs."""
        return None if self._process is None else self._process.why_gone()

    def another(self) -> SubprocessProvider:
        """Return another provider with the same options, without a server yet."""
        return SubprocessProvider(python=self._python, **self._options)

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> str:
        """Start a server, and return its base URL. It need not answer yet.

        Args:
            image: The ID of an environment: of a package, or `pkg://module:attribute`.
            port: The local port to listen on; by default, it listens on a private unix socket.
            env_vars: Added to the server's environment variables.
            **kwargs: Passed to the environment's constructor.

        Raises:
            DefinitionError: The ID is known in this process only.
            CallOrderError: A server is running already.
        """
        if image.startswith(LOCAL):
            raise DefinitionError(
                f"{image!r} is registered in this process only. Pass 'pkg://module:attribute', or "
                "use make(…, backend='http')."
            )
        return self._start(server_config(EnvSpec(image, ""), kwargs), port, env_vars or {})

    def start(self, spec: EnvSpec, kwargs: Mapping[str, Any]) -> str:
        """Start a server for a spec, and return its base URL when it accepts calls.

        Raises:
            DefinitionError, OptionError: The spec cannot be sent to another process.
            EnvWeaveError: The environment cannot be made.
            StartupError: The server cannot be started.
            CallOrderError: A server is running already.
        """
        self._refuse_second()
        try:
            base_url = self._start(server_config(spec, kwargs), None, {})
            self.wait_for_ready(base_url, START_S)
        except BaseException:
            self.stop_container()
            raise
        return base_url

    def _refuse_second(self) -> None:
        if self._process is not None:
            raise CallOrderError(
                "The provider has started a server already. Stop it first, or use a separate "
                "provider for each."
            )

    def _start(self, served: dict[str, Any], port: int | None, env_vars: Mapping[str, str]) -> str:
        self._refuse_second()
        folder = None
        if port is None:
            folder = _private_folder()
            where: dict[str, Any] = {"uds": str(Path(folder.name) / "server.sock")}
            base_url = f"unix://{where['uds']}"
        else:
            where = {"host": "127.0.0.1", "port": port}
            base_url = f"http://127.0.0.1:{port}"
        try:
            config = {**served, **where, "options": self._options}
            process = ServerProcess(config, env_vars, self._python)
        except BaseException:
            if folder is not None:
                folder.cleanup()
            raise
        self._process, self._folder = process, folder
        self._unstopped = CloseGuard(
            self,
            partial(_end, process, folder),
            "A server process was dropped without stop_container(). Close what it was started for.",
            at_exit=AtExit.WARN,
        )
        return base_url

    def stop_container(self) -> None:
        """Stop the server, and clean up. May be called twice."""
        process, self._process = self._process, None
        folder, self._folder = self._folder, None
        if self._unstopped is not None:
            self._unstopped.disarm()
        if process is not None:
            _end(process, folder)

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """Block until the server at `base_url` accepts calls.

        Raises:
            EnvWeaveError: The environment cannot be made.
            StartupError: The process exited, or `timeout_s` seconds passed. The message ends with
                the last lines that it printed.
        """
        if self._process is None:
            raise CallOrderError(f"No server was started for {base_url!r}.")
        self._process.wait_until_ready(timeout_s)


def _private_folder() -> tempfile.TemporaryDirectory[str]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="envweave-", ignore_cleanup_errors=True)
        if len(folder.name) > _LONGEST_PATH - len("/server.sock"):
            folder.cleanup()
            folder = tempfile.TemporaryDirectory(prefix="envweave-", dir="/tmp")
    except OSError as error:
        raise StartupError(
            f"No folder could be made for the socket of a server process: {error}. Free some "
            "space, or set $TMPDIR to a writable folder."
        ) from error
    return folder


def _end(process: ServerProcess, folder: tempfile.TemporaryDirectory[str] | None) -> None:
    try:
        process.stop()
    finally:
        if folder is not None:
            with contextlib.suppress(OSError):
                folder.cleanup()

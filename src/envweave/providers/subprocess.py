"""`SubprocessProvider`: a server in a process of this machine, without a container engine."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from envweave.errors import CallOrderError, DefinitionError, StartupError
from envweave.providers.definitions import served_as
from envweave.providers.server_process import ServerProcess
from envweave.providers.watched import WatchedProvider
from envweave.registry import EnvSpec
from envweave.registry.registry import LOCAL

START_S = 60.0
"""How long a server may take to start."""

_LONGEST_PATH = 100  # that a unix socket may have, and a little


@final
class SubprocessProvider(WatchedProvider):
    """Starts a server process for an ID, on a unix socket that only this user can reach.

    There are no walls around it: the environment can do what its user can. The process ends when
    its starter does, even if that is killed.

    ```python
    class EchoEnv(HTTPEnvClient[EchoAction, EchoObservation]):
        pass

    with EchoEnv.from_docker_image("echo-v0", provider=SubprocessProvider()) as env:
        env.reset()
    ```

    Args:
        python: The interpreter to start it with, such as that of a virtual environment; this one
            by default. Another one imports its own packages, and this envweave.
        **options: How the server runs its sessions: any field of `ServerOptions`, such as
            `workers=2`.
    """

    def __init__(self, *, python: str | None = None, **options: Any) -> None:
        self._python = python
        # Whoever stops it has no more use for its episodes.
        self._options = {"drain_s": 0, **options}
        self._process: ServerProcess | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._unstopped: weakref.finalize[Any, Any] | None = None

    @property
    def pid(self) -> int | None:
        """The id of the server process; `None` while there is none."""
        return None if self._process is None else self._process.pid

    @property
    def token(self) -> str | None:
        """What to show the server that was started; `None` if it asks for nothing."""
        token: str | None = self._options.get("token")
        return token

    def why_gone(self) -> str | None:
        """Return how the server process ended; `None` while it runs."""
        return None if self._process is None else self._process.why_gone()

    def another(self) -> SubprocessProvider:
        """Return one more of this kind, with the same options and no server yet."""
        return SubprocessProvider(python=self._python, **self._options)

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> str:
        """Start a server, and return its base URL, where nobody need answer yet.

        Args:
            image: The ID of an environment: of a package, or `pkg://module:attribute`.
            port: Listen on this port of loopback; left out, on a private unix socket.
            env_vars: Added to the server's environment variables.
            **kwargs: Passed to the environment's constructor.

        Raises:
            DefinitionError: Only this process knows the ID.
            CallOrderError: One is running already.
        """
        if image.startswith(LOCAL):
            raise DefinitionError(
                f"{image!r} is registered in this process only. Pass 'pkg://module:attribute', or "
                "use make(…, backend='http')."
            )
        return self._start(served_as(EnvSpec(image, ""), kwargs), port, env_vars or {})

    def start(self, spec: EnvSpec, kwargs: Mapping[str, Any]) -> str:
        """Start a server for a recipe, and return its base URL when it takes calls.

        Raises:
            DefinitionError, OptionError: The recipe cannot travel to another process.
            EnvWeaveError: The environment cannot be made.
            StartupError: The server cannot be started.
            CallOrderError: One is running already.
        """
        self._refuse_second()
        try:
            base_url = self._start(served_as(spec, kwargs), None, {})
            self.wait_for_ready(base_url, START_S)
        except BaseException:
            self.stop_container()
            raise
        return base_url

    def _refuse_second(self) -> None:
        if self._process is not None:
            raise CallOrderError(
                "The provider has started a server already. Stop it first, or use a provider of "
                "its own for each."
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
        self._unstopped = weakref.finalize(self, _dropped, process, folder)
        return base_url

    def stop_container(self) -> None:
        """Stop the server, and leave nothing behind. May be called twice."""
        process, self._process = self._process, None
        folder, self._folder = self._folder, None
        if self._unstopped is not None:
            self._unstopped.detach()
        if process is not None:
            _end(process, folder)

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """Block until the server at `base_url` takes calls.

        Raises:
            EnvWeaveError: What it was to serve cannot be made.
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
            f"There is no folder for the socket of a server process: {error}. Make room there, or "
            "set $TMPDIR to a folder that can be written to."
        ) from error
    return folder


def _end(process: ServerProcess, folder: tempfile.TemporaryDirectory[str] | None) -> None:
    try:
        process.stop()
    finally:
        if folder is not None:
            with contextlib.suppress(OSError):
                folder.cleanup()


def _dropped(process: ServerProcess, folder: tempfile.TemporaryDirectory[str] | None) -> None:
    _end(process, folder)
    warnings.warn(
        "A server process was dropped without stop_container(). Close what it was started for.",
        ResourceWarning,
        stacklevel=1,
    )

"""The server and client processes of the remote benchmark, for both libraries."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.measurement.processes import (
    ROOT,
    TIMEOUT_S,
    JsonProcess,
    NotAvailableError,
    ServerProcess,
    child_variables,
    script_python,
)

ENVWEAVE, OPENENV = "envweave", "OpenEnv"
COUNTER = "pkg://benchmarks.remote.envweave_env:Count"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How OpenEnv's server is run.

    Attributes:
        async_step: The environment has `step_async`, which needs no thread.
        compressed: Frames are compressed, as uvicorn and OpenEnv's client agree by default.
        workers: How many server processes share the port.
    """

    async_step: bool = False
    compressed: bool = True
    workers: int = 1

    def as_json(self) -> dict[str, Any]:
        """Return the settings as plain data."""
        return asdict(self)


TEMPLATE = ServerSettings()
"""As in OpenEnv's template for a new environment."""
FASTEST = ServerSettings(async_step=True, compressed=False)
TRIED = (TEMPLATE, ServerSettings(async_step=True), FASTEST)
TRIED_WITH_MANY = (*TRIED, ServerSettings(async_step=True, compressed=False, workers=2))


def python_of(library: str) -> str:
    """Return the interpreter of a library."""
    return script_python("scripts/openenv-venv") if library == OPENENV else sys.executable


def start_server(
    library: str,
    settings: ServerSettings = TEMPLATE,
    *,
    text_size: int = 200,
    env_id: str = COUNTER,
) -> ServerProcess:
    """Start the server of a library as its documentation says, and wait until it is healthy."""

    def command(port: int) -> list[str]:
        address = ["--host", "127.0.0.1", "--port", str(port)]
        if library == ENVWEAVE:
            serve = [sys.executable, "-m", "envweave.cli", "serve", env_id]
            return [*serve, *address, "--max-sessions", "4096"]
        return [
            *(python_of(library), "-m", "uvicorn", "benchmarks.remote.openenv_app:app", *address),
            *("--workers", str(settings.workers), "--no-access-log"),
            *("--ws-per-message-deflate", str(settings.compressed).lower()),
        ]

    def all_workers_are_up(log: str) -> bool:
        # The first worker answers for all of them, and would get every session.
        started = log.count("Application startup complete")
        return settings.workers == 1 or started >= settings.workers

    return ServerProcess(
        command,
        is_ready=all_workers_are_up,
        BENCHMARK_TEXT_SIZE=str(text_size),
        BENCHMARK_ASYNC_STEP=str(int(settings.async_step)),
    )


class ClientAndServer:
    """A client process and the server process it is connected to."""

    def __init__(
        self, library: str, settings: ServerSettings = TEMPLATE, text_size: int = 200
    ) -> None:
        # The client first: it starts while the server does.
        self._client = JsonProcess(
            python_of(library),
            "benchmarks.remote.client",
            library,
            BENCHMARK_TEXT_SIZE=str(text_size),
        )
        try:
            self.server = start_server(library, settings, text_size=text_size)
        except BaseException:
            self._client.stop()
            raise

    def open(self, client: str, sessions: int) -> None:
        """Open sessions and reset them."""
        self._client.request("open", url=self.server.url, client=client, sessions=sessions)

    def run(self, seconds: float) -> float:
        """Step all sessions for this time, and return steps per second."""
        reply = self._client.request("run", seconds=seconds)
        return float(reply["steps"]) / float(reply["seconds"])

    def close(self) -> None:
        """Close the sessions."""
        self._client.request("close")

    def stop(self) -> None:
        """End both processes."""
        self._client.stop()
        self.server.stop()


def time_code(library: str, code: str, before_exit: str = "pass") -> float:
    """Return how long a line of code takes in a fresh interpreter of a library."""
    timed = (
        f"import time; start_s = time.perf_counter(); {code}; "
        f"print(time.perf_counter() - start_s); {before_exit}"
    )
    python = python_of(library)
    done = subprocess.run(
        [python, "-c", timed],
        cwd=ROOT,
        env=child_variables(python),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise NotAvailableError(done.stderr.strip().splitlines()[-1])
    return float(done.stdout.split()[-1])

"""Where the time of one remote step goes, part by part, and the CPU time of both ends.

    benchmarks/run remote --profile

Both processes note the time at the seams of a step: before and after the socket calls, and around
the environment's code. The clock of the machine is the same for both. Noting the time costs about
two microseconds a step itself.
"""

from __future__ import annotations

import atexit
import json
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.measurement.processes import ROOT, ServerProcess, child_variables
from benchmarks.measurement.tables import Table, show

STEPS, WARM_UP = 3000, 500
PARTS = (
    "client: call and encode",
    "client: send",
    "server: wake up and read",
    "server: decode and queue",
    "environment and session rules",
    "server: encode",
    "server: send",
    "client: wake up and read",
    "client: decode",
)

clock = time.monotonic_ns


def noted(function: Callable[..., Any], times: list[int]) -> Callable[..., Any]:
    """Return a function that notes the time before and after each call."""

    def call(*args: Any, **kwargs: Any) -> Any:
        times.append(clock())
        try:
            return function(*args, **kwargs)
        finally:
            times.append(clock())

    return call


def run_server(path: str, port: str) -> None:
    """Serve the counter, and write the times to a file at the end."""
    import envweave as ew
    from envweave.server.dialects.uvicorn_fast_path import FastPathProtocol
    from envweave.server.runtime.threaded_runner import StepJob

    read: list[int] = []
    step: list[int] = []
    write: list[int] = []
    received = FastPathProtocol.data_received

    def data_received(self: Any, data: bytes) -> None:
        read.append(clock())
        received(self, data)

    FastPathProtocol.data_received = data_received  # type: ignore[method-assign]
    StepJob.call = noted(StepJob.call, step)  # type: ignore[method-assign]
    FastPathProtocol.write = noted(FastPathProtocol.write, write)  # type: ignore[method-assign]

    def store() -> None:
        used = time.process_time()
        Path(path).write_text(json.dumps([read, step, write, used]))

    atexit.register(store)
    from benchmarks.remote.envweave_env import Count

    ew.serve(Count, host="127.0.0.1", port=int(port))


def run_client(url: str) -> dict[str, Any]:
    """Step the counter, and return the times."""
    import envweave as ew
    from benchmarks.remote.libraries import ACTION
    from envweave.client.socket import BlockingSocket

    send: list[int] = []
    receive: list[int] = []
    BlockingSocket._send_all = noted(BlockingSocket._send_all, send)  # type: ignore[method-assign] # noqa: SLF001
    BlockingSocket.receive = noted(BlockingSocket.receive, receive)  # type: ignore[method-assign]
    with ew.make(url) as env:
        env.reset()
        for _ in range(WARM_UP):
            env.step(ACTION)
        del send[:], receive[:]
        steps = []
        used = time.process_time()
        for _ in range(STEPS):
            began = clock()
            env.step(ACTION)
            steps.append((began, clock()))
        used = time.process_time() - used
        sends, receives = send[: 2 * STEPS], receive[: 2 * STEPS]
    return {"steps": steps, "send": sends, "receive": receives, "cpu_s": used}


def profile() -> dict[str, float]:
    """Return the median of each part in microseconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.json"

        def command(port: int) -> list[str]:
            return [
                sys.executable,
                "-m",
                "benchmarks.remote.profile",
                "server",
                str(path),
                f"{port}",
            ]

        server = ServerProcess(command)
        try:
            client = json.loads(
                subprocess.check_output(
                    [sys.executable, "-m", "benchmarks.remote.profile", "client", server.url],
                    cwd=ROOT,
                    env=child_variables(sys.executable),
                )
            )
        finally:
            server.stop()
        read, step, write, _ = json.loads(path.read_text())
    rows = []
    for i, (began, ended) in enumerate(client["steps"]):
        sending, sent = client["send"][2 * i : 2 * i + 2]
        received = client["receive"][2 * i + 1]
        stepping, stepped = step[2 * (WARM_UP + i) : 2 * (WARM_UP + i) + 2]
        arrived = read[bisect_right(read, stepping) - 1]
        at = bisect_left(write[::2], stepped)
        writing, written = write[2 * at : 2 * at + 2]
        marks = [
            began,
            sending,
            sent,
            arrived,
            stepping,
            stepped,
            writing,
            written,
            received,
            ended,
        ]
        rows.append([after - before for before, after in pairwise(marks)])
    return {
        part: statistics.median(column) / 1000
        for part, column in zip(PARTS, zip(*rows, strict=True), strict=True)
    } | {
        "whole step": statistics.median(b - a for a, b in client["steps"]) / 1000,
        "CPU time of the client": client["cpu_s"] / STEPS * 1e6,
    }


def main() -> int:
    """Print the profile."""
    parts = profile()
    table = Table(
        "One remote step, part by part",
        ("part", ">median"),
        [(name, f"{micros:.1f} µs") for name, micros in parts.items()],
        ["The reply may arrive before the server's `send` returns: a part can be negative."],
    )
    show(table)
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "server":
        run_server(*sys.argv[2:])
    else:
        print(json.dumps(run_client(sys.argv[2])))

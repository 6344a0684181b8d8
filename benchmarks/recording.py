"""What recording costs: time of the caller's thread, and the rate that it allows.

    benchmarks/run recording                       about 20 seconds
    benchmarks/run recording --seconds 1 --json recording.json

`added` is the CPU time of the caller's own thread that `record=` adds to a step, or to a row of a
vector: the values are packed and queued there, and encoded and written by the writer's thread.
`rate` is how many steps a second are taken, without and with a recording: an environment that does
nothing else is faster than the writer, and then waits for it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import envweave as ew
from benchmarks.measurement.machine import describe_machine

BURST = 2_000
"""Steps between two measurements: fewer than are queued before a caller waits."""


class Pixels(ew.Environment):
    """Shows an Atari-sized image."""

    def __init__(self) -> None:
        self._image = np.zeros((84, 84, 4), np.uint8)
        self._at = 0

    def reset(self, *, seed: int | None = None) -> Any:
        return self._image, {}

    def step(self, action: int) -> Any:
        self._at = (self._at + 1) % 256
        self._image[:] = self._at
        return self._image, 1.0, False, False, {}


class Vectors(ew.Environment):
    """Shows 16 floats."""

    def reset(self, *, seed: int | None = None) -> Any:
        return np.zeros(16), {}

    def step(self, action: int) -> Any:
        return np.ones(16), 1.0, False, False, {}


CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "dataclass": ("counter-v0", {"delta": 1}, {"done_at": 10**9}),
    "array of 16 floats": (Vectors, 1, {}),
    "image of 84 x 84 x 4": (Pixels, 1, {}),
}


def time_steps(
    env: Any, action: Any, seconds: float, record: Path | None, **kwargs: Any
) -> tuple[float, float]:
    """Return the CPU time of this thread per step, and the wall time, in microseconds."""
    with ew.make(env, record=record, **kwargs) as made:
        made.reset(seed=0)
        return time_calls(lambda: made.step(action), seconds, pause=record is not None)


def time_rows(num_envs: int, seconds: float, record: Path | None) -> tuple[float, float]:
    """Return the same for a row of a vector."""
    with ew.make_vector("counter-v0", num_envs=num_envs, record=record, done_at=10**9) as venv:
        venv.reset(seed=0)
        actions = [{"delta": 1}] * num_envs
        burst = max(1, BURST // num_envs)
        own, wall = time_calls(
            lambda: venv.step(actions), seconds, pause=record is not None, burst=burst
        )
    return own / num_envs, wall / num_envs


def time_calls(
    call: Callable[[], Any], seconds: float, *, pause: bool, burst: int = BURST
) -> tuple[float, float]:
    """Return the median CPU time of this thread per call in bursts, and the mean wall time."""
    for _ in range(burst):
        call()
    own: list[float] = []
    ends_s = time.perf_counter() + seconds / 2
    while time.perf_counter() < ends_s:
        began_s = time.thread_time()
        for _ in range(burst):
            call()
        own.append((time.thread_time() - began_s) / burst)
        if pause:
            time.sleep(0.1)  # the writer empties its queue
    calls, began_s = 0, time.perf_counter()
    while time.perf_counter() - began_s < seconds / 2:
        for _ in range(burst):
            call()
        calls += burst
    return statistics.median(own) * 1e6, (time.perf_counter() - began_s) / calls * 1e6


def measure(seconds: float) -> list[dict[str, Any]]:
    """Measure every case without and with a recording."""
    rows = []
    folder = Path(tempfile.mkdtemp(prefix="envweave-recording-"))
    try:
        measurements: dict[str, Callable[[Path | None], tuple[float, float]]] = {
            name: lambda record, case=case: time_steps(case[0], case[1], seconds, record, **case[2])
            for name, case in CASES.items()
        }
        measurements["a row of 256, dataclass"] = lambda record: time_rows(256, seconds, record)
        for place, (name, run) in enumerate(measurements.items()):
            plain, plain_wall = run(None)
            recorded, recorded_wall = run(folder / str(place))
            rows.append(
                {
                    "case": name,
                    "plain_us": plain,
                    "recorded_us": recorded,
                    "added_us": recorded - plain,
                    "plain_rate": 1e6 / plain_wall,
                    "recorded_rate": 1e6 / recorded_wall,
                }
            )
    finally:
        shutil.rmtree(folder)
    return rows


def show(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'step':24} {'plain':>9} {'added':>9} {'rate plain':>14} {'rate recorded':>14}"]
    lines += [
        f"{row['case']:24} {row['plain_us']:6.2f} µs {row['added_us']:6.2f} µs "
        f"{row['plain_rate']:12,.0f}/s {row['recorded_rate']:12,.0f}/s"
        for row in rows
    ]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks/run recording",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="time of each measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")
    options = parser.parse_args(arguments)
    rows = measure(options.seconds)
    print(show(rows))
    if options.json is not None:
        results = {"rows": rows, "machine": describe_machine()}
        options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0

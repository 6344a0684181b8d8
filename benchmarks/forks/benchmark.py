"""Forks against new environments: the time until each of eight children has taken a step.

    benchmarks/run forks                     five rounds; about two minutes
    benchmarks/run forks --repeats 15        more rounds
    benchmarks/run forks --places sandbox    some of them
    benchmarks/run forks --json FILE         write the results to FILE as well

An episode has run for a while. `fork(8)` is compared with eight new environments that are made in
the same way and take the same steps first, one after another; for servers also with eight sessions
at the one server. The environment is echo-v0 after 200 steps, whose steps cost next to nothing,
which favors taking them again; and a code environment in the sandbox after eight steps, which are
quick or take a tenth of a second each. `docker_http` needs a Docker engine and the image echo-env:
scripts/docker-engine start, scripts/docker-images.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import envweave as ew
from benchmarks.measurement.machine import describe_machine, keep_cores_awake
from benchmarks.measurement.pages import write_json
from benchmarks.measurement.program import positive
from benchmarks.measurement.tables import DASH, Table, show

PLACES = ["inproc", "process", "http", "docker_http", "sandbox"]
CHILDREN = 8
IMAGE = "echo-env:latest"

ECHO = [{"message": "hello"}] * 200
QUICK = [{"code": f"rows = [[i * {n} for i in range(100)] for _ in range(10)]"} for n in range(8)]
SLOW = [{"code": f"import time; time.sleep(0.1); n = {n}"} for n in range(8)]

Make = Callable[[], ew.Env]
Times = dict[str, list[float]]


def play(env: ew.Env, actions: list[Any]) -> None:
    env.reset(seed=1)
    for action in actions:
        env.step(action)


def time_fork(env: ew.Env, action: Any) -> float:
    """Return how long it takes until each child has taken a step."""
    start_s = time.perf_counter()
    children = env.fork(CHILDREN)
    for child in children:
        child.step(action)
    took_s = time.perf_counter() - start_s
    for child in children:
        child.close()
    return took_s


def time_new(make: Make, actions: list[Any]) -> float:
    """Return the same for new environments, which take the steps again."""
    with ExitStack() as stack:
        start_s = time.perf_counter()
        for _ in range(CHILDREN):
            env = stack.enter_context(make())
            play(env, actions)
            env.step(actions[0])
        return time.perf_counter() - start_s


@contextmanager
def server(provider: Any, image: str) -> Iterator[Make]:
    """Start a server; yield what opens a session there."""
    url = provider.start_container(image)
    try:
        provider.wait_for_ready(url)
        yield partial(ew.make, url, token=provider.token)
    finally:
        provider.stop_container()


def measure_place(make: Make, actions: list[Any], repeats: int, sessions: Make | None) -> Times:
    """Return the times of one place; the first round is a warm-up."""
    times: Times = {"fork": [], "new": []}
    with make() as env:
        play(env, actions)
        for number in range(repeats + 1):
            round_s = {"fork": time_fork(env, actions[0]), "new": time_new(make, actions)}
            if sessions is not None:
                round_s["sessions"] = time_new(sessions, actions)
            if number:
                for name, seconds in round_s.items():
                    times.setdefault(name, []).append(seconds)
    return times


def why_no_docker() -> str | None:
    """Return why containers cannot be measured; `None` if they can."""
    command = ["docker", "image", "inspect", "--format", "{{.Id}}", IMAGE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"there is no Docker engine ({error})"
    return None if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def measure(places: list[str], repeats: int) -> tuple[dict[str, Times], str | None]:
    """Return the times by place, and why there are none of containers."""
    code = partial(ew.make, ew.create_codeact_env)
    skipped = why_no_docker() if "docker_http" in places else None
    found: dict[str, Times] = {}
    with ExitStack() as stack:
        stack.enter_context(keep_cores_awake())
        for place in places:
            make = partial(ew.make, "echo-v0", backend=place)
            if place in ("inproc", "process"):
                found[place] = measure_place(make, ECHO, repeats, None)
            elif place == "http":
                with server(ew.SubprocessProvider(), "echo-v0") as sessions:
                    found[place] = measure_place(make, ECHO, repeats, sessions)
            elif place == "sandbox":
                found["sandbox, 8 quick steps"] = measure_place(code, QUICK, repeats, None)
                found["sandbox, 8 steps of 0.1 s"] = measure_place(code, SLOW, repeats, None)
            elif skipped is None:
                with server(ew.LocalDockerProvider(), IMAGE) as sessions:
                    found[place] = measure_place(make, ECHO, repeats, sessions)
    return found, skipped


def median_and_fastest(samples: list[float] | None) -> tuple[str, str]:
    if not samples:
        return DASH, DASH
    return f"{statistics.median(samples) * 1e3:,.1f} ms", f"{min(samples) * 1e3:,.1f} ms"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks/run forks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repeats", type=positive, default=5, metavar="N", help="rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")
    parser.add_argument(
        "--places", nargs="+", choices=PLACES, default=PLACES, help="by default all"
    )
    options = parser.parse_args(arguments)
    found, skipped = measure(options.places, options.repeats)
    rows = []
    for place, times in found.items():
        ratio = statistics.median(times["new"]) / statistics.median(times["fork"])
        cells = [median_and_fastest(times.get(name)) for name in ("fork", "new", "sessions")]
        rows.append((place, *cells[0], *cells[1], f"{ratio:,.1f}×", *cells[2]))
    columns = (
        "place",
        ">fork(8)",
        ">fastest",
        ">8 new",
        ">fastest",
        ">ratio",
        ">8 sessions at one server",
        ">fastest",
    )
    notes = [] if skipped is None else [f"docker_http is skipped: {skipped}"]
    show(Table("Until each of 8 children has taken a step", columns, rows, notes))
    if options.json:
        machine = describe_machine()
        write_json(options.json, {"machine": machine, "seconds": found, "skipped": skipped})
    return 0

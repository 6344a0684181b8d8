"""The time to the first step of an episode: `docker run`, containers, a warm pool, a process.

    benchmarks/run containers                  five rounds; about a minute
    benchmarks/run containers --repeats 15     more rounds
    benchmarks/run containers --json FILE      write the results to FILE as well

Each round measures all of them. For the warm pool it waits until the pool is full again: what is
measured is how long a caller waits. Needs a Docker engine and the images: scripts/docker-engine
start, scripts/docker-images.
"""

from __future__ import annotations

import argparse
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import envweave as ew
from benchmarks.measurement.machine import describe_machine, keep_cores_awake
from benchmarks.measurement.pages import write_json
from benchmarks.measurement.processes import answers_health
from benchmarks.measurement.program import positive
from benchmarks.measurement.tables import Table, show

IMAGE = "echo-env:latest"
TIMEOUT_S = 60.0


def reset_and_step(env: ew.Env) -> None:
    env.reset()
    env.step({"message": "hi"})


def docker_run() -> float:
    """Start a container without envweave's providers, and wait for its server."""
    token, start_s = secrets.token_hex(8), time.perf_counter()
    publish = ["--detach", "--publish", "127.0.0.1::8000"]
    name = docker("run", *publish, "--env", f"ENVWEAVE_TOKEN={token}", IMAGE)
    try:
        port = int(docker("port", name, "8000/tcp").rpartition(":")[2])
        url = f"http://127.0.0.1:{port}"
        while not answers_health(port):
            if time.perf_counter() - start_s > TIMEOUT_S:
                sys.exit(f"benchmarks/run containers: {IMAGE} does not answer at {url}.")
            time.sleep(0.01)
        with ew.make(url, token=token) as env:
            reset_and_step(env)
            return time.perf_counter() - start_s
    finally:
        docker("rm", "--force", name)


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"benchmarks/run containers: docker {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def first_step(**options: Any) -> float:
    start_s = time.perf_counter()
    with ew.make("echo-v0", **options) as env:
        reset_and_step(env)
        return time.perf_counter() - start_s


def warm(pool: ew.WarmPool) -> float:
    pool.wait_until_warm()
    time.sleep(0.5)  # until the engine is idle, too
    return first_step(provider=pool)


def measure(repeats: int) -> dict[str, list[float]]:
    with ExitStack() as stack:
        stack.enter_context(keep_cores_awake())
        pool = stack.enter_context(ew.WarmPool(IMAGE, size=1))
        ways: dict[str, Callable[[], float]] = {
            "docker run": docker_run,
            "LocalDockerProvider": lambda: first_step(provider=ew.LocalDockerProvider()),
            "LocalDockerProvider, network none": lambda: first_step(
                provider=ew.LocalDockerProvider(network="none")
            ),
            "WarmPool": lambda: warm(pool),
            "SubprocessProvider": lambda: first_step(backend="http"),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(repeats + 1):
            for name, run in ways.items():
                seconds = run()
                if number:  # the first round is a warm-up
                    times[name].append(seconds)
    return times


def image_sizes() -> dict[str, int]:
    images = ("envweave-base", "echo-env", "envweave-lineworld", "coding-env")
    names = [f"{name}:latest" for name in images]
    sizes = docker("image", "inspect", "--format", "{{.Size}}", *names).split()
    return {name: round(int(size) / 1e6) for name, size in zip(images, sizes, strict=True)}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks/run containers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repeats", type=positive, default=5, metavar="N", help="rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")
    options = parser.parse_args(arguments)
    times, sizes = measure(options.repeats), image_sizes()
    base_s = statistics.median(times["docker run"])
    rows = []
    for name, samples in times.items():
        median_s = statistics.median(samples)
        shown = [f"{seconds * 1e3:,.0f} ms" for seconds in (median_s, min(samples), max(samples))]
        rows.append((name, *shown, f"{base_s / median_s:.1f}×"))
    columns = ("to the first step", ">median", ">fastest", ">slowest", ">ratio to docker run")
    show(Table("Containers", columns, rows))
    show(Table("Images", ("image", ">size"), [(name, f"{mb} MB") for name, mb in sizes.items()]))
    if options.json:
        results = {"machine": describe_machine(), "seconds": times, "megabytes": sizes}
        write_json(options.json, results)
    return 0

"""From nothing to the first step of an episode: by `docker run`, a warm pool, a process.

    python benchmarks/containers.py                  five rounds; about a minute
    python benchmarks/containers.py --repeats 15     more of them
    python benchmarks/containers.py --json           as one line of JSON

Who takes part takes turns, round by round, and each is told by its median and its spread. A round
of the warm pool begins when the pool is full again: what is measured is the wait of a caller. Needs
an engine and the images: scripts/docker-engine start, scripts/docker-images.
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

try:
    from awake import awake

    import envweave as ew
    from envweave.bench.memory import describe_machine
    from envweave.providers.docker.provider import LocalDockerProvider
    from envweave.providers.docker.warm_pool import WarmPool
    from envweave.providers.health import answers_health
except ImportError as error:
    sys.exit(f"containers.py: {error}. Install envweave: pip install -e '.[docker]'")

IMAGE = "echo-env:latest"
PATIENCE_S = 60.0


def play(env: ew.Env) -> None:
    env.reset()
    env.step({"message": "hi"})


def docker_run() -> float:
    """What one writes without a provider: the command, and a wait for the server."""
    token, began_s = secrets.token_hex(8), time.perf_counter()
    command = ["docker", "run", "--detach", "--publish", "127.0.0.1::8000"]
    told = ["--env", f"ENVWEAVE_TOKEN={token}", IMAGE]
    name = docker(*command[1:], *told)
    try:
        port = docker("port", name, "8000/tcp").rpartition(":")[2]
        url = f"http://127.0.0.1:{port}"
        while not answers_health(url, 5.0):
            if time.perf_counter() - began_s > PATIENCE_S:
                sys.exit(f"containers.py: {IMAGE} does not answer at {url}.")
            time.sleep(0.01)
        with ew.make(url, token=token) as env:
            play(env)
            return time.perf_counter() - began_s
    finally:
        docker("rm", "--force", name)


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"containers.py: docker {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout.strip()


def first_step(**options: Any) -> float:
    began_s = time.perf_counter()
    with ew.make("echo-v0", **options) as env:
        play(env)
        return time.perf_counter() - began_s


def warm(pool: WarmPool) -> float:
    pool.wait_until_warm()
    time.sleep(0.5)  # until the engine has done its own work, too
    return first_step(provider=pool)


def measure(repeats: int) -> dict[str, list[float]]:
    with ExitStack() as stack:
        stack.enter_context(awake())
        pool = stack.enter_context(WarmPool(IMAGE, size=1))
        contenders: dict[str, Callable[[], float]] = {
            "docker run": docker_run,
            "LocalDockerProvider": lambda: first_step(provider=LocalDockerProvider()),
            "LocalDockerProvider, network none": lambda: first_step(
                provider=LocalDockerProvider(network="none")
            ),
            "WarmPool": lambda: warm(pool),
            "SubprocessProvider": lambda: first_step(backend="http"),
        }
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(repeats + 1):
            for name, run in contenders.items():
                took_s = run()
                if number:  # the first round warms caches
                    times[name].append(took_s)
    return times


def sizes() -> dict[str, float]:
    images = ("envweave-base", "echo-env", "envweave-lineworld", "coding-env")
    told = docker("image", "inspect", "--format", "{{.Size}}", *(f"{n}:latest" for n in images))
    return {name: round(int(size) / 1e6) for name, size in zip(images, told.split(), strict=True)}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "containers.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="how many rounds")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error("--repeats is 1 or more")
    times, weights = measure(options.repeats), sizes()
    medians = {name: statistics.median(some) for name, some in times.items()}
    if options.json:
        told = {"machine": describe_machine(), "seconds": times, "megabytes": weights}
        print(json.dumps(told, default=str))
        return 0
    base_s = medians["docker run"]
    print(f"{'to the first step':36} {'median':>9} {'least':>9} {'most':>9} {'ratio':>7}")
    for name, some in times.items():
        least, most, median = (value * 1e3 for value in (min(some), max(some), medians[name]))
        ratio = base_s / medians[name]
        print(f"{name:36} {median:6.0f} ms {least:6.0f} ms {most:6.0f} ms {ratio:6.1f}x")
    print()
    for name, weight in weights.items():
        print(f"{name:36} {weight:6.0f} MB")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)

"""Environments on Ray: throughput, scaling over nodes, and what is lost when parts are killed.

    benchmarks/run ray                        everything; about ten minutes
    benchmarks/run ray --only rates           steps/s against other ways
    benchmarks/run ray --only nodes           one to three nodes on this machine
    benchmarks/run ray --only sleeping        10,000 environments whose steps wait for a second
    benchmarks/run ray --only faults          2,048 episodes while actors and a node are killed
    benchmarks/run ray --docs                 store the results for the docs

All nodes are on this machine (`ray.cluster_utils`), so nodes share its cores: what is measured is
the cost of Ray and of the driver, not the speed of a network.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster

import envweave as ew
from benchmarks.ray.environments import KINDS, Sleeping, Where

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "docs/assets/ray.json"
NUM_ENVS = 64
ROUNDS = 5


@contextmanager
def cluster(nodes: int = 1, cpus: int = 2) -> Iterator[Cluster]:
    """Start a cluster, and connect to it."""
    started = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus})
    for _ in range(nodes - 1):
        started.add_node(num_cpus=cpus)
    started.wait_for_nodes()
    ray.init(address=started.address, configure_logging=False, log_to_driver=False)
    try:
        yield started
    finally:
        ray.shutdown()
        started.shutdown()


def rate(step: Callable[[], int], seconds: float) -> float:
    """Call `step` for so many seconds; return how many steps of environments it took per second."""
    for _ in range(3):
        step()
    steps, began_s = 0, time.perf_counter()
    while (taken_s := time.perf_counter() - began_s) < seconds:
        steps += step()
    return steps / taken_s


# Rates


@ray.remote(num_cpus=0)
class OneEnvironment:
    """The usual way: an actor for each environment."""

    def __init__(self, kind: str) -> None:
        self._env = KINDS[kind]()
        self._env.reset(seed=0)

    def step(self, action: int) -> Any:
        """Take a step."""
        return self._env.step(action)


@contextmanager
def one_actor_each(kind: str) -> Iterator[Callable[[], int]]:
    """Step 64 environments, each in an actor of its own."""
    actors = [OneEnvironment.remote(kind) for _ in range(NUM_ENVS)]

    def step() -> int:
        rows = ray.get([actor.step.remote(0) for actor in actors])
        np.stack([row[0] for row in rows])
        return NUM_ENVS

    try:
        yield step
    finally:
        for actor in actors:
            ray.kill(actor)


@contextmanager
def vector(kind: str, backend: str, **options: Any) -> Iterator[Callable[[], int]]:
    """Step a vector of ours."""
    actions = np.zeros(NUM_ENVS, np.int64)
    with ew.make_vector(KINDS[kind], num_envs=NUM_ENVS, backend=backend, **options) as venv:
        venv.reset(seed=0)

        def step() -> int:
            venv.step(actions)
            return NUM_ENVS

        yield step


@contextmanager
def rllib(kind: str) -> Iterator[Callable[[], int]]:
    """Sample with two of RLlib's EnvRunners, 32 environments each, and random actions."""
    import gymnasium
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.env.env_runner_group import EnvRunnerGroup

    def make(_: Any) -> Any:
        return gymnasium.wrappers.TimeLimit(KINDS[kind](), 10_000)

    config = (
        PPOConfig().environment(make).env_runners(num_env_runners=2, num_envs_per_env_runner=32)
    )
    config = config.env_runners(rollout_fragment_length=20)
    group = EnvRunnerGroup(config=config)

    def step() -> int:
        done = group.foreach_env_runner(
            lambda runner: sum(len(one) for one in runner.sample(random_actions=True)),
            local_env_runner=False,
        )
        return int(sum(done))

    try:
        yield step
    finally:
        group.stop()


def measure_rates(seconds: float) -> list[dict[str, Any]]:
    """Compare ways to step 64 environments, interleaved."""
    rows = []
    ways: dict[str, Callable[[str], Any]] = {
        "envweave on Ray, two workers": lambda kind: vector(kind, "ray", workers=2),
        "envweave, two worker processes": lambda kind: vector(kind, "process", workers=2),
        "Ray, one actor per environment": one_actor_each,
        "RLlib, two EnvRunners": rllib,
    }
    with cluster(cpus=4):
        for kind in KINDS:
            rates: dict[str, list[float]] = {name: [] for name in ways}
            with ExitStack() as opened:
                steps = {name: opened.enter_context(way(kind)) for name, way in ways.items()}
                for _ in range(ROUNDS):
                    for name, step in steps.items():
                        rates[name].append(rate(step, seconds))
            for name, found in rates.items():
                rows.append({"kind": kind, "way": name, "steps_per_s": found})
                print(
                    f"{kind:12}{name:34}{statistics.median(found):12,.0f} steps/s "
                    f"({min(found):,.0f} to {max(found):,.0f})"
                )
    return rows


# Nodes


def measure_nodes(seconds: float) -> list[dict[str, Any]]:
    """Measure what a step costs the driver, with one to three nodes."""
    rows = []
    for nodes in (1, 2, 3):
        with cluster(nodes=nodes, cpus=1):
            for kind, count in (("near-empty", 64), ("near-empty", 512), ("64 KiB", 64)):
                actions = np.zeros(count, np.int64)
                with ew.make_vector(KINDS[kind], num_envs=count, backend="ray") as venv:
                    observations = venv.reset(seed=0).current
                    times: list[float] = []
                    cpu_s, began_s = _driver_cpu_s(), time.perf_counter()
                    while time.perf_counter() - began_s < seconds:
                        step_s = time.perf_counter()
                        venv.step(actions)
                        times.append(time.perf_counter() - step_s)
                    cpu_s = _driver_cpu_s() - cpu_s
                row = {
                    "nodes": nodes,
                    "kind": kind,
                    "num_envs": count,
                    "steps_per_s": count * len(times) / sum(times),
                    "batch_ms": statistics.median(times) * 1000,
                    "batch_p99_ms": float(np.percentile(times, 99)) * 1000,
                    "driver_us_per_step": cpu_s / len(times) / count * 1e6,
                    "driver_ms_per_batch": cpu_s / len(times) * 1000,
                    "bytes_per_step": observations.nbytes / count + 8 + 8,
                }
                rows.append(row)
                print(
                    f"{nodes} nodes  {kind:12}{count:5} envs {row['steps_per_s']:10,.0f} steps/s  "
                    f"batch {row['batch_ms']:.1f} ms (p99 {row['batch_p99_ms']:.1f})  "
                    f"driver {row['driver_us_per_step']:.1f} µs a step, "
                    f"{row['bytes_per_step']:,.0f} bytes a step"
                )
    return rows


def _driver_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# Many sleeping environments


def measure_sleeping(count: int) -> dict[str, Any]:
    """Step `count` environments that wait for a second, several times."""
    with (
        cluster(cpus=2),
        ew.make_vector(Sleeping, num_envs=count, backend="ray", workers=4) as venv,
    ):
        began_s = time.perf_counter()
        venv.reset(seed=0)
        reset_s = time.perf_counter() - began_s
        actions = np.zeros(count, np.int64)
        times, cpu_s = [], _driver_cpu_s()
        for _ in range(5):
            began_s = time.perf_counter()
            venv.step(actions)
            times.append(time.perf_counter() - began_s)
        cpu_s = _driver_cpu_s() - cpu_s
    row = {
        "num_envs": count,
        "reset_s": reset_s,
        "batch_s": statistics.median(times),
        "steps_per_s": count / statistics.median(times),
        "driver_us_per_step": cpu_s / 5 / count * 1e6,
    }
    print(
        f"{count:,} environments with steps of 1 s: a batch takes {row['batch_s']:.2f} s "
        f"({row['steps_per_s']:,.0f} steps/s), the driver {row['driver_us_per_step']:.0f} µs a "
        f"step, the first reset {reset_s:.1f} s"
    )
    return row


# Faults


def measure_faults(episodes: int, concurrency: int) -> dict[str, Any]:
    """Play episodes while worker actors are killed at random, and one node."""
    rng = random.Random(0)
    kills: list[int] = []
    with cluster(nodes=3, cpus=1) as started:
        node = started.list_all_nodes()[-1] if hasattr(started, "list_all_nodes") else None
        victims: set[int] = set()

        async def agent(result: Any) -> int:
            victims.add(int(result.observation[1]))
            return 0

        with ew.pool(Where, size=concurrency, backend="ray", workers=6) as pool:
            run = ew.rollout(pool, agent, episodes=episodes, seed=7, attempts=10, progress=False)
            import threading

            over = threading.Event()

            def attack() -> None:
                for k in range(8):
                    if over.wait(0.7):
                        return
                    if k == 4 and node is not None:
                        started.remove_node(node, allow_graceful=False)
                        continue
                    pid = rng.choice(sorted(victims - set(kills)) or [0])
                    if pid:
                        try:
                            os.kill(pid, signal.SIGKILL)
                            kills.append(pid)
                        except ProcessLookupError:
                            pass

            attacker = threading.Thread(target=attack)
            attacker.start()
            began_s = time.perf_counter()
            played = run.run()
            taken_s = time.perf_counter() - began_s
            over.set()
            attacker.join()
            faults = run.faults
    seeds = Counter(episode.seed for episode in played)
    row = {
        "episodes": len(played),
        "usable": sum(episode.usable for episode in played),
        "distinct": len(seeds),
        "twice": sum(count > 1 for count in seeds.values()),
        "killed_actors": len(kills),
        "killed_nodes": 1,
        "faults": str(faults),
        "seconds": taken_s,
    }
    print(json.dumps(row, indent=1))
    return row


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="benchmarks/run ray", description=about)
    parser.add_argument("--only", choices=["rates", "nodes", "sleeping", "faults"])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--docs", action="store_true", help="store the results for the docs")
    options = parser.parse_args(arguments)
    parts: dict[str, Callable[[], Any]] = {
        "rates": lambda: measure_rates(options.seconds),
        "nodes": lambda: measure_nodes(options.seconds),
        "sleeping": lambda: measure_sleeping(10_000),
        "faults": lambda: measure_faults(2048, 128),
    }
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    for name, part in parts.items():
        if options.only in (None, name):
            stored[name] = part()
    if options.docs:
        STORED.write_text(json.dumps(stored, indent=1) + "\n")
    return 0

"""Environments on Ray: throughput, scaling over nodes, and what is lost when parts are killed.

    benchmarks/run ray                        everything; about ten minutes
    benchmarks/run ray --only rates           steps/s against other ways
    benchmarks/run ray --only nodes           one to three nodes on this machine
    benchmarks/run ray --only workers         one to eight workers: what each costs the driver
    benchmarks/run ray --only sleeping        10,000 environments whose steps wait for a second
    benchmarks/run ray --only recovery        three nodes, one of which is killed: when what happens
    benchmarks/run ray --only faults          2,048 episodes while actors and a node are killed
    benchmarks/run ray --docs                 store the results and write them into the docs

Each part is stored as soon as it is measured. `scale.py` computes from them what a large cluster
would do. All nodes are on this machine (`ray.cluster_utils`), so nodes share its cores: what is
measured is the cost of Ray and of the driver, not the speed of a network.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import resource
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster

import envweave as ew
from benchmarks.measurement.machine import describe_machine
from benchmarks.ray.environments import KINDS, Sleeping, TenSteps, Where
from benchmarks.ray.scale import ONE_ACTOR_EACH, RESULTS

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
        ONE_ACTOR_EACH: one_actor_each,
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


# Nodes and workers


def measure_nodes(seconds: float) -> list[dict[str, Any]]:
    """Measure vectors on one to three nodes, with as many workers as these have processors."""
    rows = []
    for nodes in (1, 2, 3):
        with cluster(nodes=nodes, cpus=1):
            for kind, count in (("near-empty", 64), ("near-empty", 512), ("64 KiB", 64)):
                rows.append({"nodes": nodes, **measure_vector(kind, count, nodes, seconds)})
                print(_line(rows[-1]))
    return rows


def measure_workers(seconds: float) -> list[dict[str, Any]]:
    """Measure what workers, environments and bytes cost the driver, on one node."""
    rows = []
    cases = [("near-empty", count, workers) for workers in (1, 2, 4, 8) for count in (64, 1024)]
    cases += [("64 KiB", 16, 2), ("64 KiB", 64, 2)]
    with cluster(cpus=8):
        for kind, count, workers in cases:
            rows.append(measure_vector(kind, count, workers, seconds))
            print(_line(rows[-1]))
    return rows


def measure_vector(kind: str, count: int, workers: int, seconds: float) -> dict[str, Any]:
    """Step a vector for so many seconds; return times and what it cost this process."""
    actions = np.zeros(count, np.int64)
    with ew.make_vector(KINDS[kind], num_envs=count, backend="ray", workers=workers) as venv:
        observations = venv.reset(seed=0).current
        for _ in range(20):
            venv.step(actions)
        times: list[float] = []
        cpu_s, began_s = _driver_cpu_s(), time.perf_counter()
        while time.perf_counter() - began_s < seconds:
            step_s = time.perf_counter()
            venv.step(actions)
            times.append(time.perf_counter() - step_s)
        cpu_s = _driver_cpu_s() - cpu_s
    return {
        "kind": kind,
        "num_envs": count,
        "workers": workers,
        "steps_per_s": count * len(times) / sum(times),
        "batch_ms": statistics.median(times) * 1000,
        "batch_p99_ms": float(np.percentile(times, 99)) * 1000,
        "driver_ms_per_batch": cpu_s / len(times) * 1000,
        "bytes_per_step": observations.nbytes / count + 8 + 8,
    }


def _line(row: dict[str, Any]) -> str:
    where = f"{row['nodes']} nodes  " if "nodes" in row else ""
    return (
        f"{where}{row['workers']} workers  {row['kind']:12}{row['num_envs']:5} envs "
        f"{row['steps_per_s']:10,.0f} steps/s  batch {row['batch_ms']:.1f} ms "
        f"(p99 {row['batch_p99_ms']:.1f}), the driver {row['driver_ms_per_batch']:.2f} ms of CPU, "
        f"{row['bytes_per_step']:,.0f} bytes a step"
    )


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


# A node that dies

RECOVERY_ENVS = 48


def measure_recovery(seconds: float) -> dict[str, Any]:
    """Step a vector on three nodes, kill one of them, and account for every episode."""
    begun: set[str] = set()
    ends: list[tuple[str, str]] = []  # every end: which episode, and why
    batches: list[tuple[float, int]] = []  # when each was done, and how many rows were valid
    with (
        cluster(nodes=3, cpus=1) as started,
        ew.make_vector(
            TenSteps, num_envs=RECOVERY_ENVS, backend="ray", workers=3, autoreset=True
        ) as venv,
    ):
        venv.reset(seed=0)
        actions, began_s, killed_s = np.zeros(RECOVERY_ENVS, np.int64), time.perf_counter(), 0.0
        killer: threading.Thread | None = None
        recovered_s = math.inf
        while (now_s := time.perf_counter() - began_s) < recovered_s + seconds:
            if killer is None and now_s > seconds:
                killer, killed_s = _kill_a_node(started), now_s
            batch = venv.step(actions)
            begun.update(batch.episode_id)
            ends += [(row.episode_id, row.end.reason) for row in batch if row.end is not None]
            batches.append((time.perf_counter() - began_s, int(batch.valid.sum())))
            was_hit = any(valid < RECOVERY_ENVS for _, valid in batches)
            if was_hit and batch.valid.all():
                recovered_s = min(recovered_s, batches[-1][0])
        running = int((~batch.done).sum())
        assert killer is not None
        killer.join()
    hit_s = next(at_s for at_s, valid in batches if valid < RECOVERY_ENVS)
    reasons = Counter(reason for _, reason in ends)
    ended = {episode for episode, _ in ends}
    row = {
        "environments": RECOVERY_ENVS,
        "noticed_s": hit_s - killed_s,
        "recovered_s": recovered_s - killed_s,
        "steps_per_s_before": _rate_between(batches, 0.0, killed_s),
        "steps_per_s_after": _rate_between(batches, recovered_s, math.inf),
        "begun": len(begun),
        "ended": dict(reasons),
        "running": running,
        "missing": len(begun - ended) - running,
        "twice": len(ends) - len(ended),
    }
    print(json.dumps(row, indent=1))
    return row


def _kill_a_node(started: Cluster) -> threading.Thread:
    """Kill a node that is not the head, in another thread: Ray waits for its processes."""
    node = next(iter(started.worker_nodes))
    killer = threading.Thread(target=started.remove_node, args=(node, False))
    killer.start()
    return killer


def _rate_between(batches: list[tuple[float, int]], first_s: float, last_s: float) -> float:
    """Return how many valid steps per second were taken in this time."""
    chosen = [(at_s, valid) for at_s, valid in batches if first_s <= at_s <= last_s]
    taken_s = chosen[-1][0] - chosen[0][0]
    return sum(valid for _, valid in chosen[1:]) / taken_s


# Faults

KILLS, NODE_KILL, KILL_EVERY_S = 8, 4, 0.7


def measure_faults(episodes: int, concurrency: int) -> dict[str, Any]:
    """Play episodes while worker actors are killed at random, and one node."""
    with cluster(nodes=3, cpus=1) as started:
        attack = Attack(started)
        with ew.pool(Where, size=concurrency, backend="ray", workers=6) as pool:
            run = ew.rollout(
                pool, attack.agent, episodes=episodes, seed=7, attempts=10, progress=False
            )
            attack.start()
            began_s = time.perf_counter()
            played = run.run()
            taken_s = time.perf_counter() - began_s
            attack.stop()
    seeds = Counter(episode.seed for episode in played)
    row = {
        "episodes": episodes,
        "returned": len(played),
        "usable": sum(episode.usable for episode in played),
        "missing": episodes - len(seeds),
        "twice": sum(count > 1 for count in seeds.values()),
        "replayed": sum(episode.attempts > 1 for episode in played),
        "lost": run.fault_counts,
        "killed_actors": attack.killed_actors,
        "killed_nodes": attack.killed_nodes,
        "seconds": taken_s,
    }
    print(json.dumps(row, indent=1))
    return row


class Attack(threading.Thread):
    """Kills worker actors at random, and one node."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster
        self._rng = random.Random(0)
        self._seen: set[int] = set()  # processes that episodes ran in
        self._over = threading.Event()
        self.killed_actors = self.killed_nodes = 0

    async def agent(self, result: Any) -> int:
        """Act, and note which process the episode runs in."""
        self._seen.add(int(result.observation[1]))
        return 0

    def run(self) -> None:
        """Kill."""
        for index in range(KILLS):
            if self._over.wait(KILL_EVERY_S):
                return
            if index == NODE_KILL:
                node = next(iter(self._cluster.worker_nodes))
                self._cluster.remove_node(node, allow_graceful=False)
                self.killed_nodes += 1
            elif self._seen:
                victim = self._rng.choice(sorted(self._seen))
                self._seen.discard(victim)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    self.killed_actors += 1

    def stop(self) -> None:
        """Kill no more."""
        self._over.set()
        self.join()


PARTS: dict[str, Callable[[float], Any]] = {
    "rates": measure_rates,
    "nodes": measure_nodes,
    "workers": measure_workers,
    "sleeping": lambda _: measure_sleeping(10_000),
    "recovery": measure_recovery,
    "faults": lambda _: measure_faults(2048, 128),
}


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="benchmarks/run ray", description=about)
    parser.add_argument("--only", choices=list(PARTS))
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--docs", action="store_true", help="store the results for the docs")
    options = parser.parse_args(arguments)
    for name, part in PARTS.items():
        if options.only not in (None, name):
            continue
        measured = part(options.seconds)
        if options.docs:
            stored = RESULTS.load()
            stored |= {"machine": describe_machine(("ray",)), name: measured}
            stored.setdefault("load_average", {})[name] = round(os.getloadavg()[0], 1)
            RESULTS.store(stored)
    if options.docs:
        RESULTS.write_docs()
    return 0

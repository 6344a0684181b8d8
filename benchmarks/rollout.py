"""How close a rollout comes to the throughput that the latency of its policy allows.

    benchmarks/run rollout                         512 concurrent episodes, about 20 seconds
    benchmarks/run rollout --concurrency 64 --seconds 5 --json rollout.json
    benchmarks/run rollout --backend process

The policy answers after a log-normal delay, as an inference server does. The ideal plays the same
episodes with the same delays and the same concurrency, and nothing else takes time. The efficiency
is the ideal time divided by the measured time.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import math
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import envweave as ew
from benchmarks.measurement.machine import describe_machine, tree_bytes

STEPS = 5
"""Steps of an episode."""


def read_options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/run rollout",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--concurrency", type=int, default=512, help="concurrent episodes")
    parser.add_argument("--seconds", type=float, default=20.0, help="about how long to run")
    parser.add_argument("--mean-ms", type=float, default=200.0, help="mean latency of the policy")
    parser.add_argument(
        "--sigma",
        type=float,
        default=0.6,
        help="standard deviation of the logarithm of the latency",
    )
    parser.add_argument("--backend", default="inproc", help="where the environments run")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")
    return parser.parse_args(arguments)


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the rollout and return the results."""
    mean_s = options.mean_ms / 1e3
    mu = math.log(mean_s) - options.sigma**2 / 2
    rng = random.Random(options.seed)
    episodes = options.concurrency * max(1, round(options.seconds / (STEPS * mean_s)))

    async def policy(result: ew.StepResult[Any]) -> ew.Decision:
        delay_s = rng.lognormvariate(mu, options.sigma)
        await asyncio.sleep(delay_s)
        return ew.Decision({"delta": 1}, delay_s)

    async with ew.pool(
        "counter-v0", size=options.concurrency, backend=options.backend, done_at=STEPS
    ) as pool:
        waits_s = [0.0] * episodes
        memory = [tree_bytes()]
        finished = 0
        cpu_s, start_s = time.process_time(), time.perf_counter()
        rollout = ew.rollout(pool, policy, episodes=episodes, seed=options.seed)
        async for episode in rollout:
            waits_s[episode.group] = sum(step.extra for step in episode.steps)
            finished += 1
            if finished in (episodes // 4, episodes):
                memory.append(tree_bytes())
        elapsed_s = time.perf_counter() - start_s
        cpu_s = time.process_time() - cpu_s
    ideal_s = ideal_time(waits_s, options.concurrency)
    return {
        "concurrency": options.concurrency,
        "backend": options.backend,
        "episodes": episodes,
        "steps": episodes * STEPS,
        "mean_latency_ms": sum(waits_s) / (episodes * STEPS) * 1e3,
        "elapsed_s": elapsed_s,
        "ideal_s": ideal_s,
        "efficiency": ideal_s / elapsed_s,
        "episodes_per_hour": episodes / elapsed_s * 3600,
        "ideal_episodes_per_hour": episodes / ideal_s * 3600,
        "cpu_us_per_step": cpu_s / (episodes * STEPS) * 1e6,
        "faults": sum(rollout.fault_counts.values()),
        "memory_bytes": dict(zip(("start", "quarter", "end"), memory, strict=True)),
    }


def ideal_time(durations_s: Sequence[float], concurrency: int) -> float:
    """Return how long these take in this order, if the next starts as soon as one ends."""
    free_at_s = [0.0] * concurrency
    for duration_s in durations_s:
        heapq.heappush(free_at_s, heapq.heappop(free_at_s) + duration_s)
    return max(free_at_s)


def show(results: dict[str, Any]) -> str:
    memory = [
        "–" if size is None else f"{size / 1e6:.1f} MB" for size in results["memory_bytes"].values()
    ]
    rows = [
        ("concurrent episodes", f"{results['concurrency']} ({results['backend']})"),
        ("episodes, steps", f"{results['episodes']:,}, {results['steps']:,}"),
        ("mean latency of the policy", f"{results['mean_latency_ms']:.1f} ms"),
        ("measured time", f"{results['elapsed_s']:.2f} s"),
        ("ideal time", f"{results['ideal_s']:.2f} s"),
        ("efficiency", f"{results['efficiency']:.2%}"),
        ("episodes per hour", f"{results['episodes_per_hour']:,.0f}"),
        ("ideal episodes per hour", f"{results['ideal_episodes_per_hour']:,.0f}"),
        ("CPU time per step", f"{results['cpu_us_per_step']:.0f} µs"),
        ("faults", str(results["faults"])),
        ("memory at the start, after a quarter, at the end", ", ".join(memory)),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def main(arguments: list[str]) -> int:
    options = read_options(arguments)
    results = {**asyncio.run(measure(options)), "machine": describe_machine()}
    print(show(results))
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0

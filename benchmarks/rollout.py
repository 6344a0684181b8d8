"""How close a rollout comes to what its policy's latency allows.

    python benchmarks/rollout.py                         512 episodes at a time, about 20 seconds
    python benchmarks/rollout.py --at-once 64 --seconds 5 --json rollout.json
    python benchmarks/rollout.py --backend process

The policy answers after a log-normal delay, as a model's server does. The ideal plays the same
episodes, with the same delays, on as many lanes, and nothing else takes any time: a lane that is
free takes the next episode. The share is the ideal's time over the time it took.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import math
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import envweave as ew
from envweave.bench.memory import describe_machine, tree_bytes

STEPS = 5
"""How many steps an episode takes."""


def read_options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/rollout.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--at-once", type=int, default=512, help="episodes at a time")
    parser.add_argument("--seconds", type=float, default=20.0, help="about how long to play")
    parser.add_argument("--mean-ms", type=float, default=200.0, help="the policy's mean latency")
    parser.add_argument("--sigma", type=float, default=0.6, help="of the latency's logarithm")
    parser.add_argument("--backend", default="inproc", help="where the environments run")
    parser.add_argument("--seed", type=int, default=0, help="what the delays are drawn from")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return parser.parse_args(arguments)


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Play, and return the figures."""
    mean_s = options.mean_ms / 1e3
    mu = math.log(mean_s) - options.sigma**2 / 2
    chance = random.Random(options.seed)
    episodes = options.at_once * max(1, round(options.seconds / (STEPS * mean_s)))

    async def policy(result: ew.StepResult[Any]) -> ew.Decision:
        delay_s = chance.lognormvariate(mu, options.sigma)
        await asyncio.sleep(delay_s)
        return ew.Decision({"delta": 1}, delay_s)

    async with ew.pool(
        "counter-v0", size=options.at_once, backend=options.backend, done_at=STEPS
    ) as pool:
        waits_s = [0.0] * episodes
        memory = [tree_bytes()]
        finished = 0
        cpu_s, began_s = time.process_time(), time.perf_counter()
        rollout = ew.rollout(pool, policy, episodes=episodes, seed=options.seed)
        async for episode in rollout:
            waits_s[episode.group] = sum(step.extra for step in episode.steps)
            finished += 1
            if finished in (episodes // 4, episodes):
                memory.append(tree_bytes())
        took_s = time.perf_counter() - began_s
        cpu_s = time.process_time() - cpu_s
    ideal_s = least_time(waits_s, options.at_once)
    return {
        "at_once": options.at_once,
        "backend": options.backend,
        "episodes": episodes,
        "steps": episodes * STEPS,
        "mean_latency_ms": sum(waits_s) / (episodes * STEPS) * 1e3,
        "took_s": took_s,
        "ideal_s": ideal_s,
        "share": ideal_s / took_s,
        "episodes_per_hour": episodes / took_s * 3600,
        "ideal_episodes_per_hour": episodes / ideal_s * 3600,
        "cpu_us_per_step": cpu_s / (episodes * STEPS) * 1e6,
        "faults": sum(rollout.fault_counts.values()),
        "memory_bytes": dict(zip(("start", "quarter", "end"), memory, strict=True)),
    }


def least_time(durations_s: Sequence[float], lanes: int) -> float:
    """Return how long these take, in this order, if a free lane takes the next at once."""
    free_at_s = [0.0] * lanes
    for duration_s in durations_s:
        heapq.heappush(free_at_s, heapq.heappop(free_at_s) + duration_s)
    return max(free_at_s)


def show(figures: dict[str, Any]) -> str:
    memory = [
        "–" if size is None else f"{size / 1e6:.1f} MB" for size in figures["memory_bytes"].values()
    ]
    rows = [
        ("episodes at a time", f"{figures['at_once']} ({figures['backend']})"),
        ("episodes, steps", f"{figures['episodes']:,}, {figures['steps']:,}"),
        ("mean latency of the policy", f"{figures['mean_latency_ms']:.1f} ms"),
        ("took", f"{figures['took_s']:.2f} s"),
        ("ideal", f"{figures['ideal_s']:.2f} s"),
        ("share of the ideal", f"{figures['share']:.2%}"),
        ("episodes an hour", f"{figures['episodes_per_hour']:,.0f}"),
        ("ideal episodes an hour", f"{figures['ideal_episodes_per_hour']:,.0f}"),
        ("processor time a step", f"{figures['cpu_us_per_step']:.0f} µs"),
        ("faults", str(figures["faults"])),
        ("memory at start, after a quarter, at the end", ", ".join(memory)),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def main(arguments: list[str]) -> None:
    options = read_options(arguments)
    figures = {**asyncio.run(measure(options)), "machine": describe_machine()}
    print(show(figures))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

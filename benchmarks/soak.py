"""A long run of many environments: does memory grow, does every episode end exactly once?

    benchmarks/run soak                                   1,000 LineWorlds, 100,000 steps
    benchmarks/run soak --backend process --steps 20000
    benchmarks/run soak --backend process --kills 0.05    kill a worker at 5 % of the steps

It prints the memory at every tenth of the run, and stops at the first episode that ends twice.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import envweave as ew


def main(arguments: list[str]) -> int:
    """Run, and print the counts."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/run soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--env", default="lineworld-v0", help="ID of the environment")
    parser.add_argument("--num-envs", type=int, default=1_000, help="size of the vector")
    parser.add_argument("--steps", type=int, default=100_000, help="steps of the vector")
    parser.add_argument("--backend", default="inproc", help="where the environments run")
    parser.add_argument(
        "--kills", type=float, default=0.0, help="share of steps that kill a worker"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    options = parser.parse_args(arguments)
    rng = random.Random(options.seed)
    killed, started, ended, memory_mb, reasons = 0, 0, 0, [], {}
    with ew.make_vector(
        options.env, num_envs=options.num_envs, backend=options.backend, autoreset=True
    ) as venv:
        sampler = np.random.default_rng(options.seed)
        actions = [
            [venv.action_spec.sample(sampler) for _ in range(options.num_envs)] for _ in range(16)
        ]
        batch = venv.reset(seed=options.seed)
        started = options.num_envs
        running = batch.episode_id
        start = time.perf_counter()
        for step in range(options.steps):
            if step % max(1, options.steps // 10) == 0:
                memory_mb.append(resident_mb())
                print(f"step {step:>7,}: {memory_mb[-1]:.1f} MB", flush=True)
            if options.kills and rng.random() < options.kills:
                os.kill(rng.choice(list(children())), signal.SIGKILL)
                killed += 1
            batch = venv.step(actions[step % 16])
            over = np.flatnonzero(batch.done).tolist()
            for i in over:
                result = batch[i]
                assert result.episode_id == running[i], "an episode ended twice"
                assert [r.type for r in result.requests].count("episode_end") == 1
                assert result.ready is not None, result
                running[i] = result.ready.episode_id
                reasons[result.end.reason] = reasons.get(result.end.reason, 0) + 1
            ended += len(over)
            started += len(over)
        seconds = time.perf_counter() - start
        assert started - ended == options.num_envs
    memory_mb.append(resident_mb())
    total = options.steps * options.num_envs
    print(f"{total:,} steps of {options.num_envs:,} {options.env} in {seconds:.0f} s")
    print(f"{total / seconds:,.0f} steps per second")
    print(f"{ended:,} episodes ended, each exactly once: {reasons}; {killed} workers killed")
    print(f"memory: {memory_mb[0]:.1f} MB at the start, {memory_mb[1]:.1f} after a tenth, ", end="")
    print(f"{max(memory_mb):.1f} at most, {memory_mb[-1]:.1f} at the end")
    print(f"processes left: {len(list(children()))}")
    return 0


def resident_mb() -> float:
    """Return the memory of this process and its workers, in MB."""
    return sum(_resident_mb(pid) for pid in (os.getpid(), *children()))


def _resident_mb(pid: int) -> float:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) for line in rollup.splitlines() if "Pss:" in line) / 1024


def children() -> Iterator[int]:
    """Return the IDs of the worker processes."""
    for task in Path("/proc/self/task").iterdir():
        yield from map(int, (task / "children").read_text().split())

"""Step many environments for long: does memory grow, does every episode end exactly once?

python benchmarks/soak.py                                   # 1,000 LineWorlds, 100,000 steps
python benchmarks/soak.py --backend process --steps 20000
python benchmarks/soak.py --backend process --kills 0.05    # kill a worker at 5 % of the steps
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


def main() -> None:
    """Run, and print what was counted."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--env", default="lineworld-v0")
    parser.add_argument("--num-envs", type=int, default=1_000)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--backend", default="inproc")
    parser.add_argument("--kills", type=float, default=0.0, help="the share of steps with a kill")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    killed, began, ended, marks, reasons = 0, 0, 0, [], {}
    with ew.make_vector(
        options.env, num_envs=options.num_envs, backend=options.backend, autoreset=True
    ) as venv:
        drawn = np.random.default_rng(options.seed)
        actions = [
            [venv.action_spec.sample(drawn) for _ in range(options.num_envs)] for _ in range(16)
        ]
        batch = venv.reset(seed=options.seed)
        began = options.num_envs
        running = batch.episode_id
        start = time.perf_counter()
        for step in range(options.steps):
            if step % max(1, options.steps // 10) == 0:
                marks.append(resident_mb())
                print(f"step {step:>7,}: {marks[-1]:.1f} MB", flush=True)
            if options.kills and chance.random() < options.kills:
                os.kill(chance.choice(list(children())), signal.SIGKILL)
                killed += 1
            batch = venv.step(actions[step % 16])
            over = np.flatnonzero(batch.done).tolist()
            for i in over:
                result = batch[i]
                assert result.episode_id == running[i], "an episode ended that had ended before"
                assert [r.type for r in result.requests].count("episode_end") == 1
                assert result.ready is not None, result
                running[i] = result.ready.episode_id
                reasons[result.end.reason] = reasons.get(result.end.reason, 0) + 1
            ended += len(over)
            began += len(over)
        seconds = time.perf_counter() - start
        assert began - ended == options.num_envs
    marks.append(resident_mb())
    total = options.steps * options.num_envs
    print(f"{total:,} steps of {options.num_envs:,} {options.env} in {seconds:.0f} s")
    print(f"{total / seconds:,.0f} steps a second")
    print(f"{ended:,} episodes ended, each exactly once: {reasons}; {killed} workers killed")
    print(f"memory: {marks[0]:.1f} MB at the start, {marks[1]:.1f} after a tenth, ", end="")
    print(f"{max(marks):.1f} at most, {marks[-1]:.1f} at the end")
    print(f"processes left: {len(list(children()))}")


def resident_mb() -> float:
    """Return the memory of this process and its workers."""
    return sum(_resident_mb(pid) for pid in (os.getpid(), *children()))


def _resident_mb(pid: int) -> float:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) for line in rollup.splitlines() if "Pss:" in line) / 1024


def children() -> Iterator[int]:
    """Return the ids of the worker processes."""
    for task in Path("/proc/self/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


if __name__ == "__main__":
    main()

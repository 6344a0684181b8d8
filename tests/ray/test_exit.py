"""Nothing of a program is left on the cluster, however it ends; a local cluster ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import descendants, is_alive
from ray_cluster import live_workers, wait_until

PROGRAM = """\
import sys
import numpy as np
import envweave as ew

if __name__ == "__main__":
    address, how = sys.argv[1:]
    options = {"num_envs": 4, "workers": 2, "autoreset": True}
    venv = ew.make_vector("counter-v0", backend="ray", address=address, **options)
    venv.reset(seed=0)
    venv.step([{"delta": 1}] * 4)
    print("ready", flush=True)
    if how == "close":
        venv.close()
    elif how == "wait":
        while True:
            venv.step([{"delta": 1}] * 4)
"""


def start(folder: Path, address: str, how: str) -> subprocess.Popen[str]:
    """Start the program, and wait until it has taken a step."""
    path = folder / "program.py"
    path.write_text(PROGRAM)
    started = subprocess.Popen(
        [sys.executable, path, address, how],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert started.stdout is not None
    for line in started.stdout:
        if line.strip() == "ready":
            return started
    raise AssertionError(started.wait())


def end_it(program: subprocess.Popen[str], end: str) -> None:
    """Send it a signal, if that is how it ends, and wait until it has ended."""
    with program:
        if end.startswith("SIG"):
            os.kill(program.pid, getattr(signal, end))
        program.wait(60)


@pytest.mark.parametrize("end", ["close", "exit", "SIGINT", "SIGKILL"])
def test_no_worker_is_left_on_a_cluster_that_goes_on(
    tmp_path: Path, cluster: Any, end: str
) -> None:
    program = start(tmp_path, cluster.address, end if end in ("close", "exit") else "wait")
    end_it(program, end)

    assert wait_until(lambda: not live_workers()), live_workers()
    assert cluster.head_node is not None


@pytest.mark.parametrize("end", ["close", "exit", "SIGINT", "SIGKILL"])
def test_a_cluster_that_was_started_for_the_program_ends_with_it(tmp_path: Path, end: str) -> None:
    program = start(tmp_path, "local", end if end in ("close", "exit") else "wait")
    family = [process.pid for process in descendants(program.pid)]
    assert family
    end_it(program, end)

    # Two agents of Ray's look for their cluster for a minute if it was killed.
    assert wait_until(lambda: not any(map(is_alive, family)), timeout_s=100)

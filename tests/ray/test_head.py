"""Losing the head of a cluster is one clear error, not the end of the program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """\
import os, signal, time
import ray
from ray.cluster_utils import Cluster
import envweave as ew

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
venv = ew.make_vector("counter-v0", num_envs=4, backend="ray", workers=2, address=cluster.address)
venv.reset(seed=0)
(gcs,) = cluster.head_node.all_processes["gcs_server"]
os.kill(gcs.process.pid, signal.SIGKILL)
began_s = time.monotonic()
while (batch := venv.step([{"delta": 0}] * 4)).valid.all():
    assert time.monotonic() - began_s < 80
    time.sleep(0.2)
print({(row.end.reason, row.end.blame) for row in batch})
print(batch[0].end.cause)
try:
    venv.reset(seed=1)
except ew.errors.EnvWeaveError as error:
    print(type(error).__name__, error)
venv.close()
cluster.shutdown()
"""


def test_every_episode_ends_as_lost_and_the_next_reset_names_the_head(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "{('lost', 'infrastructure')}" in done.stdout
    assert "the head of the Ray cluster at " in done.stdout
    assert "Error" in done.stdout.splitlines()[-1]
    assert "is gone" in done.stdout.splitlines()[-1]

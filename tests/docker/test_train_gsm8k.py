"""Training on GSM8K with the environments in a container is the same as without one."""

from __future__ import annotations

import pytest
from tinker_loopback import loopback, without_time

from envweave.examples.run_log import read_run_log

pytestmark = [
    pytest.mark.slow,  # starts a container and the SDK
    pytest.mark.docker,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("images"),
]


@pytest.mark.parametrize("env_id", ["gsm8k-v0", "gsm8k-choice-v0"])
def test_a_run_in_a_container_has_the_metrics_of_one_in_process(tmp_path, env_id):
    options = ["--env", env_id, "--max-examples", 8, "--max-tokens", 2, "--lr", 0.3]
    options += ["--episodes", 128, "--evaluation-tasks", 4]
    with loopback() as service:
        for backend in ("inproc", "docker_http"):
            service.train(*options, "--backend", backend, "--run-dir", tmp_path / backend)

    alone, contained = (read_run_log(tmp_path / name) for name in ("inproc", "docker_http"))
    assert contained[0]["env_backend"] == "docker_http"
    assert without_time(alone) == without_time(contained)

"""Training with the environments in a container is the same as without one."""

from __future__ import annotations

import subprocess

import pytest
from fake_services import read_run_log, tinker_service, without_time
from installations import venv_python, with_envweave

pytestmark = [
    pytest.mark.slow,  # starts a container, and the SDK or torch
    pytest.mark.docker,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("images"),
]


@pytest.mark.parametrize("env_id", ["gsm8k-v0", "gsm8k-choice-v0"])
def test_a_gsm8k_run_in_a_container_has_the_metrics_of_one_in_process(tmp_path, env_id):
    options = ["--env", env_id, "--max-examples", 8, "--max-tokens", 2, "--lr", 0.3]
    options += ["--episodes", 128, "--evaluation-tasks", 4]
    with tinker_service() as service:
        for backend in ("inproc", "docker_http"):
            service.train(*options, "--backend", backend, "--run-dir", tmp_path / backend)

    alone, contained = (read_run_log(tmp_path / name) for name in ("inproc", "docker_http"))
    assert contained[0]["env_backend"] == "docker_http"
    assert without_time(alone) == without_time(contained)


def test_a_codefix_run_in_a_container_has_the_metrics_of_one_in_process(tmp_path):
    program = [venv_python("train"), "-m", "envweave.examples.train_codefix_pg"]
    options = ["--episodes", "640", "--evaluation-episodes", "40"]
    for backend in ("inproc", "docker_http"):
        where = ["--backend", backend, "--run-dir", tmp_path / backend]
        subprocess.run([*program, *options, *where], env=with_envweave(), check=True)

    alone, contained = (read_run_log(tmp_path / name) for name in ("inproc", "docker_http"))
    for lines in (alone, contained):
        for line in lines:
            line.pop("time_s")
    assert (alone[0].pop("backend"), contained[0].pop("backend")) == ("inproc", "docker_http")
    assert alone == contained

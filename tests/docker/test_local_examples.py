"""The examples that use containers work from a command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

needs_engine = [
    pytest.mark.slow,
    pytest.mark.docker,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("images"),
]
EXAMPLES = ["examples/local_echo_env.py", "examples/local_coding_env.py"]


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "examples/local_echo_env.py",
            ["reset: Echo environment ready!", "step: 'Hello, World!', reward 1.3"],
        ),
        (
            "examples/local_coding_env.py",
            ["Hello, World!", "10", "exit code 1: IndexError: list index out of range"],
        ),
    ],
)
class TestAnExample:
    pytestmark = needs_engine

    def test_plays_in_a_container(self, name: str, lines: list[str]) -> None:
        done = run(name)

        printed = done.stdout.splitlines()
        assert done.returncode == 0, done.stderr
        assert [line for line in lines if line not in printed] == []
        assert printed[-1] == "The container is stopped and removed."


@pytest.mark.parametrize("name", EXAMPLES)
class TestWithoutAnImage:
    pytestmark = needs_engine

    def test_a_missing_image_is_reported_with_its_build_command(self, name: str) -> None:
        done = run(name, "no-such:1")

        assert done.returncode == 1
        assert "no image 'no-such:1' on this machine. Build it: `envweave build" in done.stderr


@pytest.mark.slow  # starts Python anew
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_missing_engine_is_reported_with_how_to_start_one(name: str, tmp_path: Path) -> None:
    pytest.importorskip("docker")

    done = run(name, DOCKER_HOST=f"unix://{tmp_path}/nothing.sock")

    assert done.returncode == 1
    assert "does not answer" in done.stderr
    assert "Traceback" not in done.stderr


class TestTraining:
    pytestmark = needs_engine

    def test_training_in_a_container_equals_training_in_process(self, tmp_path: Path) -> None:
        metrics = []
        for backend in ("docker_http", "inproc"):
            done = run(
                "-m", "envweave.examples.train_lineworld_pg", "--backend", backend,
                "--num-envs", "4", "--episodes", "200",
                "--run-dir", str(tmp_path / backend), "--json",
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            metrics.append(json.loads(done.stdout))

        there, here = metrics
        assert there["random"]["success"] < 0.5
        assert there["trained"]["success"] > 0.9
        assert [there[part] for part in ("random", "trained", "updates")] == [
            here[part] for part in ("random", "trained", "updates")
        ]

from __future__ import annotations

import subprocess
import sys

import pytest
from installations import venv_python, with_envweave

import envweave as ew
from envweave.examples.train_ppo import main
from envweave.examples.training import RunHistory

PNG = b"\x89PNG\r\n\x1a\n"


def run(task, *options):
    command = [venv_python("stable-baselines3"), "-m", "envweave.cli", "train", f"ppo-{task}"]
    done = subprocess.run(
        [*map(str, command), *map(str, options)],
        # Networks this small are slower on two threads.
        env=with_envweave(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_stable_baselines3_it_names_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)

    code = main(["--run-dir", str(tmp_path / "run")], task="lineworld")

    assert code == 2
    assert "pip install 'envweave[gym,train]' stable-baselines3" in capsys.readouterr().err


@pytest.mark.slow  # trains
@pytest.mark.timeout(300)
def test_ppo_solves_lineworld_and_with_the_sign_flipped_nothing(tmp_path):
    reached = {}
    for sign in (1, -1):
        run_dir = tmp_path / f"run{sign}"
        run("lineworld", "--episodes", 300, "--reward-sign", sign, "--run-dir", run_dir, "--record")
        reached[sign] = RunHistory.read(run_dir)

    assert reached[1].evaluations["trained"]["success"] >= 0.9
    assert reached[-1].evaluations["trained"]["success"] <= 0.1
    assert len(reached[1].points) == 300
    assert (tmp_path / "run1/metrics.png").read_bytes().startswith(PNG)
    assert len(ew.load(tmp_path / "run1")) > 300


@pytest.mark.slow  # trains
@pytest.mark.timeout(300)
def test_a_cartpole_run_is_continued_where_it_was_saved(tmp_path):
    options = ["--num-envs", 2, "--evaluation-episodes", 2, "--checkpoint-every", 1]
    options += ["--rollout-steps", 16, "--run-dir", tmp_path / "run"]

    run("cartpole", *options, "--episodes", 10)
    run("cartpole", *options, "--episodes", 20, "--resume")

    history = RunHistory.read(tmp_path / "run")
    numbers = [point["episode"] for point in history.points]
    assert numbers == list(range(1, 21))
    assert {"random", "trained"} <= set(history.evaluations)

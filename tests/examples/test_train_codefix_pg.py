from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

import pytest
from fake_services import read_run_log
from installations import venv_python, with_envweave

from envweave.examples.train_codefix_pg import main
from envweave.examples.training import RunHistory

PNG = b"\x89PNG\r\n\x1a\n"
MODULE = "envweave.examples.train_codefix_pg"
SHORT = ["--episodes", "640", "--checkpoint-every", "5", "--evaluation-episodes", "40"]


def command(*options):
    return [str(venv_python("train")), "-m", MODULE, *map(str, options)]


def run(*options):
    done = subprocess.run(
        command(*options),
        env=with_envweave(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def comparable(run_dir):
    """Return the log without what differs between runs: times, and where they ran."""
    ignored = ("time_s", "backend")
    return [
        {key: value for key, value in line.items() if key not in ignored}
        for line in read_run_log(run_dir)
    ]


def test_without_torch_it_names_the_extras_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)

    code = main(["--run-dir", str(tmp_path / "run")])

    assert code == 2
    assert "pip install 'envweave[train,torch]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow  # trains
@pytest.mark.timeout(240)
def test_success_on_held_out_prompts_rises_and_with_the_sign_flipped_it_falls(tmp_path):
    for sign in (1, -1):
        options = ["--episodes", 12_800, "--evaluation-episodes", 200, "--reward-sign", sign]
        run(*options, "--run-dir", tmp_path / str(sign))

    learnt, flipped = (RunHistory.read(tmp_path / sign).evaluations for sign in ("1", "-1"))
    assert 0.15 < learnt["random"]["success"] < 0.35
    assert learnt["trained"]["success"] > 0.7
    assert flipped["trained"]["success"] < 0.1


@pytest.mark.slow  # trains
@pytest.mark.timeout(240)
def test_a_checkpoint_that_cannot_be_written_ends_the_run_with_a_reason(tmp_path):
    def limit_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = subprocess.run(
        command(*SHORT, "--run-dir", tmp_path / "run"),
        env=with_envweave(OMP_NUM_THREADS="1"),
        preexec_fn=limit_files,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "Error: the run could not be written: File too large." in done.stderr
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["metrics.jsonl"]


@pytest.mark.slow  # trains
@pytest.mark.timeout(240)
def test_a_run_that_was_killed_and_resumed_equals_an_uninterrupted_one(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(*SHORT, "--run-dir", whole)
    with subprocess.Popen(
        command(*SHORT, "--run-dir", killed), env=with_envweave(), stderr=subprocess.PIPE
    ) as process:
        wait_for_updates(killed, 8, process)
        process.kill()
    half = comparable(killed)

    run(*SHORT, "--run-dir", killed, "--resume")

    assert 8 < len(half) < len(comparable(whole))
    assert comparable(killed) == comparable(whole)
    assert (killed / "metrics.png").read_bytes().startswith(PNG)


def wait_for_updates(run_dir, count, process):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "it ended before it could be killed"
        if (run_dir / "metrics.jsonl").exists() and (run_dir / "checkpoint.pt").exists():
            updates = [line for line in read_run_log(run_dir) if line["type"] == "update"]
            if len(updates) >= count:
                return
        time.sleep(0.01)
    pytest.fail("no checkpoint within a minute")


@pytest.mark.slow  # trains
@pytest.mark.timeout(240)
def test_every_backend_gives_the_same_metrics(tmp_path):
    for backend in ("inproc", "process", "http"):
        run(*SHORT, "--num-envs", "8", "--backend", backend, "--run-dir", tmp_path / backend)

    inproc, process, http = (
        comparable(tmp_path / backend) for backend in ("inproc", "process", "http")
    )
    assert inproc == process == http


@pytest.mark.slow  # trains
@pytest.mark.timeout(240)
def test_a_finished_run_can_be_made_longer_on_another_backend(tmp_path):
    run(*SHORT, "--run-dir", tmp_path / "run")

    done = run(
        *SHORT, "--episodes", 960, "--run-dir", tmp_path / "run", "--resume", "--json",
        "--backend", "process",
    )  # fmt: skip

    log = read_run_log(tmp_path / "run")
    assert [line["update"] for line in log if line["type"] == "update"] == list(range(1, 31))
    assert json.loads(done.stdout)["episodes"] == 960

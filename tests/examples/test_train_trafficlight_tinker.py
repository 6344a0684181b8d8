"""Training on TrafficLight by the loop of Tinker's cookbook, against a loopback service.

The service holds a table of logits for the last tokens, with real sampling, gradients and Adam, and
no language model. So the curves say that the program and the shim work, and nothing about a model.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fake_services import TINKER_WINDOW_MODEL, read_run_log, tinker_service

from envweave.examples.train_trafficlight_tinker import main

PNG = b"\x89PNG\r\n\x1a\n"
SMALL = ["--max-tokens", "2", "--lr", "0.1", "--evaluation-episodes", "32"]
TINY = ["--num-envs", "16", "--max-tokens", "2", "--lr", "0.2", "--evaluation-episodes", "8"]


@pytest.fixture(scope="module")
def service():
    with tinker_service("tinker", "train_trafficlight_tinker", TINKER_WINDOW_MODEL) as one:
        yield one


def updates(run_dir: Path):
    return [line for line in read_run_log(run_dir) if line["type"] == "update"]


def evaluations(run_dir: Path):
    log = read_run_log(run_dir)
    return {line["policy"]: line["success"] for line in log if line["type"] == "evaluation"}


@pytest.mark.slow  # starts the SDK, and trains
@pytest.mark.timeout(600)
class TestLearning:
    def test_the_share_of_right_moves_rises_above_chance(self, service, tmp_path):
        before = service.ask("stats")
        done = service.train(*SMALL, "--episodes", 1280, "--run-dir", tmp_path / "run")
        after = service.ask("stats")

        reached = evaluations(tmp_path / "run")
        assert 0.2 < reached["random"] < 0.5
        assert reached["trained"] > 0.55  # half as many episodes as in the docs
        assert updates(tmp_path / "run")[0]["success"] < 0.2
        assert after["exact"] > before.get("exact", 0)
        assert after.get("inexact", 0) == before.get("inexact", 0)  # no token is encoded again
        assert "fake service, no language model" in done.stdout
        assert (tmp_path / "run/metrics.png").read_bytes().startswith(PNG)

    def test_it_falls_to_nothing_with_the_sign_flipped(self, service, tmp_path):
        service.train(*SMALL, "--episodes", 512, "--reward-sign", -1, "--run-dir", tmp_path / "run")

        assert evaluations(tmp_path / "run")["trained"] < 0.1

    def test_a_run_continues_from_the_last_checkpoint_of_the_cookbook(self, service, tmp_path):
        run = [*TINY, "--checkpoint-every", 2, "--run-dir", tmp_path / "run"]
        service.train(*run, "--episodes", 48)
        models = service.ask("stats")["create_model"]
        service.train(*run, "--episodes", 96, "--resume")

        log = read_run_log(tmp_path / "run")
        assert [line["update"] for line in updates(tmp_path / "run")] == [1, 2, 3, 4, 5, 6]
        assert [line["policy"] for line in log if line["type"] == "evaluation"] == [
            "random",
            "trained",
        ]
        assert service.ask("stats")["load_weights"] >= 1
        assert service.ask("stats")["create_model"] > models

    def test_a_failing_service_ends_the_run_with_how_to_go_on(self, service, tmp_path):
        service.ask("fail", route="forward_backward", status=400, times=1)

        done = service.train(*TINY, "--episodes", 32, "--run-dir", tmp_path / "run", code=2)

        assert "Training through Tinker failed" in done.stderr
        assert f"--run-dir {tmp_path / 'run'} --resume" in done.stderr
        assert "Traceback" not in done.stderr


def test_batches_hold_whole_groups(monkeypatch, capsys):
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")

    assert main(["--group-size", "5"]) == 2
    assert "must be a multiple of --group-size 5" in capsys.readouterr().err


def test_without_a_key_it_says_how_to_get_one(monkeypatch, capsys):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)

    assert main([]) == 2
    assert "TINKER_API_KEY is not set" in capsys.readouterr().err


def test_without_the_cookbook_the_install_command_is_named(monkeypatch, capsys):
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    monkeypatch.setitem(sys.modules, "tinker_cookbook", None)

    assert main([]) == 2
    assert "pip install 'envweave[train,tinker-cookbook]'" in capsys.readouterr().err

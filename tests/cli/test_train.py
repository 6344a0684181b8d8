"""`envweave train`."""

from __future__ import annotations

import json

import pytest


def test_train_without_a_name_lists_the_programs(envweave):
    ran = envweave("train")

    assert ran.code == 0
    assert "lineworld" in ran.text
    assert "gsm8k" in ran.text


@pytest.mark.slow  # starts the command line anew
def test_options_reach_the_training_program(envweave, here):
    ran = envweave(
        *("train", "lineworld", "--episodes", "8", "--num-envs", "4", "--seed", "3"),
        *("--evaluation-episodes", "4", "--run-dir", "run", "--json"),
    )

    report = json.loads(ran.stdout)
    assert ran.code == 0
    assert report["seed"] == 3
    assert report["episodes"] == 8
    assert (here / "run" / "metrics.jsonl").exists()


@pytest.mark.slow  # starts the command line anew
def test_without_json_the_curve_is_shown(envweave, here):
    ran = envweave(
        *("train", "lineworld", "--episodes", "8", "--num-envs", "4"),
        *("--evaluation-episodes", "4", "--run-dir", "run"),
    )

    assert ran.code == 0
    assert "trained policy" in ran.text


def test_its_help_is_that_of_the_training_program(envweave):
    ran = envweave("train", "lineworld", "--help")

    assert ran.code == 0
    assert ran.stdout.startswith("usage: envweave train lineworld")
    assert "--run-dir" in ran.stdout


def test_a_bad_option_is_refused(envweave):
    ran = envweave("train", "lineworld", "--episodes", "none")

    assert ran.code == 2
    assert "--episodes" in ran.stderr


def test_an_unknown_training_names_the_nearest(envweave):
    ran = envweave("train", "linewrld")

    assert ran.code == 2
    assert "'lineworld'" in ran.stderr


def test_gsm8k_without_a_key_is_refused(envweave, monkeypatch):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)

    ran = envweave("train", "gsm8k")

    assert ran.code == 2
    assert "TINKER_API_KEY is not set" in ran.stderr

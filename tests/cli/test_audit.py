"""`envweave audit`."""

from __future__ import annotations

import json


def test_a_sound_environment_is_ok(envweave):
    ran = envweave("audit", "lineworld-v0", "--episodes", "4")

    assert ran.code == 0
    assert "oracle" in ran.text
    assert "ok solvable The oracle solves 100% of 4 episodes" in ran.text
    assert "OK: 0 failed" in ran.text


def test_the_json_has_verdicts_policies_and_costs(envweave):
    ran = envweave("audit", "codefix-v0", "--json", "--episodes", "2", "--seed", "3")

    report = json.loads(ran.stdout)
    assert report["ok"] is True
    assert report["id"] == "codefix-v0"
    assert {one["kind"] for one in report["policies"]} == {"null", "random", "oracle", "exploit"}
    assert {one["status"] for one in report["verdicts"]} <= {"ok", "warn"}
    assert report["policies"][0]["episodes"][0]["seed"] == 3
    assert report["costs"]["steps_per_s"] > 0


def test_an_oracle_that_is_wrong_is_a_failure(envweave, tmp_path, monkeypatch):
    (tmp_path / "wrong_oracle.py").write_text(
        "def answer(task, result):\n"
        "    operators = ['+', '-', '*', '//']\n"
        "    operators.remove(task.private['operator'])\n"
        "    return {'operator': operators[0]}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    ran = envweave("audit", "codefix-v0", "--episodes", "2", "--oracle", "wrong_oracle:answer")

    assert ran.code == 1
    assert "fail solvable The oracle solves 0% of 2 episodes. Not: train-" in ran.text


def test_an_oracle_that_cannot_be_imported_is_an_error(envweave):
    ran = envweave("audit", "codefix-v0", "--oracle", "no_such_module:answer")

    assert ran.code == 2
    assert "no_such_module" in ran.stderr

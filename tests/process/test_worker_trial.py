"""A vector whose steps are too cheap for worker processes says so, once."""

from __future__ import annotations

import logging

import pytest

from envweave.vector.process.transport import TRIAL_STEPS, WorkerTrial

MS = 1e-3


def run_trial(name: str, step_s: float, local_s: float) -> int:
    trial = WorkerTrial(name, num_envs=8, num_local=4)
    for count in range(1, 2 * TRIAL_STEPS):
        if trial.note(step_s, local_s):
            return count
    return -1


@pytest.fixture(autouse=True)
def _warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "envweave.vector")


def test_steps_that_are_faster_in_this_process_are_warned_about_once(caplog):
    ended = [run_trial("Cheap", 3 * MS, 0.5 * MS) for _ in range(2)]

    assert ended == [TRIAL_STEPS, TRIAL_STEPS]
    assert [record.getMessage() for record in caplog.records] == [
        "a step of 8 Cheap takes 3000 µs with backend='process', but would take about 1000 µs in "
        "this process. Leave out backend='process' unless you need workers for isolation."
    ]


@pytest.mark.parametrize("step_s", [1.0 * MS, 1.2 * MS, 2.0 * MS])
def test_steps_that_workers_make_faster_or_nearly_so_are_not(caplog, step_s):
    ended = run_trial("Dear", step_s, 1.0 * MS)

    assert ended == TRIAL_STEPS
    assert caplog.records == []

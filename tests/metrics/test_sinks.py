"""Sinks write metrics with the real libraries, offline."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from installations import venv_python, with_envweave

import envweave as ew
from envweave.errors import ClosedError, MissingExtraError, OptionError


def read(path: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        assert line.pop("time") > 0
    return lines


def test_json_lines_are_appended_with_their_step(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    with ew.metrics.to_jsonl(path) as sink:
        sink(1, {"reward": {"mean": 0.5, "std": np.float32(0.25)}, "updates": 3})
    with ew.metrics.to_jsonl(path) as sink:
        sink(2, {"loss": True})

    assert read(path) == [
        {"step": 1, "reward/mean": 0.5, "reward/std": 0.25, "updates": 3.0},
        {"step": 2, "loss": 1.0},
    ]


def test_a_line_is_there_before_the_next_is_written(tmp_path):
    sink = ew.metrics.to_jsonl(tmp_path / "metrics.jsonl")
    sink(1, {"reward": 0.5})

    assert read(tmp_path / "metrics.jsonl") == [{"step": 1, "reward": 0.5}]
    sink.close()


def test_what_is_not_finite_is_left_out(tmp_path):
    with ew.metrics.to_jsonl(tmp_path / "metrics.jsonl") as sink:
        sink(1, {"reward": math.nan, "loss": math.inf, "score": None})
        sink(2, {"reward": math.nan, "length": 3})

    assert read(tmp_path / "metrics.jsonl") == [{"step": 2, "length": 3.0}]


@pytest.mark.parametrize("value", ["0.5", [1.0, 2.0], object()])
def test_a_value_that_is_not_a_number_is_refused_by_name(tmp_path, value):
    with (
        ew.metrics.to_jsonl(tmp_path / "metrics.jsonl") as sink,
        pytest.raises(OptionError, match="The metric 'reward/mean' is not a number"),
    ):
        sink(1, {"reward": {"mean": value}})


def test_a_closed_sink_refuses_metrics_and_may_be_closed_again(tmp_path):
    sink = ew.metrics.to_jsonl(tmp_path / "metrics.jsonl")
    sink.close()
    sink.close()

    with pytest.raises(ClosedError):
        sink(1, {"reward": 0.5})


def test_a_file_that_cannot_be_opened_is_reported(tmp_path):
    with pytest.raises(OptionError, match="cannot be opened for metrics"):
        ew.metrics.to_jsonl(tmp_path)


@pytest.mark.parametrize(
    ("sink", "module", "extra"),
    [
        ("to_tensorboard", "tensorboardX", "tensorboard"),
        ("to_wandb", "wandb", "wandb"),
        ("to_mlflow", "mlflow.entities", "mlflow"),
    ],
)
def test_a_missing_library_is_named_with_the_command_that_installs_it(
    sink, module, extra, monkeypatch, tmp_path
):
    monkeypatch.setitem(sys.modules, module, None)
    arguments = [tmp_path] if sink == "to_tensorboard" else []

    with pytest.raises(MissingExtraError, match=rf"pip install 'envweave\[{extra}\]'"):
        getattr(ew.metrics, sink)(*arguments)


def test_options_for_a_run_that_has_begun_are_refused():
    with pytest.raises(OptionError, match="'project' comes too late"):
        ew.metrics.to_wandb(object(), project="lineworld")


PLAY = """
import envweave as ew
with ew.pool("lineworld-v0", size=4) as pool:
    for update in (1, 2):
        episodes = ew.rollout(
            pool, lambda result: {"move": result.observation.goal}, episodes=8, seed=update
        ).run()
        sink(update, ew.metrics.episode_metrics(episodes))
sink.close()
"""


def run_with_libraries(code: str, folder: Path) -> dict[str, object]:
    done = subprocess.run(
        [venv_python("metrics"), "-c", code],
        cwd=folder,
        env=with_envweave(
            WANDB_MODE="offline",
            WANDB_SILENT="true",
            WANDB_DIR=str(folder),
            MLFLOW_ALLOW_FILE_STORE="true",  # the store that needs no database
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow  # imports the library
def test_tensorboard_reads_what_was_written(tmp_path):
    found = run_with_libraries(
        f"""
import envweave as ew, json
sink = ew.metrics.to_tensorboard("events")
{PLAY}
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator("events")
events.Reload()
rewards = [(one.step, one.value) for one in events.Scalars("reward/mean")]
print(json.dumps([sorted(events.Tags()["scalars"]), rewards]))
""",
        tmp_path,
    )

    names, rewards = found
    assert {"reward/mean", "metrics/success", "length/mean", "usable"} <= set(names)
    assert [step for step, _ in rewards] == [1, 2]
    assert all(value > 0.8 for _, value in rewards)


@pytest.mark.slow  # imports the library and starts its process
def test_wandb_records_a_run_offline(tmp_path):
    found = run_with_libraries(
        f"""
import envweave as ew, json, wandb
run = wandb.init(project="lineworld")
sink = ew.metrics.to_wandb(run)
{PLAY}
run.log({{"over": 1.0}}, step=3)  # a step is complete when the next one begins
summary = {{name: run.summary[name] for name in ("reward/mean", "metrics/success")}}
run.finish()
own = ew.metrics.to_wandb(project="lineworld", reinit="finish_previous")
own(1, {{"reward": 1.0}})
own.close()
print(json.dumps(summary))
""",
        tmp_path,
    )

    assert found["reward/mean"] > 0.8
    assert found["metrics/success"] == 1.0
    assert len(list(tmp_path.rglob("run-*.wandb"))) == 2


@pytest.mark.slow  # imports the library
def test_mlflow_stores_a_run(tmp_path):
    found = run_with_libraries(
        f"""
import envweave as ew, json, pathlib
store = pathlib.Path("store").resolve().as_uri()
sink = ew.metrics.to_mlflow("lineworld", tracking_uri=store)
{PLAY}
from mlflow.tracking import MlflowClient
client = MlflowClient(store)
experiment = client.get_experiment_by_name("lineworld")
(run,) = client.search_runs([experiment.experiment_id])
history = client.get_metric_history(run.info.run_id, "reward/mean")
print(json.dumps([run.info.status, [one.step for one in history], run.data.metrics]))
""",
        tmp_path,
    )

    status, steps, metrics = found
    assert (status, steps) == ("FINISHED", [1, 2])
    assert metrics["metrics/success"] == 1.0

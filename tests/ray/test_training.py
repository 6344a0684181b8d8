"""Training on Ray gives the curve of training in this process, line for line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envweave.examples.train_codefix_pg import CodeFixConfig
from envweave.examples.train_codefix_pg import train as train_codefix
from envweave.examples.train_lineworld_pg import LineWorldConfig
from envweave.examples.train_lineworld_pg import train as train_lineworld
from envweave.examples.training import read_run_log


def curve(run_dir: Path) -> list[dict[str, Any]]:
    """Return every line of a run's log, without what must differ."""
    others = ("time_s", "backend")
    return [
        {name: value for name, value in line.items() if name not in others}
        for line in read_run_log(run_dir)
    ]


@pytest.mark.slow  # trains twice
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("train", "config", "settings"),
    [
        pytest.param(train_lineworld, LineWorldConfig, {}, id="lineworld"),
        pytest.param(
            train_codefix,
            CodeFixConfig,
            {"num_envs": 16, "episodes": 640, "evaluation_episodes": 64, "checkpoint_every": 20},
            id="codefix",
        ),
    ],
)
def test_training_has_the_same_curve_on_ray_as_in_this_process(
    train: Callable[[Any], Path], config: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    here = train(config(seed=3, run_dir=tmp_path / "here", **settings))

    there = train(config(seed=3, run_dir=tmp_path / "there", backend="ray", **settings))

    assert curve(there) == curve(here)
    assert len(curve(here)) > 40

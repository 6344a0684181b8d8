"""Exports of recordings, read by the programs that they are for, or against their schemas."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from installations import venv_python

import envweave as ew
from envweave.recording.export import (
    EXPORTS,
    to_atif,
    to_eval,
    to_json,
    to_parquet,
    trajectory_of,
)

SCRIPTED = "pkg://envweave.testing.scripted:ScriptedEnvironment"
ATIF: dict[str, Any] = json.loads((Path(__file__).parent / "atif-1.8.schema.json").read_text())


@pytest.fixture
def recording(tmp_path: Path) -> ew.Recording:
    """Episodes of every kind: numbers, arrays, several agents, tools, failures, code."""
    folder = tmp_path / "run"
    tokens = {
        "prompt_token_ids": [1, 2],
        "completion_token_ids": [3],
        "logprobs": [-0.5],
        "cost_usd": 0.1,
    }
    with ew.pool("counter-v0", size=2, record=folder) as pool:
        ew.rollout(pool, lambda _: ew.Decision({"delta": 1}, tokens), episodes=4, seed=0).run()
    with ew.make("tictactoe-v0", record=folder) as env:
        result = env.reset(seed=1)
        while not result.done:
            cells = {
                need.agent_id: int(np.flatnonzero(need.action_mask)[0]) for need in result.needs
            }
            result = env.step({agent: {"cell": cell} for agent, cell in cells.items()})
    script = [{"tool": "search"}, {"reward": 0.5}, {"raise": "boom"}]
    with ew.make(SCRIPTED, script=script, record=folder) as env:
        env.reset(seed=0, task="second")
        asked = env.step({"text": "go"})
        result = env.step(ew.ToolResult(asked.tool_calls[0].call_id, error="no"))
        while not result.done:
            result = env.step({})
    with ew.make(ew.create_codeact_env(executor="inproc"), record=folder) as env:
        env.reset()
        env.step({"code": "print('<script>')\n6 * 7"})
        env.step({"code": "1 / 0"})
    loaded = ew.load(folder)
    assert len(loaded) == 7
    return loaded


def check_atif(trajectory: dict[str, Any]) -> None:
    """Check what the schema says, and what the format's own validators do."""
    jsonschema.Draft202012Validator(ATIF).validate(trajectory)
    assert [step["step_id"] for step in trajectory["steps"]] == [
        *range(1, len(trajectory["steps"]) + 1)
    ]
    for step in trajectory["steps"]:
        if step["source"] != "agent":
            assert not {"tool_calls", "metrics", "reasoning_content"} & step.keys()
        called = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        results = step.get("observation", {}).get("results", ())
        sources = [one.get("source_call_id") for one in results]
        assert {one for one in sources if one is not None} <= called


def test_atif_follows_its_published_schema(recording: ew.Recording, tmp_path: Path) -> None:
    count = to_atif(recording, tmp_path / "out.jsonl")

    trajectories = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert count == len(trajectories) == 7
    for trajectory in trajectories:
        check_atif(trajectory)
    first = trajectories[0]
    assert first["steps"][1]["metrics"] == {
        "prompt_token_ids": [1, 2], "completion_token_ids": [3], "logprobs": [-0.5],
        "cost_usd": 0.1,
    }  # fmt: skip
    assert first["final_metrics"]["total_cost_usd"] == pytest.approx(0.3)
    assert first["final_metrics"]["extra"]["reward"] == 3.0
    assert first["extra"]["seed"] is not None


def test_an_episode_that_was_not_recorded_has_a_trajectory_too() -> None:
    with ew.pool("counter-v0", size=1) as pool:
        (episode,) = ew.rollout(pool, lambda _: {"delta": 1}, episodes=1).run()

    check_atif(trajectory_of(episode))


@pytest.mark.slow  # Inspect takes seconds to import
def test_inspect_reads_its_log(recording: ew.Recording, tmp_path: Path) -> None:
    python = venv_python("inspect")
    to_eval(recording, tmp_path / "out.eval")
    program = (
        "import json, sys; from inspect_ai.log import read_eval_log;"
        "log = read_eval_log(sys.argv[1]);"
        "print(json.dumps([log.status, log.eval.metadata['runs'][0]['env_id'],"
        " log.results.scores[0].metrics['mean'].value,"
        " [[s.id, s.epoch, None if not s.scores else s.scores['reward'].value,"
        " s.error.message if s.error else None, s.metadata['seed'], [m.role for m in s.messages]]"
        " for s in log.samples]]))"
    )

    read = subprocess.run(
        [python, "-c", program, tmp_path / "out.eval"], capture_output=True, text=True, timeout=100
    )

    assert read.returncode == 0, read.stderr
    status, _, mean, samples = json.loads(read.stdout.splitlines()[-1])
    assert (status, mean) == ("success", pytest.approx((4 * 3.0 + 0.0) / 5))
    assert len(samples) == 7
    assert sum(one[3] is not None for one in samples) == 1
    by_id = {one[0]: one for one in samples}
    failed = next(one for name, one in by_id.items() if "second" in name)
    assert "boom" in failed[3]
    assert failed[5][:4] == ["user", "assistant", "assistant", "tool"]


def test_json_has_a_line_for_each_episode(recording: ew.Recording, tmp_path: Path) -> None:
    to_json(recording, tmp_path / "out.jsonl")

    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines == [json.loads(json.dumps(one.to_dict())) for one in recording]
    failed = next(one for one in lines if not one["usable"])
    assert failed["reward"] is None


def test_parquet_has_a_row_for_each_step(recording: ew.Recording, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")

    to_parquet(recording, tmp_path / "out.parquet")

    rows = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert len(rows) == sum(len(one.steps) for one in recording)
    first = rows[0]
    assert (first["step"], first["reward"], first["episode_reward"]) == (1, 1.0, 3.0)
    assert json.loads(first["action"]) == {"delta": 1}
    assert json.loads(first["extra"])["logprobs"] == [-0.5]


def test_a_file_that_cannot_be_written_is_an_error(recording: ew.Recording, tmp_path: Path) -> None:
    with pytest.raises(ew.errors.RecordingError, match="cannot be written"):
        to_json(recording, next((tmp_path / "run").glob("events-*")) / "x")


@pytest.mark.parametrize("name", EXPORTS)
def test_text_that_is_not_unicode_is_exported(name: str, tmp_path: Path) -> None:
    if name == "parquet":
        pytest.importorskip("pyarrow")
    with ew.make("echo-v0", record=tmp_path / "run") as env:
        env.reset()
        env.step({"message": "caf\udce9"})

    count = EXPORTS[name](ew.load(tmp_path / "run"), tmp_path / "out")

    assert count == 1
    if name in ("json", "atif"):
        assert "caf?" in (tmp_path / "out").read_text(encoding="utf-8")

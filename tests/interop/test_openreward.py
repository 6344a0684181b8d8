"""The official client of the Open Reward Standard, and TRL's on top of it, against our server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from installations import ROOT, venv_python
from servers import process_serving, served

pytestmark = pytest.mark.slow  # starts servers and programs that import the client

PROGRAMS = ROOT / "tests/support/programs"
TOKEN = "a-token"


def run(python: Path, program: str, *arguments: str) -> Any:
    done = subprocess.run(
        [python, PROGRAMS / program, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0
    return json.loads(done.stdout.splitlines()[-1])


def play(url: str, split: str, index: int, *calls: tuple[str | None, dict[str, Any]]) -> Any:
    python = venv_python("openreward")
    return run(python, "openreward_peer.py", url, TOKEN, split, str(index), json.dumps(list(calls)))


def test_the_official_client_plays_an_environment_without_tasks() -> None:
    with process_serving("counter-v0", token=TOKEN, arg="done_at=3", dialects="ors") as server:
        seen = play(
            server.url,
            "train",
            7,
            (None, {"delta": 1}),
            (None, {"delta": "one"}),
            ("fly", {}),
            (None, {"delta": 2}),
            (None, {"delta": 2}),
        )

    first, invalid, unknown, last, late = seen["results"]
    assert (seen["splits"], seen["num_tasks"], seen["listed"]) == (["train"], 1000, 1000)
    assert (seen["tasks"], seen["task"]) == ([{"seed": 0}, {"seed": 1}], {"seed": 7})
    assert (seen["score_group"], seen["terminal"]) == (False, False)
    (function,) = seen["tools"]
    assert function["parameters"]["properties"]["delta"] == {"type": "integer"}
    assert seen["session_tools"] == [function["name"]]
    assert seen["messages"] == [{"role": "user", "content": seen["prompt"]}]
    assert (first["reward"], first["finished"]) == (1.0, False)
    assert (invalid["error"], unknown["error"]) == ("ToolCallError", "ToolCallError")
    assert "input_validation" in invalid["text"]
    assert "not_found" in unknown["text"]
    assert (last["reward"], last["finished"]) == (2.0, True)
    assert last["metadata"]["episode_end"]["reason"] == "terminated"
    assert "episode_finished" in late["text"]


def test_the_official_client_plays_the_tasks_of_an_environment() -> None:
    with process_serving("gsm8k-v0", token=TOKEN, workers=1) as server:
        seen = play(server.url, "test", 1, (None, {"text": "It is #### -1"}))

    (result,) = seen["results"]
    assert (seen["splits"], seen["num_tasks"]) == (["train", "test"], 32)
    assert seen["task"] == {**seen["tasks"][1], "id": "test-1"}
    assert seen["task"]["data"]["question"] in seen["prompt"]
    assert seen["tasks"][0]["data"]["question"] in seen["by_task"]
    assert (result["reward"], result["finished"]) == (0.0, True)


def test_a_failed_episode_reaches_the_official_client_as_a_failure() -> None:
    from environments.served import FailsOrWaits

    with served(FailsOrWaits, token=TOKEN) as url:
        seen = play(url, "train", 0, (None, {"do": "fail"}), (None, {"do": "nothing"}))

    failed, late = seen["results"]
    assert failed["error"] == "ToolFailed"
    assert "The episode has failed (error, caused by the environment)" in failed["text"]
    assert late["error"] == "SessionTerminatedError"


def test_trl_trains_on_a_server_by_its_openreward_spec() -> None:
    trl, client = venv_python("trl"), venv_python("openreward")
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.check_output([client, "-c", ask], text=True).strip()

    with process_serving("counter-v0", arg="done_at=3") as server:
        seen = run(trl, "openreward_trl_peer.py", server.url, packages)

    assert [row["task_index"] for row in seen["rows"]] == [0, 1, 2, 3]
    assert [row["seed"] for row in seen["rows"]] == [0, 1, 2, 3]
    assert len(seen["tools"]) == 1
    assert "Count up" in seen["doc"]
    assert seen["prompts"] == ['{"value":0}'] * 3
    assert seen["outputs"] == ['{"value":1}', '{"value":3}']
    assert seen["refused"].startswith("Error: input_validation")
    assert seen["rewards"] == [2.0, None, None]  # the last reward; none of what was not scored
    assert seen["finished"] == [True, False, False]

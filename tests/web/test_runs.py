"""What `envweave view` serves, without a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_files import RunWriter, runs_app, write_code_run, write_hostile_run, write_metrics
from starlette.testclient import TestClient

import envweave as ew
from envweave.errors import OptionError


class TakesAnything(ew.Environment):
    """Takes whatever plain data there is."""

    def reset(self) -> str:
        return "begin"

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "took it", 0.0, False, False, {}

    @property
    def state(self) -> ew.State:
        return ew.State()


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envweave.web.viewer.index.REFRESH_S", 0.0)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    """Who views the runs below the folder of the test."""
    with TestClient(runs_app(tmp_path)) as found:
        yield found


def ask(client: TestClient, name: str, **params: Any) -> Any:
    response = client.get(f"/api/{name}", params=params)
    assert response.status_code == 200, response.text
    return response.json()


def test_runs_are_listed_with_their_figures(client: TestClient, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "deep" / "one")
    run.start()
    run.episode("a", [1.0, 2.0])
    run.episode("b", [5.0], reason="lost", blame="infrastructure", message="Worker 3 was killed.")
    write_metrics(tmp_path / "two", 3)
    (tmp_path / "no run").mkdir()

    one, two = ask(client, "runs")["runs"]

    assert (one["id"], one["env_id"], one["episodes"], one["steps"]) == (
        "deep/one", "counter-v0", 2, 3,
    )  # fmt: skip
    assert (one["reward"], one["reasons"]) == (3.0, {"terminated": 1, "lost": 1})
    assert (two["id"], two["has_metrics"], two["episodes"]) == ("two", True, 0)


def test_a_folder_that_is_a_run_is_listed_by_its_name(tmp_path: Path) -> None:
    RunWriter(tmp_path / "mine").start()

    with TestClient(runs_app(tmp_path / "mine")) as client:
        found = ask(client, "runs")["runs"]

    assert [one["id"] for one in found] == ["mine"]


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is not a folder"):
        runs_app(tmp_path / "nothing")


def test_what_is_appended_is_shown_and_a_torn_line_waits(
    client: TestClient, tmp_path: Path
) -> None:
    run = RunWriter(tmp_path / "one")
    run.start()
    run.episode("a", [1.0], reason=None)
    before = ask(client, "episode", run="one", episode="a")
    run.write_bytes(b'{"event": "step", "t": 3, "episode": "a", "step": 2, "rew')
    torn = ask(client, "episode", run="one", episode="a")
    run.write_bytes(b'ard": 4.0}\n')
    run.end("a", 5.0, 2, "terminated")
    after = ask(client, "episode", run="one", episode="a")

    assert (before["steps"], before["reason"], before["reward"]) == (1, None, 1.0)
    assert torn == before
    assert (after["steps"], after["reason"], after["reward"]) == (2, "terminated", 5.0)
    assert after["rewards"] == {"reward": [[1, 1.0], [2, 4.0]]}


def test_a_file_that_was_replaced_is_read_again(client: TestClient, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "one")
    run.start()
    run.episode("a", [1.0] * 20)
    ask(client, "run", run="one")
    run.path.unlink()
    run.start()
    run.episode("b", [1.0])

    rows = ask(client, "episodes", run="one")["rows"]

    assert [one["id"] for one in rows] == ["b"]


def test_every_attempt_at_an_episode_is_shown(client: TestClient, tmp_path: Path) -> None:
    RunWriter(tmp_path / "one", "events-1-1-aa.jsonl").episode("a", [1.0], reason=None)
    RunWriter(tmp_path / "one", "events-2-2-bb.jsonl").episode("a", [1.0, 2.0])

    rows = ask(client, "episodes", run="one")["rows"]

    assert [(one["id"], one["steps"], one["reason"]) for one in rows] == [
        ("a", 1, None), ("a (2)", 2, "terminated"),
    ]  # fmt: skip


def test_what_envweave_records_is_shown(client: TestClient, tmp_path: Path) -> None:
    with ew.make("tictactoe-v0", record=tmp_path / "one") as env:
        env.reset(seed=0)
        for cell, agent in zip((0, 1, 4, 2, 8), "xoxox", strict=True):
            env.step({agent: {"cell": cell}})

    row = ask(client, "episodes", run="one")["rows"][0]
    event = ask(client, "event", run="one", episode=row["id"], line=5)["event"]
    run = ask(client, "run", run="one")

    assert (row["seed"], row["steps"], row["reason"]) == (0, 5, "terminated")
    assert event["action"] == {"x": {"cell": 8}}
    assert event["reward"] == {"x": 1.0, "o": -1.0}
    assert event["observation"]["x"]["board"]["$array"] == {
        "dtype": "int8", "shape": [3, 3], "values": [[1, -1, -1], [0, 1, 0], [0, 0, 1]],
    }  # fmt: skip
    assert (run["env_id"], run["is_live"], run["broken"]) == ("tictactoe-v0", False, 0)


def test_the_returns_of_several_agents_are_shown_by_agent(
    client: TestClient, tmp_path: Path
) -> None:
    with ew.make("tictactoe-v0", record=tmp_path / "one") as env:
        env.reset(seed=0)
        for cell, agent in zip((0, 1, 4, 2, 8), "xoxox", strict=True):
            env.step({agent: {"cell": cell}})

    row = ask(client, "episodes", run="one")["rows"][0]
    episode = ask(client, "episode", run="one", episode=row["id"])

    assert row["reward"] == {"x": 1.0, "o": -1.0}
    assert ask(client, "run", run="one")["reward"] == {"x": 1.0, "o": -1.0}
    assert ask(client, "rewards", run="one")["points"] == [[1, {"x": 1.0, "o": -1.0}, 5]]
    assert {agent: points[-2:] for agent, points in episode["rewards"].items()} == {
        "x": [[4, 0.0], [5, 1.0]],
        "o": [[4, 0.0], [5, -1.0]],
    }


def test_an_episode_that_nobody_scored_has_no_return(client: TestClient, tmp_path: Path) -> None:
    with ew.make(ew.create_codeact_env(executor="inproc"), record=tmp_path / "one") as env:
        env.reset()
        env.step({"code": "1"})

    assert ask(client, "episodes", run="one")["rows"][0]["reward"] is None
    assert ask(client, "run", run="one")["reward"] is None
    assert ask(client, "episodes", run="one", min="-1")["matching"] == 0


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ({"code": "a = 1\nb = 2"}, "a = 1 b = 2"),
        ({"move": np.array([0.5, -1.0])}, "[0.5, -1.0]"),
        (np.zeros((30, 2), np.float32), "float32 [30, 2]"),
        ({"x": {"cell": 4}, "o": {"cell": 5}}, "x: 4, o: 5"),
        ({"x": {"cell": 4, "metadata": {}}}, "x: 4"),
        ({"role": "assistant", "content": "It is 4."}, "It is 4."),
        ({"text": "caf\udce9", "metadata": {}}, "caf?"),
        ({"text": "x" * 300_000}, "str of 300000 bytes"),
        ([1, float("nan")], "[1, nan]"),
    ],
)
def test_an_action_is_summarized_in_a_few_words(
    client: TestClient, tmp_path: Path, action: Any, words: str
) -> None:
    with ew.make(TakesAnything(), record=tmp_path / "one") as env:
        env.reset()
        env.step(action)
    (episode,) = ask(client, "episodes", run="one")["rows"]

    rows = ask(client, "steps", run="one", episode=episode["id"])["rows"]

    assert rows[1]["action"] == words


def test_the_rewards_of_a_long_episode_keep_their_extremes(
    client: TestClient, tmp_path: Path
) -> None:
    run = RunWriter(tmp_path / "one")
    with run.path.open("ab") as file:
        file.write(b'{"event":"reset","t":1,"episode":"a"}\n')
        for step in range(1, 7001):
            file.write(b'{"event":"step","t":1,"episode":"a","step":%d,"reward":%d}\n'
                       % (step, step % 7))  # fmt: skip

    points = ask(client, "episode", run="one", episode="a")["rewards"]["reward"]

    assert len(points) <= 2002
    assert [x for x, _ in points] == sorted({x for x, _ in points})
    assert {y for x, y in points if x < 100} == {y for x, y in points if x > 6900} == {0.0, 6.0}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"reason": "lost"}, ["b"]),
        ({"reason": "running"}, ["d"]),
        ({"blame": "none"}, ["a", "d"]),
        ({"blame": "agent"}, ["c"]),
        ({"min": "3"}, ["b", "c"]),
        ({"min": "2", "max": "5"}, ["a", "b"]),
        ({"task": "train-1"}, ["a", "b"]),
        ({"q": "Worker 3"}, ["b"]),
        ({"sort": "reward", "order": "desc"}, ["c", "b", "a", "d"]),
        ({"sort": "steps"}, ["b", "c", "d", "a"]),
    ],
)
def test_episodes_are_filtered_and_sorted(
    client: TestClient, tmp_path: Path, filters: dict[str, str], expected: list[str]
) -> None:
    run = RunWriter(tmp_path / "one")
    run.start()
    run.episode("a", [1.0, 1.0], task_id="train-1")
    run.episode("b", [5.0], task_id="train-1", reason="lost", blame="infrastructure",
                message="Worker 3 was killed.")  # fmt: skip
    run.episode("c", [9.0], task_id="test-1", reason="error", blame="agent")
    run.episode("d", [0.0], reason=None)

    found = ask(client, "episodes", run="one", **filters)

    assert [one["id"] for one in found["rows"]] == expected
    assert (found["matching"], found["total"]) == (len(expected), 4)


def test_a_line_is_shown_as_an_object_and_as_it_is_in_the_file(
    client: TestClient, tmp_path: Path
) -> None:
    run = RunWriter(tmp_path / "one")
    run.start()
    run.episode("a", [float("nan")])

    event = ask(client, "event", run="one", episode="a", line=1)["event"]
    raw = client.get("/api/raw", params={"run": "one", "episode": "a", "line": "1"})

    assert (event["action"], event["reward"]) == ({"delta": 1}, {"$float": "nan"})
    assert raw.headers["content-type"] == "text/plain; charset=utf-8"
    assert raw.content == run.path.read_bytes().splitlines(keepends=True)[2]
    assert json.loads(raw.content)["step"] == 1


def test_forks_are_a_tree(client: TestClient, tmp_path: Path) -> None:
    write_code_run(tmp_path / "one", episodes=12)

    nodes = ask(client, "tree", run="one")["nodes"]
    root = ask(client, "episode", run="one", episode="009c22-2")

    assert [one["id"] for one in nodes if one["parent"] is None] == ["009c22-2"]
    assert [one["id"] for one in root["children"]] == [
        "009c23-3", "009c24-4", "009c25-5", "009c26-6",
    ]  # fmt: skip


def test_metrics_are_read_on_from_where_the_last_call_ended(
    client: TestClient, tmp_path: Path
) -> None:
    write_metrics(tmp_path / "one", 3)
    first = ask(client, "metrics", run="one")
    line = b'{"type": "update", "episode": 64, "return": 2.5, "time_s": 9}\n{"type": "upd'
    with (tmp_path / "one" / "metrics.jsonl").open("ab") as file:
        file.write(line)
    second = ask(client, "metrics", run="one", since=first["offset"])

    assert len(first["points"]["update/return"]) == 3
    assert first["settings"]["title"] == "LineWorld"
    assert second["points"] == {"update/return": [[64.0, 2.5]]}


def test_hostile_lines_are_counted_or_shown_as_text(client: TestClient, tmp_path: Path) -> None:
    write_hostile_run(tmp_path / "one")

    run = ask(client, "run", run="one")
    episodes = ask(client, "episodes", run="one")["rows"]
    for episode in episodes:
        found = ask(client, "steps", run="one", episode=episode["id"])
        for line in range(found["total"]):
            ask(client, "event", run="one", episode=episode["id"], line=line)

    assert run["broken"] == 2
    assert len(episodes) == 3


@pytest.mark.parametrize("name", ["../outside", "/etc", "one/../../outside", ".", "", "outside"])
def test_a_run_outside_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    RunWriter(tmp_path / "outside").start()
    RunWriter(tmp_path / "inside" / "one").start()
    (tmp_path / "inside" / "outside").symlink_to(tmp_path / "outside")
    with TestClient(runs_app(tmp_path / "inside")) as client:
        refused = client.get("/api/run", params={"run": name})

    assert refused.status_code == 404
    assert "There is no run" in refused.json()["error"]["message"]


@pytest.mark.parametrize("digest", ["../../secret", "secret", "secret00", "%2e%2e", ""])
def test_a_value_outside_its_run_is_refused(
    client: TestClient, tmp_path: Path, digest: str
) -> None:
    run = RunWriter(tmp_path / "one")
    run.start()
    run.value("present0", [1, 2])
    (tmp_path / "secret.msgpack").write_bytes(b"\x01")
    (tmp_path / "one/values/secret00.msgpack").symlink_to(tmp_path / "secret.msgpack")

    present = ask(client, "value", run="one", digest="present0")
    refused = client.get("/api/value", params={"run": "one", "digest": digest})

    assert present == {"value": [1, 2]}
    assert refused.status_code == 404


def test_a_linked_file_of_events_is_not_read(client: TestClient, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "one")
    run.start()
    other = RunWriter(tmp_path / "other" / "deeper")
    other.episode("theirs", [1.0])
    (tmp_path / "one" / "events-9.jsonl").symlink_to(other.path)

    assert ask(client, "run", run="one")["episodes"] == 0


@pytest.mark.slow  # writes and reads 100,000 lines
def test_a_hundred_thousand_steps_are_read_once(client: TestClient, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "one")
    run.start()
    with run.path.open("ab") as file:
        for number in range(1000):
            file.write(b'{"event":"reset","t":1,"episode":"e%d","observation":{}}\n' % number)
            for step in range(1, 101):
                file.write(
                    b'{"event":"step","t":1,"episode":"e%d","step":%d,"reward":0.5,"action":%d,'
                    b'"observation":{"text":"%s"}}\n' % (number, step, step, b"x" * 200)
                )
    ask(client, "run", run="one")
    run.write("step", episode="e999", step=101, action=7, observation={}, reward=1.0)

    found = ask(client, "run", run="one")
    last = ask(client, "steps", run="one", episode="e999", offset=100)["rows"]

    assert (found["episodes"], found["steps"]) == (1000, 100_001)
    assert [one["step"] for one in last] == [100, 101]

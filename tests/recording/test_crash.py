"""Recordings survive what happens to their process: a kill, a full disk, a fork, a torn line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from servers import wait_for

import envweave as ew
from envweave.recording.writer import MAX_PENDING, RunWriter

STEPPING = """
import sys
import envweave as ew
with ew.make_vector("counter-v0", num_envs=64, autoreset=True, record=sys.argv[1]) as venv:
    venv.reset(seed=0)
    for i in range(10**9):
        venv.step([{"delta": 1}] * 64)
        if i == 300:
            print("stepping", flush=True)
"""


def event_file(folder: Path) -> Path:
    (path,) = folder.glob("events-*.jsonl")
    return path


@pytest.mark.slow  # starts a process, and lets it step for a while
def test_after_kill_9_everything_but_the_last_lines_is_readable(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STEPPING, tmp_path], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "stepping\n"

    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)

    recording = ew.load(tmp_path)
    assert recording.problems == []
    finished = [one for one in recording.summaries if one.end is not None]
    unfinished = [one for one in recording.summaries if one.end is None]
    assert len(finished) > 64
    assert len(unfinished) <= 64
    assert sum(one.steps for one in recording.summaries) > 64 * 100
    for one in recording.summaries[:200] + recording.summaries[-200:]:
        episode = recording.load(one)
        values = [shown.value for shown in episode.observations]
        assert values == list(range(len(values)))  # never a wrong value
        assert episode.usable == (one.end is not None)


def test_a_torn_line_is_ignored_and_then_cut_off(tmp_path: Path) -> None:
    with ew.make("counter-v0", record=tmp_path) as env:
        env.reset(seed=1)
        env.step({"delta": 1})
    path = event_file(tmp_path)
    whole = path.read_bytes()
    torn = whole[:-40]
    path.write_bytes(torn)

    recording = ew.load(tmp_path)
    assert recording.problems == []
    assert [one.steps for one in recording.summaries] == [1]
    ew.make("counter-v0", record=tmp_path).close()

    assert path.read_bytes() == torn[: torn.rindex(b"\n") + 1]


def test_the_line_that_a_living_writer_is_writing_is_left_alone(tmp_path: Path) -> None:
    with ew.make("counter-v0", record=tmp_path) as env:
        env.reset(seed=1)
        path = event_file(tmp_path)
        wait_for(lambda: b'"event":"reset"' in path.read_bytes())
        with path.open("ab") as file:
            file.write(b'{"event": "half')

        ew.make("counter-v0", record=tmp_path).close()

        assert path.read_bytes().endswith(b'{"event": "half')


def test_a_damaged_line_is_reported_and_its_episode_not_loaded(tmp_path: Path) -> None:
    with ew.make("counter-v0", record=tmp_path) as env:
        for seed in (1, 2):
            env.reset(seed=seed)
            for _ in range(3):
                env.step({"delta": 1})
    path = event_file(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = b"{damaged}\n"
    path.write_bytes(b"".join(lines))

    recording = ew.load(tmp_path)

    assert len(recording.problems) == 1
    with pytest.raises(ew.errors.RecordingError, match="Step 2 of episode"):
        recording.load(recording.summaries[0])
    assert recording.episodes[1].reward == 3.0


FULL = """
import resource, sys, warnings, logging
import envweave as ew
logging.basicConfig()
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    steps = 0
    with ew.make("counter-v0", record=sys.argv[1], autoreset=True) as env:
        env.reset(seed=0)
        for _ in range(3000):
            steps += env.step({"delta": 1}).reward
print(steps, [(one.category.__name__, str(one.message)) for one in caught])
"""


def test_on_a_full_disk_the_program_goes_on_and_is_warned_once(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", FULL, tmp_path], capture_output=True, text=True, timeout=60
    )

    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("3000.0 [('RecordingWarning'")
    assert run.stdout.count("RecordingWarning") == 1
    assert "File too large" in run.stdout
    data = event_file(tmp_path).read_bytes()
    assert data.endswith(b"\n")
    assert len(data) <= 20_000
    recording = ew.load(tmp_path)
    assert recording.problems == []
    assert len(recording) > 5
    assert all(one.reward == 3.0 for one in recording if one.usable)


def test_a_forked_copy_records_nothing(tmp_path: Path) -> None:
    with ew.make("counter-v0", record=tmp_path, autoreset=True) as env:
        env.reset(seed=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads
            child = os.fork()
        if child == 0:
            code = 1
            try:
                for _ in range(50):
                    env.step({"delta": 1})
                env.close()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        env.step({"delta": 1})

    assert status == 0
    (episode,) = ew.load(tmp_path)
    assert episode.length == 1


def test_a_recording_that_is_dropped_is_written_with_a_warning(tmp_path: Path) -> None:
    env = ew.make("counter-v0", record=tmp_path)
    env.reset(seed=1)
    env.step({"delta": 1})

    with pytest.warns(ResourceWarning, match="was dropped without close"):
        del env

    (episode,) = ew.load(tmp_path)
    assert episode.length == 1


@pytest.mark.slow  # starts a process
def test_at_the_end_of_a_program_everything_is_written(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import sys
        import envweave as ew
        env = ew.make("counter-v0", record=sys.argv[1])
        env.reset(seed=1)
        env.step({"delta": 1})
        """
    )

    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, tmp_path], capture_output=True, text=True
    )

    assert (run.returncode, run.stderr) == (0, "")
    (episode,) = ew.load(tmp_path)
    assert episode.length == 1


def test_closing_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()

    with ew.make("counter-v0", record=tmp_path) as env:
        env.reset(seed=1)

    assert threading.active_count() == before


def test_every_line_is_json_and_the_last_one_says_that_it_was_closed(tmp_path: Path) -> None:
    with ew.make("counter-v0", record=tmp_path) as env:
        env.reset(seed=1)

    events = [json.loads(line)["event"] for line in event_file(tmp_path).read_text().splitlines()]

    assert events == ["run", "reset", "end", "close"]
    assert ew.load(tmp_path).runs[0].is_closed


class _StuckLines:
    """Makes no line until it may."""

    def __init__(self) -> None:
        self.may_go = threading.Event()

    def opening(self) -> bytes:
        return b"{}\n"

    def lines(self, taken: Any) -> list[bytes]:
        self.may_go.wait(20)
        return [b"{}\n"]

    def closing(self) -> bytes:
        return b""


def test_what_may_be_lost_is_bounded_in_steps_also_of_batches(tmp_path: Path) -> None:
    lines = _StuckLines()
    writer = RunWriter(tmp_path, lines)
    put: list[int] = []

    def record() -> None:
        for number in range(100):
            writer.put(number, 0, MAX_PENDING // 10)
            put.append(number)

    caller = threading.Thread(target=record)
    caller.start()
    wait_for(lambda: len(put) >= 9)
    caller.join(0.2)
    queued = len(put)
    lines.may_go.set()
    caller.join(20)
    writer.close()

    assert queued <= 11
    assert len(put) == 100

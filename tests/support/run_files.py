"""Writes the files of runs, as a recording and a trainer leave them, and shows a folder of them."""

from __future__ import annotations

import math
import random
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from envweave.web.viewer.app import viewer_app
from envweave.web.viewer.folder import RunsFolder
from envweave.wire.encoding import MSGPACK
from envweave.wire.json_dialect import to_dialect


def runs_app(folder: Path) -> Any:
    """Return the application that `envweave view` serves for a folder."""
    return viewer_app(RunsFolder(folder), [])


class RunWriter:
    """Appends events to a file of a run, each as one line."""

    def __init__(self, folder: Path, name: str = "events-20260101T000000-1-aa.jsonl") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / name
        self.time_s = 1_767_225_600.0

    def write(self, event: str, **fields: Any) -> None:
        self.time_s += 0.05
        line = msgspec.json.encode(to_dialect({"event": event, "t": self.time_s, **fields}))
        self.write_bytes(line + b"\n")

    def write_bytes(self, line: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(line)

    def start(self, env_id: str = "counter-v0", **fields: Any) -> None:
        versions = {"envweave": "0.1.0", "python": "3.11.2", "numpy": "2.4.6"}
        about = {"name": env_id, "action": {"type": "integer"}, "deterministic": True}
        self.write(
            "run", schema=1, run=self.folder.name, env_id=env_id, backend="process",
            versions=versions, description=about, spec_digest="5f2c", pid=1, **fields,
        )  # fmt: skip

    def episode(
        self,
        episode: str,
        rewards: list[float],
        *,
        reason: str | None = "terminated",
        blame: str | None = None,
        message: str | None = None,
        **reset: Any,
    ) -> None:
        """A whole episode of one action a step; without a reason it is still running."""
        self.write("reset", episode=episode, observation={"value": 0}, info={}, **reset)
        for i, reward in enumerate(rewards, 1):
            self.write(
                "step", episode=episode, step=i, action={"delta": i}, observation={"value": i},
                reward=reward, duration_s=0.001,
            )  # fmt: skip
        if reason is not None:
            self.end(episode, sum(rewards), len(rewards), reason, blame, message)

    def end(
        self, episode: str, reward: float, step: int, reason: str, blame: str | None = None,
        message: str | None = None,
    ) -> None:  # fmt: skip
        self.write(
            "end", episode=episode, step=step, reason=reason, blame=blame, message=message,
            reward=reward, usable=blame in (None, "agent"), duration_s=0.05 * step,
        )  # fmt: skip

    def value(self, digest: str, value: Any) -> None:
        """Store a large value beside the events."""
        (self.folder / "values").mkdir(exist_ok=True)
        data = MSGPACK.encode(value)
        assert isinstance(data, bytes)
        (self.folder / "values" / f"{digest}.msgpack").write_bytes(data)


def write_metrics(folder: Path, count: int, *, seed: int = 0, kind: str = "update") -> None:
    """Write the log of a training run whose return rises."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    with (folder / "metrics.jsonl").open("ab") as file:
        settings = {"type": "run", "title": "LineWorld", "seed": seed, "lr": 0.01 * (seed + 1)}
        file.write(msgspec.json.encode({**settings, "time_s": 0.0}) + b"\n")
        for i in range(1, count + 1):
            success = 1 / (1 + math.exp(-(i / count * 8 - 3 + seed)))
            line = {
                "type": kind, "episode": 16 * i, "return": 1.6 * success - 0.8 + draw.gauss(0, 0.1),
                "success": min(1.0, max(0.0, success + draw.gauss(0, 0.05))),
                "loss": math.exp(-3 * i / count) + abs(draw.gauss(0, 0.03)), "time_s": 0.5 * i,
            }  # fmt: skip
            file.write(msgspec.json.encode(line) + b"\n")


CODE = '''import re

def solve(text):
    """Sum the integers of a text."""
    return sum(int(one) for one in re.findall(r"-?\\\\d+", text))

print("trying:", solve("3 apples and -4 pears"))
final_answer(solve(read_task()))
'''


def write_code_run(folder: Path, *, episodes: int = 40, now: bool = False) -> None:
    """Write a run of an agent that writes code: failures, tools, logs, forks, a lost worker."""
    run = RunWriter(folder)
    if now:
        run.time_s = time.time() - 600
    draw = random.Random(7)
    run.start("coding-v0", definition={"id": "coding-v0", "kwargs": {"profile": "python"}})
    for number in range(episodes):
        episode = f"{0x9C20 + number:06x}-{number}"
        is_fork = number in (3, 4, 5, 6, 9)
        parent = {"episode": f"{0x9C20 + (5 if number == 9 else 2):06x}-{5 if number == 9 else 2}",
                  "step": 1} if is_fork else None  # fmt: skip
        first = 2 if is_fork else number  # a fork has the task and the seed of what it left
        task_id = f"train-{first % 7}"
        run.write(
            "reset", episode=episode, row=number % 4, seed=1000 + first,
            task_id=task_id, task={"id": task_id, "split": "train"},
            observation={"prompt": "Sum the integers that the text of the task contains.",
                         "available_tools": ["read_task", "final_answer"]},
            info={"seed": 1000 + first}, **({"parent": parent} if parent else {}),
        )  # fmt: skip
        total, steps = 0.0, draw.randint(2, 5)
        for i in range(1, steps + 1):
            last, wrong = i == steps, draw.random() < 0.3
            code = CODE if i > 1 else "print(read_task())"
            output = {
                "stdout": "trying: -1\n" if i > 1 else "3 apples and -4 pears\n",
                "code": code,
            }
            if wrong:
                output["stderr"] = (
                    'Traceback (most recent call last):\n  File "<cell 2>", line 8, in <module>\n'
                    "NameError: name 'read_task' is not defined\n"
                )
            output["exit_code"] = int(wrong)
            output["tool_calls"] = [
                {"name": "read_task", "arguments": [[], {}], "value": "3 apples and -4 pears",
                 "error": None, "duration_s": 0.0004},
            ]  # fmt: skip
            reward = (1.0 if number % 5 else 0.25) if last and not wrong else -0.05 * wrong
            total += reward
            run.write(
                "step", episode=episode, row=number % 4, step=i, action={"code": code},
                observation=output, reward=reward,
                reward_parts={"tests": reward + 0.05 * wrong, "style": -0.05 * wrong},
                requests=[{"type": "log_event", "message": f"graded {i} of {steps}",
                           "level": "warning" if wrong else "info", "data": {}}],
                duration_s=0.02 + 0.01 * i, info={},
            )  # fmt: skip
        if number == 11:
            run.end(episode, total, steps, "lost", "infrastructure", "Worker process 3 was killed.")
        elif number == 12:
            run.end(episode, total, steps, "error", "environment", "ZeroDivisionError in step()")
        elif number % 9 == 8:
            run.end(episode, total, steps, "truncated")
        elif number < episodes - 1 or not now:
            run.end(episode, total, steps, "terminated")
    if not now:
        run.write("close")


def write_array_run(folder: Path) -> None:
    """Write a run whose observations are pictures and other arrays, some stored aside."""
    run = RunWriter(folder)
    run.start("gym://Breakout")
    y, x = np.mgrid[0:84, 0:84]
    picture = ((np.sin(x / 9) + np.cos(y / 7)) * 60 + 120).astype(np.uint8)
    run.value("d1gest00", picture)
    stored = {"$value": "d1gest00", "kind": "ndarray", "shape": [84, 84], "dtype": "uint8",
              "bytes": 7056}  # fmt: skip
    run.write("reset", episode="arrays-0", seed=0, observation=picture, info={})
    board = np.array([[0, 1, -1], [1, -1, 0], [0, 0, 1]], np.int8)
    run.write("step", episode="arrays-0", step=1, action=3, reward=1.0, observation={"board": board,
              "speed": np.linspace(-1, 1, 6, dtype=np.float32), "limit": math.inf})  # fmt: skip
    line = {"event": "step", "t": run.time_s, "episode": "arrays-0", "step": 2, "action": 0,
            "reward": {"$float": "nan"}, "observation": {"pixels": stored}}  # fmt: skip
    run.write_bytes(msgspec.json.encode(line) + b"\n")
    run.end("arrays-0", 1.0, 2, "terminated")
    run.write("close")


HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
"""Text that changes the title of the page, if it is ever taken for HTML."""

SPOOFED = "safe \u202egnp.exe\u202c \x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2J \u200b \x00"


def write_hostile_run(folder: Path) -> None:
    """Write a run full of what a page must not be taken in by."""
    run = RunWriter(folder)
    run.start(HOSTILE, definition={"id": HOSTILE})
    run.write(
        "reset",
        episode=HOSTILE,
        task_id=HOSTILE,
        seed=HOSTILE,
        observation={HOSTILE: HOSTILE, "stdout": SPOOFED, "code": HOSTILE},
        info={},
    )
    run.write(
        "step",
        episode=HOSTILE,
        step=1,
        action={"code": HOSTILE},
        reward=1.0,
        observation={"stdout": "x" * 1_000_000, "stderr": SPOOFED, "tool_calls": [HOSTILE, 3]},
        reward_parts={HOSTILE: 1.0},
        requests=[{"type": "log_event", "message": HOSTILE, "level": HOSTILE}, 5],
    )
    run.write_bytes(
        b'{"event": "step", "t": 1, "episode": "bytes", "observation": "\xff\xfe\xc3("}\n'
    )
    run.write_bytes(b"not JSON at all\n")
    run.write_bytes(b"[" * 100_000 + b"\n")
    run.write(
        "step",
        episode="odd",
        step=1,
        action={"$array": "????", "dtype": "<f4"},
        observation={"$float": [1], "$value": "../../../etc/passwd"},
        reward={"a": 1.0},
    )
    run.write(
        "end",
        episode=HOSTILE,
        step=1,
        reason="error",
        blame="environment",
        message=HOSTILE,
        reward=1.0,
    )
    run.write_bytes(b'{"event": "step", "t": 1, "episode": "torn')

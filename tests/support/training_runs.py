"""Logs of training runs, and the GSM8K trainer with the loopback service `tinker_service.py`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from installations import ROOT, venv_python, with_envweave

PROGRAMS = ROOT / "tests/support/programs"
KEY = "tml-loopback"
MODEL = ["--base-model", "fake/tabular", "--tokenizer", "word_tokenizer:WordTokenizer"]


class Loopback:
    """The loopback service, and the trainer that is pointed at it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.python = venv_python("train")

    def ask(self, path: str, **body):
        request = urllib.request.Request(f"{self.url}/{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)

    def command(self, *options) -> list[str]:
        program = "envweave.examples.train_gsm8k_tinker_rl"
        return [str(self.python), "-W", "error::RuntimeWarning", "-m", program, *MODEL, *options]

    def variables(self, **changes: str) -> dict[str, str]:
        own = {"TINKER_BASE_URL": self.url, "TINKER_API_KEY": KEY, "OMP_NUM_THREADS": "1"}
        variables = with_envweave(**{**own, **changes})
        variables["PYTHONPATH"] += f"{os.pathsep}{PROGRAMS}"
        variables.pop("ENVWEAVE_GSM8K", None)
        return variables

    def train(self, *options, code=0, **changes: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*map(str, options)),
            env=self.variables(**changes),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done


@contextlib.contextmanager
def loopback() -> Iterator[Loopback]:
    """Start the service, and end it."""
    command = [venv_python("train"), PROGRAMS / "tinker_service.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Loopback(process.stdout.readline().strip())
        finally:
            process.terminate()


def read_run_log(run_dir: Path) -> list[dict[str, Any]]:
    """Return the objects of a run's log, `metrics.jsonl`, all of whose lines must be whole."""
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def without_time(log):
    """The log without what may differ: the time, and where the environments ran."""
    dropped = ("time_s", "env_backend", "docker_image", "num_envs")
    return [{key: value for key, value in line.items() if key not in dropped} for line in log]

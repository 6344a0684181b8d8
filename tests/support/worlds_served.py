"""A server in a process of its own, for tests that kill it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Running:
    """A server that runs.

    Attributes:
        process: The process itself.
        url: Where it serves.
        port: The port of that.
    """

    process: subprocess.Popen[bytes]
    url: str
    port: int


@contextmanager
def process_serving(env_id: str, *, port: int = 0, **options: Any) -> Iterator[Running]:
    """Run `envweave serve` while the block runs; what is left of it is killed."""
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    reading, writing = os.pipe()
    here = Path(__file__).parent
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "envweave.cli", "serve", env_id),
            *(f"--port={port}", f"--ready-fd={writing}", *arguments),
        ],
        pass_fds=[writing],
        env={**os.environ, "PYTHONPATH": str(here)},
        stdout=subprocess.DEVNULL,
    )
    os.close(writing)
    try:
        with os.fdopen(reading) as pipe:
            line = pipe.readline()
        assert line, "the server did not start; its log says why"
        url = json.loads(line)["url"]
        yield Running(process, url, int(url.rpartition(":")[2]))
    finally:
        process.kill()
        process.wait(30)


def wait_for(claim: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait until something is so."""
    ends_s = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < ends_s, "it did not come about"
        time.sleep(0.02)

"""A Docker container a session for sandbox.py, as `docker run` starts it."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

from ordered import NotAvailableError
from sandbox_box import Box
from sandbox_pipes import LOOP, PipeSession

IMAGE = "envweave-python:3.11"
SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def open_docker() -> Box:
    _need_image()
    names = (f"envweave-bench-{os.getpid()}-{number}" for number in itertools.count())
    live: dict[str, PipeSession] = {}

    def session() -> PipeSession:
        name = next(names)
        # Without a network it starts sooner, and has no more than the others have.
        options = ["--rm", "--interactive", "--network", "none", "--name", name]
        program = ["python3", "-I", "-B", "-c", LOOP.read_text()]
        live[name] = PipeSession(
            ["docker", "run", *options, IMAGE, *program], ends=lambda: live.pop(name, None)
        )
        return live[name]

    def processes() -> list[int]:
        """Return what holds each container: the engine starts it, and not this process."""
        asked = ["docker", "inspect", "--format", "{{.State.Pid}}", *live]
        return [_parent(int(pid)) for pid in subprocess.check_output(asked).split()] if live else []

    return Box(session, also=processes)


def _need_image() -> None:
    try:
        done = subprocess.run(["docker", "info"], capture_output=True, check=False)
    except FileNotFoundError:
        raise NotAvailableError("docker is not installed") from None
    if done.returncode:
        raise NotAvailableError("no Docker engine answers; try scripts/docker-engine start")
    made = subprocess.run(
        [sys.executable, SCRIPTS / "docker-base-image"], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise NotAvailableError(f"there is no {IMAGE}: {made.stderr.strip()}")


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

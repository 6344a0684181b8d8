"""OpenEnv as it was released, in its own virtual environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests/support"


@pytest.fixture(scope="session")
def openenv_python() -> Path:
    """The python of a virtual environment with OpenEnv in it."""
    script = ROOT / "scripts/openenv-venv"
    is_ci = os.environ.get("CI") == "true"
    asked = [sys.executable, script, *([] if is_ci else ["--where"])]
    found = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=False)
    if found.returncode and is_ci:
        pytest.fail("OpenEnv could not be installed; scripts/openenv-venv says why.")
    if found.returncode:
        pytest.skip("OpenEnv is not set up. Run scripts/openenv-venv once.")
    return Path(found.stdout.strip())


class Peer:
    """A process with OpenEnv in it, which does what it is asked."""

    def __init__(self, python: Path) -> None:
        self.process = subprocess.Popen(
            [python, SUPPORT / "openenv_peer.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, do: str, url: str | None = None, **keywords: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        keywords |= {} if url is None else {"url": url}
        self.process.stdin.write(json.dumps({"do": do, "with": keywords}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the peer is gone"
        answer = json.loads(line)
        assert "raised" not in answer, answer["raised"]
        return answer["came"]


class World:
    """An OpenEnv server, with the environments of `openenv_worlds.py`.

    Attributes:
        host: The ID of the server, to which the path of an environment is added.
        echo: The ID of OpenEnv's own echo environment there.
        staged: The ID of one that does what it is told.
    """

    def __init__(self, peer: Peer) -> None:
        self.host = host = f"openenv://127.0.0.1:{peer('serve_worlds')['port']}"
        self.echo, self.staged = f"{host}/echo", f"{host}/staged"


@pytest.fixture(scope="session")
def peer(openenv_python: Path) -> Iterator[Peer]:
    """OpenEnv, imported once: that takes seconds."""
    one = Peer(openenv_python)
    try:
        yield one
    finally:
        one.process.kill()  # and with it the servers that it runs
        one.process.communicate(timeout=10)


@pytest.fixture(scope="session")
def world(peer: Peer) -> World:
    """A server for all tests."""
    return World(peer)


@pytest.fixture
def doomed(peer: Peer) -> World:
    """A server for one test, which may kill it."""
    return World(peer)

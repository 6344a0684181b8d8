"""OpenEnv as it was released, in its own virtual environment."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests/support/programs"


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

    def __init__(self, python: Path, script: str = "openenv_peer.py", **more: str) -> None:
        self.process = subprocess.Popen(
            [python, PROGRAMS / script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **more},
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
        return answer["result"]


class OpenEnvServer:
    """An OpenEnv server, with the environments of `openenv_server.py`.

    Attributes:
        host: The ID of the server, to which the path of an environment is added.
        echo: The ID of OpenEnv's own echo environment there.
        staged: The ID of one that does what its actions say.
    """

    def __init__(self, peer: Peer) -> None:
        self.host = host = f"openenv://127.0.0.1:{peer('serve_environments')['port']}"
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
def both(openenv_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """OpenEnv and envweave in one process.

    Its virtual environment lacks a few packages that envweave needs; those of this one are lent.
    """
    lent = tmp_path_factory.mktemp("lent")
    for name in ("cloudpickle", "msgspec", "prometheus_client"):
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.origin is not None
        (lent / name).symlink_to(Path(found.origin).parent)
    about = Path(str(importlib.metadata.distribution("envweave").locate_file("")))
    for one in about.glob("envweave-*.dist-info"):  # which tells of its plug-ins
        (lent / one.name).symlink_to(one)
    paths = [ROOT / "src", PROGRAMS, PROGRAMS.parent, lent]
    one = Peer(openenv_python, "openenv_classes.py", PYTHONPATH=os.pathsep.join(map(str, paths)))
    try:
        yield one
    finally:
        one.process.kill()
        one.process.communicate(timeout=10)


@pytest.fixture(scope="session")
def server(peer: Peer) -> OpenEnvServer:
    """A server for all tests."""
    return OpenEnvServer(peer)


@pytest.fixture
def disposable_server(peer: Peer) -> OpenEnvServer:
    """A server for one test, which may kill it."""
    return OpenEnvServer(peer)

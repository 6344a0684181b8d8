"""`envweave view`: the server behind it, as a process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from run_files import RunWriter
from servers import http_connection


@contextmanager
def viewing(folder: Path, *options: str) -> Iterator[tuple[dict[str, Any], Any]]:
    """Run `envweave view` while the block runs; yield what it printed, and the process."""
    command = [sys.executable, "-m", "envweave.cli", "view", str(folder), "--port=0", "--json"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline()), process
    finally:
        process.kill()
        process.wait(20)
        process.stdout.close()


@pytest.mark.slow  # starts a process
def test_the_viewer_serves_who_has_the_token_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    RunWriter(tmp_path / "one").start()

    def get(path: str, **headers: str) -> tuple[int, bytes]:
        connection = http_connection(printed["url"])
        connection.request(
            "GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )
        response = connection.getresponse()
        found = response.status, response.read()
        connection.close()
        return found

    with viewing(tmp_path) as (printed, process):
        bearer = f"Bearer {printed['token']}"
        runs = get("/api/runs", Authorization=bearer)
        nobody, rebound = get("/api/runs"), get("/", Host="evil.example", Authorization=bearer)
        other = get("/api/runs", Authorization=bearer, Origin="http://evil.example")
        outside = get("/..%2f..%2fetc%2fpasswd", Authorization=bearer)
        process.send_signal(signal.SIGINT)
        code = process.wait(20)

    assert runs[0] == 200
    assert [one["id"] for one in json.loads(runs[1])["runs"]] == ["one"]
    assert (nobody[0], rebound[0], other[0], outside[0], code) == (401, 421, 403, 404, 0)


def test_a_folder_that_does_not_exist_is_refused(envweave: Any) -> None:
    result = envweave("view", "nothing", "--port", "0")

    assert result.code == 2
    assert "is not a folder" in result.stderr

"""Removal of what killed hosts left behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envweave.sandbox import Sandbox
from envweave.sandbox.host.cleanup import is_stale, mark, new_folder, sweep_folders

TIMEOUT_S = 30.0
HOST = """
import sys
from envweave.sandbox import Sandbox
with Sandbox(isolation=sys.argv[1]) as box, box.session() as session:
    session.write_file("a/b", b"x")
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A separate temporary folder for this process and those it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    tmp_path.chmod(0o711)
    yield tmp_path
    monkeypatch.setattr("tempfile.tempdir", None)


def dead_pid() -> int:
    """The id of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait(TIMEOUT_S)
    return process.pid


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize("isolation", ["namespace", "landlock"])
def test_folders_of_a_killed_host_are_removed_by_the_next_host(
    temporary: Path, isolation: str
) -> None:
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, isolation],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert host.stdout is not None
    assert host.stdout.readline() == "ready\n"
    while_it_lives = sweep_folders()
    host.kill()
    host.communicate()
    left = list(temporary.iterdir())

    with Sandbox(isolation=isolation):
        pass

    assert while_it_lives == 0
    assert left != []
    assert list(temporary.iterdir()) == []


def test_a_sandbox_that_is_closed_leaves_nothing(temporary: Path) -> None:
    with Sandbox() as box, box.session() as session:
        session.write_file("a", b"x")

    assert list(temporary.iterdir()) == []


def test_resources_of_this_host_are_not_stale() -> None:
    assert not is_stale(new_folder("sandbox").name)


def test_a_reused_process_id_is_another_host() -> None:
    begin, _, start = mark().rpartition("-")

    assert is_stale(f"{begin}-{int(start) - 1}-sandbox-x")


def test_resources_of_a_host_in_another_namespace_are_left_alone() -> None:
    _, space, _, start = mark().split("-")

    assert is_stale(f"envweave-{space}-{dead_pid()}-{start}-sandbox-x")
    assert not is_stale(f"envweave-{int(space) + 1}-{dead_pid()}-{start}-sandbox-x")


def test_only_folders_of_the_same_user_are_swept(temporary: Path) -> None:
    _, space, _, start = mark().split("-")
    name = f"envweave-{space}-{dead_pid()}-{start}"
    (temporary / "outside").mkdir()
    (temporary / f"{name}-link").symlink_to(temporary / "outside")
    (temporary / f"{name}-file").touch()
    (temporary / f"{name}-folder/deep/er").mkdir(parents=True)

    swept = sweep_folders()

    assert swept == 1
    assert {one.name for one in temporary.iterdir()} == {f"{name}-file", f"{name}-link", "outside"}

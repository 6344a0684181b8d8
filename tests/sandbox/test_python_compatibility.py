"""Programs behave in a session as in a plain Python process."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

from envweave.sandbox import Limits, Sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")

FOLDER = Path(__file__).parent / "programs"
PROGRAMS = {path.stem: path for path in FOLDER.glob("*.py")}
SHELL = {"processes"}
LIMITS = Limits(timeout_s=60)


class Outcome(NamedTuple):
    """The output of a program; stderr ends with the traceback of its last exception."""

    stdout: list[str]
    stderr: list[str]


@pytest.fixture(scope="module", params=["namespace", "landlock"])
def isolation(request):
    return request.param


@pytest.fixture(scope="module")
def box(isolation):
    with Sandbox(isolation=isolation, preload=["numpy"], limits=LIMITS) as box:
        yield box


@pytest.fixture(scope="module")
def shell(isolation):
    with Sandbox(isolation=isolation, profile="shell", limits=LIMITS) as box:
        yield box


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - SHELL))
def test_a_program_prints_the_same(box, name):
    expected = run_plainly(name)

    assert run_inside(box, name) == expected


@pytest.mark.parametrize("name", sorted(SHELL))
def test_a_multiprocessing_program_prints_the_same_in_a_shell(shell, name):
    expected = run_plainly(name)

    assert run_inside(shell, name) == expected


@pytest.mark.parametrize(
    "start",
    [
        "import os; os.fork()",
        "import subprocess; subprocess.run(['true'])",
        "import asyncio; await asyncio.create_subprocess_exec('true')",
        "import multiprocessing; multiprocessing.Process(target=print).start()",
        "import concurrent.futures as f; f.ProcessPoolExecutor(1).submit(print).result()",
    ],
)
def test_starting_a_process_is_refused_in_python_sessions_which_continue(box, start):
    with box.session() as session:
        refused = session.run(start)
        after = session.run("import threading; threading.active_count()")

    assert (refused.exception_type, refused.session_ended) == ("PermissionError", False)
    assert refused.exception_message.startswith(("[Errno 1] ", "[Errno 13] "))
    assert after.return_value == 1


# `multiprocessing` shares through /dev/shm, which without mounts is the host's.
SHARING = {
    "lock": "with multiprocessing.Lock(): shared = 7",
    "pool": "with multiprocessing.Pool(2) as pool: shared = sum(pool.map(abs, [-3, -4]))",
    "queue": (
        "queue = multiprocessing.Queue()\n"
        "process = multiprocessing.Process(target=queue.put, args=(7,))\n"
        "process.start(); shared = queue.get(timeout=30); process.join()"
    ),
    "executor": (
        "with concurrent.futures.ProcessPoolExecutor(2) as pool:\n"
        "    shared = sum(pool.map(abs, [-3, -4]))"
    ),
    "value": "shared = multiprocessing.Value('i', 7).value",
    "memory": (
        "memory = multiprocessing.shared_memory.SharedMemory(create=True, size=8)\n"
        "memory.buf[0] = 7; shared = memory.buf[0]; memory.close(); memory.unlink()"
    ),
}


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize("what", SHARING)
def test_processes_can_share_memory_and_locks_with_separate_mounts(shell, what):
    imports = "import concurrent.futures, multiprocessing.shared_memory\n"
    with shell.session() as session:
        result = session.run(f"{imports}{SHARING[what]}\nshared")

    if shell.tier.name == "namespace":
        assert (result.return_value, result.stderr) == (7, "")
    else:
        assert result.exception_type == "PermissionError"


@pytest.mark.parametrize("status", ["3", "'no'", ""])
def test_sys_exit_is_reported_with_its_status(box, status):
    code = f"import sys\ntry:\n    sys.exit({status})\nfinally:\n    print('cleaned up')"
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    with box.session() as session:
        result = session.run(code)

    assert (result.stdout, result.exception_type) == (plain.stdout, "SystemExit")
    message = plain.stderr.strip() or str(plain.returncode or "")
    assert result.exception_message == message


def run_inside(box: Sandbox, name: str) -> Outcome:
    """Run a program cell by cell, each with the line numbers of its file."""
    stdout = stderr = ""
    blank = 0
    with box.session() as session:
        for cell in PROGRAMS[name].read_text(encoding="utf-8").split("# %%\n"):
            result = session.run("\n" * blank + cell)
            blank += cell.count("\n") + 1
            stdout += result.stdout
            stderr += result.stderr + (result.traceback or "")
            if not result.success:
                break
    return Outcome(_nameless(stdout), _nameless(stderr))


@functools.cache
def run_plainly(name: str) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tmp").mkdir()
        ran = subprocess.run(
            [sys.executable, "-P", "-B", "-u", PROGRAMS[name]],
            cwd=folder,
            env={
                "PATH": os.defpath,
                "HOME": folder,
                "TMPDIR": f"{folder}/tmp",
                "LANG": "C.UTF-8",
                "PYTHONHASHSEED": "0",
                "OPENBLAS_NUM_THREADS": "1",
            },
            umask=0o077,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    return Outcome(_nameless(ran.stdout), _nameless(ran.stderr))


def _nameless(text: str) -> list[str]:
    """Return the lines of a text, with the file name or cell name of the program normalized."""
    return re.sub(rf"{re.escape(str(FOLDER))}/\w+\.py|<cell \d+>", "<program>", text).splitlines()

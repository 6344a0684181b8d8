"""What a session does while no run is open: it is stopped, bounded, and the next result tells."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envweave.errors import SessionEndedError
from envweave.sandbox import (
    AsyncSandbox,
    AsyncSession,
    ExecutionResult,
    Limits,
    Sandbox,
    Session,
)
from envweave.sandbox.processes.process_group import cpu_s

PATIENCE_S = 20.0
LIMITS = Limits(disk_bytes=1 << 20, files=64)

WORK_ON = """
import threading
def work():
    while True:
        pass
threading.Thread(target=work, daemon=True).start()
"""

WRITE_ON = """
import threading
def write():
    for number in range(1000):
        with open(f"{number}.bin", "wb") as file:
            file.write(bytes(200_000))
threading.Thread(target=write, daemon=True).start()
"""


@pytest.fixture(scope="module", params=["namespace", "landlock"])
def box(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with Sandbox(isolation=request.param, limits=LIMITS) as box:
        yield box


@pytest.fixture(scope="module")
def on_disk() -> Iterator[Sandbox]:
    """A sandbox whose work folders are on the host's disk."""
    with Sandbox(isolation="landlock", limits=LIMITS) as box:
        yield box


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


def pid_of(session: Session | AsyncSession) -> int:
    return session._body.pid  # type: ignore[attr-defined]


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_thread_that_works_on_is_stopped_and_the_next_result_tells(box: Sandbox) -> None:
    with box.session() as session:
        session.run(WORK_ON)
        pid = pid_of(session)
        before_s = cpu_s(pid)

        until(lambda: is_stopped(pid))

        used_s = cpu_s(pid) - before_s
        told, after = session.run("1 + 1"), session.run("2 + 2")
    assert used_s < 0.5  # 0.1 s on a quiet machine
    assert (told.return_value, told.limits_hit, told.success) == (2, ("idle",), True)
    assert (after.return_value, after.limits_hit) == (4, ())


def test_a_session_that_waits_is_stopped_and_the_next_call_wakes_it(box: Sandbox) -> None:
    with box.session() as session:
        session.run("x = 1")
        pid = pid_of(session)

        for call in (lambda: session.get("x"), lambda: session.run("x").return_value):
            until(lambda: is_stopped(pid))
            assert call() == 1

        assert session.run("x").limits_hit == ()


def test_a_branch_of_a_session_that_is_stopped_has_its_variables() -> None:
    with Sandbox(isolation="namespace") as box, box.session() as session:
        session.run("x = 1")
        until(lambda: is_stopped(pid_of(session)))

        with session.branch() as branch:
            assert branch.run("x").return_value == 1


def test_an_async_session_that_works_on_is_stopped_and_wakes() -> None:
    async def run_twice() -> ExecutionResult:
        async with AsyncSandbox() as box, box.session() as session:
            await session.run(WORK_ON)
            until(lambda: is_stopped(pid_of(session)))
            return await session.run("1 + 1")

    told = asyncio.run(run_twice())

    assert (told.return_value, told.limits_hit) == (2, ("idle",))


@pytest.mark.parametrize("tier", ["namespace", "landlock"])
def test_programs_that_work_on_are_stopped_with_their_session(tier: str) -> None:
    with Sandbox(isolation=tier, profile="shell") as box, box.session() as session:
        started = session.run(
            "import subprocess, sys\n"
            "programs = [subprocess.Popen([sys.executable, '-c', 'while True: pass']) "
            "for _ in range(2)]"
        )
        assert started.success, started
        pids = session._body._programs()  # type: ignore[attr-defined]

        until(lambda: all(map(is_stopped, [*pids, pid_of(session)])))

        told = session.run("[one.poll() for one in programs]")
        going = [is_stopped(pid) for pid in pids]
    assert len(pids) == 2
    assert (told.return_value, told.limits_hit) == ([None, None], ("idle",))
    assert going == [False, False]


NAMELESS = r"""
import os, subprocess, sys
name = b'./\xff\xfe'  # a process has the name of the file that it was started from
os.symlink(sys.executable, name)
code = 'print(flush=True)\nwhile True: pass'
program = subprocess.Popen([sys.executable, '-c', code], executable=name, stdout=subprocess.PIPE)
program.stdout.readline()
"""


@pytest.mark.slow  # starts several sandboxes
def test_a_program_whose_name_is_not_text_does_not_end_the_watching() -> None:
    with Sandbox(profile="shell") as box, box.session() as session, box.session() as other:
        assert session.run(NAMELESS).success
        (pid,) = session._body._programs()  # type: ignore[attr-defined]
        assert b"(\xff\xfe)" in Path(f"/proc/{pid}/stat").read_bytes()

        until(lambda: is_stopped(pid_of(session)))
        other.run("x = 1")
        until(lambda: is_stopped(pid_of(other)))

        told = session.run("program.poll()")
    assert (told.return_value, told.limits_hit) == (None, ("idle",))


@pytest.mark.slow  # starts several sandboxes
def test_a_session_that_cannot_be_watched_is_ended_and_the_others_are_watched(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Sandbox() as box, box.session() as session, box.session() as other:
        session.run("x = 1")
        monkeypatch.setattr(session._body, "stop", lambda _in_use: 1 / 0)
        until(session._body.is_gone)  # type: ignore[attr-defined]

        other.run("x = 1")
        until(lambda: is_stopped(pid_of(other)))

        assert session.run("1").session_ended
    assert "ZeroDivisionError" in caplog.text


def test_code_cannot_wake_what_is_stopped(box: Sandbox) -> None:
    with box.session() as session:
        result = session.run(
            "import os, signal, threading\n"
            "refused = 0\n"
            "for send in (lambda: os.kill(os.getpid(), signal.SIGCONT),\n"
            "             lambda: signal.pthread_kill(threading.get_ident(), signal.SIGCONT)):\n"
            "    try: send()\n"
            "    except PermissionError: refused += 1\n"
            "refused"
        )

    assert result.return_value == 2


def test_what_is_written_between_runs_is_bounded_and_told(on_disk: Sandbox) -> None:
    with on_disk.session() as session:
        session.run(WRITE_ON)

        until(lambda: not session.alive)

        result = session.run("1 + 1")
        with pytest.raises(SessionEndedError, match="more disk"):
            session.run("1 + 1")
    assert (result.exception_type, result.limits_hit) == ("DiskLimit", ("disk",))
    assert result.session_ended


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("for n in range(8): open(str(n), 'wb').write(bytes(500_000))", id="bytes"),
        pytest.param("for n in range(80): open(str(n), 'wb').close()", id="files"),
    ],
)
def test_a_run_too_short_to_be_watched_is_told_of_by_the_next(on_disk: Sandbox, code: str) -> None:
    with on_disk.session() as session:
        result = session.run(code)
        if result.success:
            until(lambda: not session.alive)
            result = session.run("1 + 1")

    assert (result.exception_type, result.limits_hit) == ("DiskLimit", ("disk",))


def test_runs_that_follow_each_other_at_once_are_checked_too(on_disk: Sandbox) -> None:
    with on_disk.session() as session:
        result = session.run("n = 0")
        deadline = time.monotonic() + PATIENCE_S
        while result.success and time.monotonic() < deadline:
            result = session.run("n += 1\nopen(str(n), 'wb').write(bytes(50_000))")

    assert result.limits_hit == ("disk",)

"""Sessions while no run is open: they are stopped and limited, and the next result reports it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import cpu_s

from envweave.errors import SessionEndedError
from envweave.sandbox import (
    AsyncSandbox,
    AsyncSession,
    ExecutionResult,
    Limits,
    Sandbox,
    Session,
)

pytestmark = pytest.mark.slow  # starts many sandbox sessions

TIMEOUT_S = 20.0
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
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


def pid_of(session: Session | AsyncSession) -> int:
    return session._handle.pid  # type: ignore[attr-defined]


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_thread_that_keeps_working_is_stopped_and_the_next_result_reports_it(
    box: Sandbox,
) -> None:
    with box.session() as session:
        session.run(WORK_ON)
        pid = pid_of(session)
        before_s = cpu_s(pid)

        until(lambda: is_stopped(pid))

        used_s = cpu_s(pid) - before_s
        result, after = session.run("1 + 1"), session.run("2 + 2")
    assert used_s < 0.5  # 0.1 s on a quiet machine
    assert (result.return_value, result.limits_hit, result.success) == (2, ("idle",), True)
    assert (after.return_value, after.limits_hit) == (4, ())


def test_an_idle_session_is_stopped_and_the_next_call_wakes_it(box: Sandbox) -> None:
    with box.session() as session:
        session.run("x = 1")
        pid = pid_of(session)

        for call in (lambda: session.get("x"), lambda: session.run("x").return_value):
            until(lambda: is_stopped(pid))
            assert call() == 1

        assert session.run("x").limits_hit == ()


def test_a_branch_of_a_stopped_session_has_its_variables() -> None:
    with Sandbox(isolation="namespace") as box, box.session() as session:
        session.run("x = 1")
        until(lambda: is_stopped(pid_of(session)))

        with session.branch() as branch:
            assert branch.run("x").return_value == 1


def test_an_async_session_that_keeps_working_is_stopped_and_wakes() -> None:
    async def run_twice() -> ExecutionResult:
        async with AsyncSandbox() as box, box.session() as session:
            await session.run(WORK_ON)
            until(lambda: is_stopped(pid_of(session)))
            return await session.run("1 + 1")

    result = asyncio.run(run_twice())

    assert (result.return_value, result.limits_hit) == (2, ("idle",))


@pytest.mark.parametrize("tier", ["namespace", "landlock"])
def test_programs_that_keep_working_are_stopped_with_their_session(tier: str) -> None:
    with Sandbox(isolation=tier, profile="shell") as box, box.session() as session:
        started = session.run(
            "import subprocess, sys\n"
            "programs = [subprocess.Popen([sys.executable, '-c', 'while True: pass']) "
            "for _ in range(2)]"
        )
        assert started.success, started
        pids = session._handle._programs()  # type: ignore[attr-defined]

        until(lambda: all(map(is_stopped, [*pids, pid_of(session)])))

        result = session.run("[one.poll() for one in programs]")
        going = [is_stopped(pid) for pid in pids]
    assert len(pids) == 2
    assert (result.return_value, result.limits_hit) == ([None, None], ("idle",))
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
def test_a_program_with_a_non_utf8_name_does_not_break_the_watcher() -> None:
    with Sandbox(profile="shell") as box, box.session() as session, box.session() as other:
        assert session.run(NAMELESS).success
        (pid,) = session._handle._programs()  # type: ignore[attr-defined]
        assert b"(\xff\xfe)" in Path(f"/proc/{pid}/stat").read_bytes()

        until(lambda: is_stopped(pid_of(session)))
        other.run("x = 1")
        until(lambda: is_stopped(pid_of(other)))

        result = session.run("program.poll()")
    assert (result.return_value, result.limits_hit) == (None, ("idle",))


@pytest.mark.slow  # starts several sandboxes
def test_a_session_that_cannot_be_watched_is_killed_and_the_others_are_watched(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Sandbox() as box, box.session() as session, box.session() as other:
        session.run("x = 1")
        monkeypatch.setattr(session._handle, "stop", lambda _in_use: 1 / 0)
        until(session._handle.is_gone)  # type: ignore[attr-defined]

        other.run("x = 1")
        until(lambda: is_stopped(pid_of(other)))

        assert session.run("1").session_ended
    assert "ZeroDivisionError" in caplog.text


def test_code_cannot_wake_a_stopped_process(box: Sandbox) -> None:
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


def test_writing_between_runs_is_limited_and_reported(on_disk: Sandbox) -> None:
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
def test_an_excess_in_a_run_too_short_to_be_watched_is_reported_by_the_next(
    on_disk: Sandbox, code: str
) -> None:
    with on_disk.session() as session:
        result = session.run(code)
        if result.success:
            until(lambda: not session.alive)
            result = session.run("1 + 1")

    assert (result.exception_type, result.limits_hit) == ("DiskLimit", ("disk",))


def test_back_to_back_runs_are_checked_too(on_disk: Sandbox) -> None:
    with on_disk.session() as session:
        result = session.run("n = 0")
        deadline = time.monotonic() + TIMEOUT_S
        while result.success and time.monotonic() < deadline:
            result = session.run("n += 1\nopen(str(n), 'wb').write(bytes(50_000))")

    assert result.limits_hit == ("disk",)
